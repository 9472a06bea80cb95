package delivery

import (
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Order by key, when a batch is sent again in part: all events of a key that are sent
// again go to one part, unless the batch is cut by id. Parts that share a key are cut by
// id, and the buffer goes through them in that order.
//
// A batch's attempts are those of the first event of each key. The later ones waited
// behind it and were never refused, so they begin at 0 when they become the first.

// keepOrder is the last pass over the events of a batch: it returns, by index, the event whose
// outcome each one shares, which is itself unless order is kept. waits reports whether an event has
// to wait; the others of its key wait with the first such event, except those that parts reports.
func (p *policy) keepOrder(events []outbox.Event, waits func(i int) bool, parts func(i, first int) bool) (shares func(i int) int) {
	own := func(i int) int { return i }
	if !p.ordered {
		return own
	}
	firsts := map[string]int{}
	for i := range events {
		if key := events[i].Key; key != nil && waits(i) {
			if _, known := firsts[*key]; !known {
				firsts[*key] = i
			}
		}
	}
	if len(firsts) == 0 {
		return own
	}
	return func(i int) int {
		if key := events[i].Key; key != nil {
			if first, ok := firsts[*key]; ok && i != first && !parts(i, first) {
				return first
			}
		}
		return i
	}
}

// attempts returns the attempts of each event, by index.
func (p *policy) attempts(l *buffer.Lease) func(i int) int {
	if !p.ordered || l.Attempts == 0 {
		return func(int) int { return l.Attempts }
	}
	first := firstOfKey(l.Events)
	return func(i int) int {
		if e := &l.Events[i]; e.Key != nil && first[*e.Key] != e.ID {
			return 0
		}
		return l.Attempts
	}
}

// firstOfKey returns the id of the first event of each key.
func firstOfKey(events []outbox.Event) map[string]int64 {
	first := make(map[string]int64, len(events))
	for i := range events {
		if key := events[i].Key; key != nil {
			if _, known := first[*key]; !known {
				first[*key] = events[i].ID
			}
		}
	}
	return first
}

// carryAttempts corrects the attempts of parts of a batch that were not refused, or only as a
// whole. If order is kept, a part keeps the batch's attempts only if the first event of each of its
// keys is the first in the batch too.
func (p *policy) carryAttempts(l *buffer.Lease, outcomes []buffer.Outcome) []buffer.Outcome {
	if !p.ordered || l.Attempts == 0 {
		return outcomes
	}
	all := l.AllEvents()
	first, keys := firstOfKey(all), make(map[int64]*string, len(all))
	for i := range all {
		keys[all[i].ID] = all[i].Key
	}
	for n := range outcomes {
		o, seen := &outcomes[n], map[string]bool{}
		if o.Verdict != buffer.Retry {
			continue
		}
		for _, id := range o.IDs {
			if key := keys[id]; key != nil && !seen[*key] {
				seen[*key] = true
				if first[*key] != id {
					o.Attempts = 0
				}
			}
		}
	}
	return outcomes
}

// maxRuns is how many runs a batch is split into at once.
const maxRuns = 64

// splitIntoRuns makes groups that keep order: the same ones where no key is in two of them, otherwise runs of
// events that follow each other. The last run takes what is left, and is split again when it is sent.
func splitIntoRuns(l *buffer.Lease, groups []sink.Group) []sink.Group {
	groupOf := make([]int, len(l.Events))
	for g := range groups {
		for _, i := range groups[g].Indexes {
			groupOf[i] = g
		}
	}
	at := map[string]int{}
	shared := false
	for i := range l.Events {
		if key := l.Events[i].Key; key != nil {
			g, known := at[*key]
			shared = shared || known && g != groupOf[i]
			at[*key] = groupOf[i]
		}
	}
	if !shared {
		return groups
	}
	var runs []sink.Group
	for i := range l.Events {
		if i == 0 || groupOf[i] != groupOf[i-1] && len(runs) < maxRuns {
			runs = append(runs, sink.Group{Address: groups[groupOf[i]].Address})
		}
		last := &runs[len(runs)-1]
		last.Indexes = append(last.Indexes, i)
	}
	return runs
}
