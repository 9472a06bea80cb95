package delivery

import (
	"errors"
	"github.com/outboxrelay/relay/sink"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func isBehind(err error) bool {
	_, behind := errors.AsType[*sink.BehindError](err)
	return behind
}

// What keeps order when a batch is divided: all events of a key that are to be sent
// again go to one part, unless the batch is cut in two by id. Parts that share a key
// are cut by id, and the buffer goes through them in that order.
//
// A batch's attempts are those of the first event of each key; the later ones were
// never refused, they waited. Where one of them becomes the first, it begins at 0.

// firsts are, by index, the events with no earlier one of their key in the batch.
func firsts(events []outbox.Event) []bool {
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

// orderedPart is events that are to be sent again together.
type orderedPart struct {
	away    bool // for an outage of the address
	address string
	first   bool // those that failed were the first of their keys
	ids     []int64
	err     error
}

// eachInOrder is each where order is kept. An event behind one of its key that is to
// be sent again goes with it, also when the sink has accepted it: it would be
// overtaken by that one else.
func (w *Worker) eachInOrder(b *buffer.Lease, why []error) []buffer.Outcome {
	var (
		delivered []int64
		accepted  bool
		parts     []*orderedPart
		outcomes  []buffer.Outcome
		stuck     = map[string]*orderedPart{}
		first     = firsts(b.Events)
	)
	for i, err := range why {
		e, as := &b.Events[i], w.as(b, first[i])
		accepted = accepted || err == nil
		var part *orderedPart
		if e.Key != nil {
			part = stuck[*e.Key]
		}
		switch {
		case err != nil && errors.Is(err, sink.ErrPermanent) && w.kills(as, err):
			outcomes = append(outcomes, w.dead(as, []int64{e.ID}, err))
			continue
		case part != nil:
		case err == nil:
			delivered = append(delivered, e.ID)
			continue
		case errors.Is(err, sink.ErrUnavailable):
			parts, part = partFor(parts, orderedPart{away: true, address: w.addressOf(e), first: first[i]})
			part.err = longest(part.err, err)
		case w.kills(as, err):
			outcomes = append(outcomes, w.dead(as, []int64{e.ID}, err))
			continue
		default:
			parts, part = partFor(parts, orderedPart{first: first[i], err: err})
		}
		part.ids = append(part.ids, e.ID)
		if e.Key != nil {
			stuck[*e.Key] = part
		}
	}
	if len(delivered) == len(why) {
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	}
	if len(delivered) > 0 {
		outcomes = append(outcomes, buffer.Outcome{Verdict: buffer.Delivered, IDs: delivered})
	}
	for _, part := range parts {
		if len(part.ids) == len(why) && !accepted {
			part.ids = nil // all share one fate: the group_id stays
		}
		if as := w.as(b, part.first); part.away {
			outcomes = append(outcomes, w.wait(as, part.ids, part.address, part.err))
		} else {
			outcomes = append(outcomes, w.retry(as, part.ids, part.err))
		}
	}
	return outcomes
}

// as is the batch as it counts for the first events of its keys, or for the others.
func (w *Worker) as(b *buffer.Lease, first bool) *buffer.Lease {
	if first || b.Attempts == 0 {
		return b
	}
	fresh := *b
	fresh.Attempts = 0
	return &fresh
}

// partFor finds the part that is like one, or adds it. When too many addresses are away
// the rest waits for the sink as a whole.
func partFor(parts []*orderedPart, one orderedPart) ([]*orderedPart, *orderedPart) {
	find := func() *orderedPart {
		for _, p := range parts {
			if p.away == one.away && p.address == one.address && p.first == one.first {
				return p
			}
		}
		return nil
	}
	found := find()
	if found == nil && one.away && len(parts) >= 2*mostParts {
		one.address = ""
		found = find()
	}
	if found == nil {
		found = &one
		parts = append(parts, found)
	}
	return parts, found
}

// asideInOrder is the rest of setAside where order is kept: of a key that has an event
// for an address that is away, nothing is sent.
func (w *Worker) asideInOrder(b *buffer.Lease) []buffer.Outcome {
	var (
		addresses []string
		of        = make([]string, len(b.Events)) // "": it may go
		waits     = map[string][]int64{}
		keys      = map[string]string{}
		rest      []int64
	)
	for i := range b.Events {
		e := &b.Events[i]
		address := w.addressOf(e)
		if address == "" || !w.circuits.isAway(address) {
			continue
		}
		if e.Key != nil {
			if first, known := keys[*e.Key]; known {
				address = first
			}
			keys[*e.Key] = address
		}
		of[i] = address
	}
	for i := range b.Events {
		e, address := &b.Events[i], of[i]
		if e.Key != nil {
			address = keys[*e.Key]
		}
		if address == "" {
			rest = append(rest, e.ID)
			continue
		}
		if _, known := waits[address]; !known {
			if len(addresses) == mostParts { // the others go with the first: they are away too
				address = addresses[0]
			} else {
				addresses = append(addresses, address)
			}
		}
		waits[address] = append(waits[address], e.ID)
	}
	switch {
	case len(addresses) == 0:
		return nil
	case len(addresses) == 1 && len(rest) == 0:
		if w.circuits.try(addresses[0], w.config.SendTimeout) {
			return nil
		}
		return []buffer.Outcome{w.asideFor(b, nil, addresses[0])}
	}
	parts := make([]buffer.Outcome, 0, len(addresses)+1)
	for _, address := range addresses {
		parts = append(parts, w.asideFor(b, waits[address], address))
	}
	if len(rest) > 0 {
		parts = append(parts, buffer.Outcome{
			Verdict: buffer.Retry, IDs: rest, GroupID: buffer.NewGroupID(), Attempts: b.Attempts,
		})
	}
	return parts
}

// mostRuns is how many runs a batch is divided into at once.
const mostRuns = 64

// inRuns makes groups that keep order: the same ones where no key stands in two of
// them, else runs of events that follow each other. The last run takes what is left,
// and is divided again.
func inRuns(b *buffer.Lease, groups []sink.Group) []sink.Group {
	of := make([]int, len(b.Events))
	for g := range groups {
		for _, i := range groups[g].Indexes {
			of[i] = g
		}
	}
	at := map[string]int{}
	shared := false
	for i := range b.Events {
		if key := b.Events[i].Key; key != nil {
			g, known := at[*key]
			shared = shared || known && g != of[i]
			at[*key] = of[i]
		}
	}
	if !shared {
		return groups
	}
	var runs []sink.Group
	for i := range b.Events {
		if i == 0 || of[i] != of[i-1] && len(runs) < mostRuns {
			runs = append(runs, sink.Group{Address: groups[of[i]].Address})
		}
		last := &runs[len(runs)-1]
		last.Indexes = append(last.Indexes, i)
	}
	return runs
}

// carry looks at parts that were not refused, or only as a whole. Where order is kept
// they keep the batch's attempts only if the first event of each key was the first in
// the batch too.
func (w *Worker) carry(b *buffer.Lease, outcomes []buffer.Outcome) []buffer.Outcome {
	if !w.config.Ordered || b.Attempts == 0 {
		return outcomes
	}
	first := firsts(b.Events)
	wasFirst := make(map[int64]bool, len(first))
	event := make(map[int64]*outbox.Event, len(first))
	for i := range b.Events {
		wasFirst[b.Events[i].ID], event[b.Events[i].ID] = first[i], &b.Events[i]
	}
	for i := range outcomes {
		o := &outcomes[i]
		if o.Verdict != buffer.Retry || o.IDs == nil {
			continue
		}
		events := make([]outbox.Event, 0, len(o.IDs))
		for _, id := range o.IDs {
			events = append(events, *event[id])
		}
		for j, is := range firsts(events) {
			if is && !wasFirst[o.IDs[j]] {
				o.Attempts = 0
			}
		}
	}
	return outcomes
}
