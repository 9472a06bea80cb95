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

// keepOrder is the last pass over the events of a batch: it returns, by index, the event
// whose fate each one shares, which is its own unless order is kept. waits reports whether
// an event is to wait; the others of its key wait with the first such event, but for
// those that part reports.
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

// attempts returns the attempts that each event has behind it, by index.
func (p *policy) attempts(l *buffer.Lease) func(i int) int {
	if !p.ordered || l.Attempts == 0 {
		return func(int) int { return l.Attempts }
	}
	first := firstOfKey(l.Events)
	return func(i int) int {
		if first[i] {
			return l.Attempts
		}
		return 0
	}
}

// firstOfKey reports, by index, which events have no earlier one of their key in the
// batch.
func firstOfKey(events []outbox.Event) []bool {
	first := make([]bool, len(events))
	seen := make(map[string]struct{}, len(events))
	for i := range events {
		key := events[i].Key
		if key == nil {
			first[i] = true
			continue
		}
		if _, known := seen[*key]; !known {
			seen[*key] = struct{}{}
			first[i] = true
		}
	}
	return first
}

// carryAttempts looks at parts of a batch that were not refused, or only as a whole. Where
// order is kept they keep the batch's attempts only if the first event of each key was the
// first in the batch too.
func (p *policy) carryAttempts(l *buffer.Lease, outcomes []buffer.Outcome) []buffer.Outcome {
	if !p.ordered || l.Attempts == 0 {
		return outcomes
	}
	all := l.AllEvents()
	at := make(map[int64]int, len(all))
	for i := range all {
		at[all[i].ID] = i
	}
	wasFirst := firstOfKey(all)
	for n := range outcomes {
		o := &outcomes[n]
		if o.Verdict != buffer.Retry || o.IDs == nil {
			continue
		}
		events := make([]outbox.Event, len(o.IDs))
		for i, id := range o.IDs {
			events[i] = all[at[id]]
		}
		for i, first := range firstOfKey(events) {
			if first && !wasFirst[at[o.IDs[i]]] {
				o.Attempts = 0
			}
		}
	}
	return outcomes
}

// maxRuns is how many runs a batch is split into at once.
const maxRuns = 64

// splitIntoRuns makes groups that keep order: the same ones where no key is in two of
// them, otherwise runs of events that follow each other. The last run takes what is left,
// and is split again when it is sent.
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
