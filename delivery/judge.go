package delivery

import (
	"context"
	"errors"
	"fmt"
	"github.com/outboxrelay/relay/sink"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// judge turns a Send's answer into outcomes:
//
//	nil                    all delivered
//	ErrUnavailable         all wait; no attempt is counted
//	*SplitError           each part gets a group_id of its own, at once, but for those
//	                       that are refused while others of the batch can be sent
//	*BatchError            each event as its own error says
//	refused as a whole     halved, until the bad event stands alone; alone it is
//	                       buried, at once if Permanent, else after MaxAttempts
func (w *Worker) judge(b *buffer.Lease, a answer) []buffer.Outcome {
	err := a.err
	if err == nil {
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	}
	divide, isDivide := errors.AsType[*sink.SplitError](err)
	batchErr, isBatch := errors.AsType[*sink.BatchError](err)
	switch {
	case isDivide && divide.Valid(len(b.Events)):
		groups := divide.Groups
		if w.config.Ordered {
			groups = inRuns(b, groups)
		}
		return w.carry(b, w.divided(b, groups))
	case isBatch && batchErr.Valid(len(b.Events)):
		return w.each(b, batchErr)
	case isDivide || isBatch || errors.Is(err, sink.ErrUnavailable):
		// Where an answer names events that are not there, whom it means cannot be
		// known, and nothing is taken for delivered.
		return []buffer.Outcome{w.wait(b, nil, a.address, err)}
	case len(b.Events) > 1:
		halves := w.carry(b, halve(b, err.Error()))
		if a.struck {
			w.strikes.inherit(b.GroupID, []uuid.UUID{halves[0].GroupID, halves[1].GroupID})
		}
		return halves
	default:
		return []buffer.Outcome{w.refused(b, nil, err)}
	}
}

// each judges the events one by one; those a BatchError does not name were
// delivered. Events that share a fate, and the address that is away, share an
// outcome, and so a new group_id.
func (w *Worker) each(b *buffer.Lease, batchErr *sink.BatchError) []buffer.Outcome {
	why := make([]error, len(b.Events))
	for _, e := range batchErr.Events {
		why[e.Index] = e.Err
	}
	if w.config.Ordered {
		return w.eachInOrder(b, why)
	}
	var (
		delivered, again []int64
		againErr         error
		away             aways
		outcomes         []buffer.Outcome
	)
	for i, err := range why {
		id := b.Events[i].ID
		switch {
		case err == nil:
			delivered = append(delivered, id)
		case errors.Is(err, sink.ErrUnavailable):
			away.add(w.addressOf(&b.Events[i]), id, err)
		case w.kills(b, err):
			outcomes = append(outcomes, w.dead(b, []int64{id}, err))
		default:
			again, againErr = append(again, id), err
		}
	}
	switch len(why) { // all share one fate: the group_id stays
	case len(delivered):
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	case len(again):
		return []buffer.Outcome{w.retry(b, nil, againErr)}
	}
	if len(delivered) > 0 {
		outcomes = append(outcomes, buffer.Outcome{Verdict: buffer.Delivered, IDs: delivered})
	}
	for _, one := range away {
		if len(one.ids) == len(why) {
			return []buffer.Outcome{w.wait(b, nil, one.address, one.err)}
		}
		slices.Sort(one.ids)
		outcomes = append(outcomes, w.wait(b, one.ids, one.address, one.err))
	}
	if len(again) > 0 {
		outcomes = append(outcomes, w.retry(b, again, againErr))
	}
	return outcomes
}

// aways are the events whose addresses are away, by address, in the order of their
// first event.
type aways []awayPart

type awayPart struct {
	address string
	ids     []int64
	err     error
}

func (a *aways) add(address string, id int64, err error) {
	at := slices.IndexFunc(*a, func(p awayPart) bool { return p.address == address })
	if at < 0 && len(*a) >= mostParts {
		address = ""
		at = slices.IndexFunc(*a, func(p awayPart) bool { return p.address == "" })
	}
	if at < 0 {
		*a = append(*a, awayPart{address: address})
		at = len(*a) - 1
	}
	one := &(*a)[at]
	one.ids, one.err = append(one.ids, id), longest(one.err, err)
}

// wait: the sink, or the address, is away; no attempt is counted. Where the sink
// said for how long, nothing comes sooner.
func (w *Worker) wait(b *buffer.Lease, ids []int64, address string, err error) buffer.Outcome {
	o := buffer.Outcome{
		Verdict: buffer.Retry, IDs: ids, GroupID: groupFor(b, ids), After: w.config.Backoff.After(b.Outages + 1),
		Attempts: b.Attempts, Outages: b.Outages + 1, Address: &address, Error: err.Error(),
	}
	if asked := retryAfter(err); asked > 0 {
		o.After, o.Address = max(o.After, asked), nil
	}
	return o
}

// retry: refused, and to be tried again.
func (w *Worker) retry(b *buffer.Lease, ids []int64, err error) buffer.Outcome {
	return buffer.Outcome{
		Verdict: buffer.Retry, IDs: ids, GroupID: groupFor(b, ids), After: w.config.Backoff.After(b.Attempts + 1),
		Attempts: b.Attempts + 1, Error: err.Error(),
	}
}

func (w *Worker) dead(b *buffer.Lease, ids []int64, err error) buffer.Outcome {
	return buffer.Outcome{Verdict: buffer.Dead, IDs: ids, Attempts: b.Attempts + 1, Error: err.Error()}
}

// kills tells whether a refusal is an event's last.
func (w *Worker) kills(b *buffer.Lease, err error) bool {
	return !w.config.NeverBury && (errors.Is(err, sink.ErrPermanent) || b.Attempts+1 >= w.config.MaxAttempts)
}

// refused is the verdict on an event that stands alone.
func (w *Worker) refused(b *buffer.Lease, ids []int64, err error) buffer.Outcome {
	if w.kills(b, err) {
		return w.dead(b, ids, err)
	}
	return w.retry(b, ids, err)
}

// unfinished is what becomes of a batch that keeps taking its worker down: halved,
// until the event that does it stands alone; that is buried, unless it turns out to
// have arrived, and nobody may send it any more.
func (w *Worker) unfinished(ctx context.Context, b *buffer.Lease) []buffer.Outcome {
	why := fmt.Sprintf("%d owners in a row did not finish this batch", b.UnfinishedLeases-1)
	switch {
	case len(b.Events) > 1:
		return w.carry(b, halve(b, why))
	case w.config.NeverBury:
		return []buffer.Outcome{w.retry(b, nil, errors.New(why))}
	}
	if f, ok := w.sink.(sink.Fencer); ok {
		ctx, cancel := context.WithTimeout(ctx, w.config.SendTimeout)
		defer cancel()
		delivered, err := f.Fence(ctx, &b.Batch)
		switch {
		case err != nil:
			return []buffer.Outcome{w.wait(b, nil, "", err)}
		case delivered:
			return []buffer.Outcome{{Verdict: buffer.Delivered}}
		}
	}
	return []buffer.Outcome{{Verdict: buffer.Dead, Attempts: b.Attempts, Error: why + ", in which it stood alone"}}
}

// groupFor keeps the group_id of a batch that stays whole.
func groupFor(b *buffer.Lease, ids []int64) uuid.UUID {
	if ids == nil {
		return b.GroupID
	}
	return buffer.NewGroupID()
}

// halve parts a batch in two, each due at once. Neither attempts nor outages
// count on.
func halve(b *buffer.Lease, why string) []buffer.Outcome {
	ids := b.IDs()
	middle := (len(ids) + 1) / 2
	parts := make([]buffer.Outcome, 0, 2)
	for _, half := range [][]int64{ids[:middle], ids[middle:]} {
		parts = append(parts, buffer.Outcome{
			Verdict: buffer.Retry, IDs: half, GroupID: buffer.NewGroupID(), Attempts: b.Attempts, Error: why,
		})
	}
	return parts
}

func (w *Worker) divided(b *buffer.Lease, groups []sink.Group) []buffer.Outcome {
	parts := make([]buffer.Outcome, 0, len(groups))
	for _, g := range groups {
		ids := make([]int64, len(g.Indexes))
		for i, at := range g.Indexes {
			ids[i] = b.Events[at].ID
		}
		if g.Err != nil {
			parts = append(parts, w.refused(b, ids, g.Err))
			continue
		}
		parts = append(parts, buffer.Outcome{
			Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID(), Attempts: b.Attempts,
		})
	}
	return parts
}

// finishMarked: what was delivered before is deleted now, the rest goes on under
// a new group_id.
func finishMarked(b *buffer.Lease) []buffer.Outcome {
	was := make(map[int64]struct{}, len(b.Delivered))
	for _, id := range b.Delivered {
		was[id] = struct{}{}
	}
	var delivered, rest []int64
	for i := range b.Events {
		if id := b.Events[i].ID; contains(was, id) {
			delivered = append(delivered, id)
		} else {
			rest = append(rest, id)
		}
	}
	if len(rest) == 0 {
		return []buffer.Outcome{{Verdict: buffer.Delivered}}
	}
	return []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: append([]int64{}, delivered...)},
		{Verdict: buffer.Retry, IDs: rest, GroupID: buffer.NewGroupID(), Attempts: b.Attempts},
	}
}

func contains(set map[int64]struct{}, id int64) bool {
	_, ok := set[id]
	return ok
}

// deliveredIDs are the ids that outcomes say reached the sink.
func deliveredIDs(b *buffer.Lease, outcomes []buffer.Outcome) []int64 {
	var ids []int64
	for i := range outcomes {
		if outcomes[i].Verdict != buffer.Delivered {
			continue
		}
		if outcomes[i].IDs == nil {
			return b.IDs()
		}
		ids = append(ids, outcomes[i].IDs...)
	}
	return ids
}

func retryAfter(err error) time.Duration {
	if away, ok := errors.AsType[*sink.UnavailableError](err); ok {
		return away.RetryAfter
	}
	return 0
}

// longest keeps the error that asks for the longest pause.
func longest(a, b error) error {
	if a == nil || retryAfter(b) > retryAfter(a) {
		return b
	}
	return a
}
