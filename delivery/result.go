package delivery

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// result is what one Send said. Only interpret reads a Send's error; record and decide read the result.
type result struct {
	// whole is the verdict on the batch, and on every event where each is nil.
	// Otherwise it is an outage, or zero.
	whole verdict
	// each is the verdict on every event, by index.
	each []verdict
	// split: nothing was sent, because the batch cannot go out under one group_id.
	split *sink.SplitError
	// fenced: a later owner gave this group_id up.
	fenced bool
	// tooLarge: the sink refused the batch's size.
	tooLarge bool
	// poison: an outage that kept hitting this batch while the sink accepted others is taken for a rejection.
	poison bool
	// divide: an outage of which nothing was accepted kept hitting this batch while the sink accepted others.
	divide bool
	// alone: the sink asked the batch's only event, or its address, to come back later, again and again, while it accepted others.
	alone bool
	// others: the sink accepts other events, so those that it rejected are to blame.
	others bool
	// hold: the batch was rejected as a whole and is not halved, because the sink may reject everything.
	hold bool
	// hung: the Send was given up.
	hung bool
}

// verdict is what a Send's result says of an event.
type verdict struct {
	kind kind
	// permanent: sending the event again cannot succeed.
	permanent bool
	// mayBePoison: the outage may be the event's own doing; timedOut: the time ran out.
	mayBePoison, timedOut bool
	// inProgram: a program of the configuration failed, and nothing was sent.
	inProgram bool
	// notAccepted: the outage's answer says that nothing of the batch was accepted.
	notAccepted bool
	// asked: the outage's answer asks to come back later, and says that nothing of the batch was accepted.
	asked bool
	// own: and asks only the batch, or its address.
	own bool
	// maybeAccepted: after the outage nobody knows what of the batch was accepted.
	maybeAccepted bool
	// inProgress: the answer says that the sink is still at an earlier send of the batch.
	inProgress bool
	// retryAfter is how long the sink asked to be left alone; 0 if it did not.
	retryAfter time.Duration
	// address is the address that is unavailable, "" for the sink as a whole.
	address string
	// err is why; nil if accepted.
	err error
}

type kind uint8

const (
	accepted    kind = iota // durably
	rejected                // the sink refused
	unavailable             // an outage, which says nothing of the event
	keyBlocked              // not sent: an earlier event of its key was not accepted
)

// interpret reads a Send's error. A result that names events which are not in the batch
// says nothing of any event: it counts as an outage, and no event as delivered.
func interpret(b *buffer.Batch, err error, addressOf func(*outbox.Event) string) result {
	if err == nil {
		return result{}
	}
	r := result{whole: verdictOf(err), fenced: errors.Is(err, sink.ErrFenced), tooLarge: errors.Is(err, sink.ErrTooLarge)}
	split, isSplit := errors.AsType[*sink.SplitError](err)
	some, isBatch := errors.AsType[*sink.BatchError](err)
	switch {
	case isSplit && split.Valid(len(b.Events)):
		return result{split: split, tooLarge: r.tooLarge || split.TooLarge}
	case isBatch && some.Valid(len(b.Events)):
		r.each = make([]verdict, len(b.Events))
		for _, e := range some.Events {
			v := verdictOf(e.Err)
			if v.kind == unavailable || v.kind == keyBlocked {
				v.address = addressOf(&b.Events[e.Index])
			}
			r.each[e.Index] = v
		}
		if r.whole.kind != unavailable {
			r.whole = verdict{}
		}
	case isSplit || isBatch:
		r.whole.kind = unavailable
	}
	return r
}

func verdictOf(err error) verdict {
	v := verdict{kind: rejected, err: err, permanent: errors.Is(err, sink.ErrPermanent)}
	v.timedOut = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	v.mayBePoison = v.timedOut || errors.Is(err, sink.ErrMaybePoison)
	v.inProgram = errors.Is(err, sink.ErrProgram) && v.mayBePoison
	v.notAccepted = errors.Is(err, sink.ErrNotAccepted)
	v.asked = errors.Is(err, sink.ErrAskedToWait)
	v.maybeAccepted = errors.Is(err, sink.ErrMaybeAccepted)
	v.inProgress = errors.Is(err, sink.ErrInProgress)
	if e, ok := errors.AsType[*sink.UnavailableError](err); ok {
		v.retryAfter = e.RetryAfter
	}
	if errors.Is(err, sink.ErrUnavailable) {
		v.kind, v.permanent = unavailable, false
	}
	if _, ok := errors.AsType[*sink.KeyBlockedError](err); ok {
		v.kind = keyBlocked
	}
	return v
}

// outage makes the verdict on the batch one that says nothing of its events: the Send was cut off.
func (r result) outage(mayBePoison bool) result {
	r.whole.kind, r.whole.permanent = unavailable, false
	r.whole.mayBePoison = r.whole.mayBePoison || mayBePoison
	return r
}

// isOutage reports whether nothing is known of any event.
func (r *result) isOutage() bool {
	return r.each == nil && r.split == nil && r.whole.kind == unavailable
}

// outageErr returns why nothing of the batch was delivered or refused; nil if something was.
func (r *result) outageErr() error {
	switch {
	case r.isOutage():
		return r.whole.err
	case r.each == nil || r.has(accepted) || r.has(rejected):
		return nil
	}
	for i := range r.each {
		if r.each[i].kind == unavailable {
			return r.each[i].err
		}
	}
	return nil
}

// settlesAnyway reports whether the sink accepted events, perhaps: that is written
// down even if the lease is lost.
func (r *result) settlesAnyway() bool {
	return r.each != nil || r.split == nil && r.whole.kind == accepted
}

// has reports whether the verdict on some event is of that kind.
func (r *result) has(k kind) bool {
	if r.each == nil {
		return r.whole.kind == k
	}
	return slices.ContainsFunc(r.each, func(v verdict) bool { return v.kind == k })
}

// of returns what the result says of these events of the batch, as the result of a batch of their own.
func (r *result) of(l *buffer.Lease, ids []int64) *result {
	part := &result{whole: r.whole}
	for i := range l.Events {
		if r.each != nil && slices.Contains(ids, l.Events[i].ID) {
			part.each = append(part.each, r.each[i])
		}
	}
	if r.split == nil {
		return part
	}
	for _, g := range r.split.Groups {
		if g.Err != nil && slices.Contains(ids, l.Events[g.Indexes[0]].ID) {
			part.whole = verdictOf(g.Err)
			part.whole.kind = rejected
		}
	}
	return part
}

// refusal returns why events were rejected for good, or the batch as a whole; nil if they were not, or others of the
// batch were accepted. all: nothing of the batch had another fate.
func (r *result) refusal() (why error, all bool) {
	switch {
	case r.split != nil:
		all = true
		for _, g := range r.split.Groups {
			if g.Err == nil {
				all = false
			} else {
				why = g.Err
			}
		}
		return why, all
	case r.each == nil && r.whole.kind == rejected && !r.poison:
		return r.whole.err, true
	case r.each == nil || r.has(accepted):
		return nil, false
	}
	for i := range r.each {
		if v := &r.each[i]; v.kind == rejected && v.permanent {
			why = v.err
		}
	}
	return why, !r.has(unavailable)
}

// Answer is what a Send's result says of the limits on batches: their size, and how many are sent at once.
type Answer uint8

// The answers.
const (
	Nothing     Answer = iota // the batch was not sent, or its events were refused
	Accepted                  // all of it
	TooLarge                  // the batch was refused, or has to be split, for its size
	Unavailable               // an outage
	TimedOut                  // an outage that a smaller batch might not have met
)

func (r *result) answer() Answer {
	switch {
	case r.tooLarge:
		return TooLarge
	case r.settlesAnyway() && r.each == nil:
		return Accepted
	case r.whole.kind != unavailable:
		return Nothing
	case r.whole.timedOut:
		return TimedOut
	}
	return Unavailable
}
