package delivery

import (
	"context"
	"errors"
	"fmt"
	"github.com/outboxrelay/relay/sink"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// What a table of the user's own does not have to send.

// missing tells whether the projection left events out.
func missing(b *buffer.Lease) bool {
	if b.ProjectErr != nil {
		return false
	}
	for i := range b.Events {
		if b.Events[i].NoProjection {
			return true
		}
	}
	return false
}

// unprojected: events that there is nothing to send of are buried, and the rest goes on
// at once under a new group_id. Nobody knows whether it was sent before with them.
func unprojected(b *buffer.Lease) []buffer.Outcome {
	dead := buffer.Outcome{Verdict: buffer.Dead, Attempts: b.Attempts, Error: buffer.NotProjected}
	rest := buffer.Outcome{Verdict: buffer.Retry, Attempts: b.Attempts}
	for i := range b.Events {
		o := &rest
		if b.Events[i].NoProjection {
			o = &dead
		}
		o.IDs = append(o.IDs, b.Events[i].ID)
	}
	if len(rest.IDs) == 0 {
		dead.IDs = nil
		return []buffer.Outcome{dead}
	}
	rest.GroupID = buffer.NewGroupID()
	return []buffer.Outcome{dead, rest}
}

// send sends what there is to send. Where the projection returned nothing that can be
// sent of some events, and the others are fine, it is these events' doing: they are
// refused, and the others need not wait. Else it may be the projection's, and while
// other batches go through the event is found by halving. It is so whoever held the batch
// before: what cannot be sent was not sent, unless the projection has changed since.
func (w *Worker) send(ctx context.Context, b *buffer.Lease) error {
	err := wrong(b)
	switch {
	case err == nil:
		b.FirstSend = b.UnfinishedLeases == 1 && b.Attempts == 0 && b.Outages == 0
		return w.sink.Send(ctx, &b.Batch)
	case errors.Is(b.ProjectErr, buffer.ErrDatabaseUnavailable):
		return sink.Unavailable(notProjected(err))
	case len(b.Events) < 2:
	case b.ProjectErr == nil:
		if parts := parted(b); len(parts.Groups[0].Indexes) > 0 {
			return parts
		}
	case errors.Is(b.ProjectErr, buffer.ErrEventData):
		half := &sink.SplitError{Groups: make([]sink.Group, 2)}
		for i := range b.Events {
			g := &half.Groups[2*i/len(b.Events)]
			g.Indexes = append(g.Indexes, i)
		}
		return half
	}
	return sink.MaybePoison(notProjected(err))
}

// wrong is what is wrong with the batch's projection, or with the first event's of which
// something is; nil: all of it can be sent.
func wrong(b *buffer.Lease) error {
	if b.ProjectErr != nil {
		return b.ProjectErr
	}
	for i := range b.Events {
		if err := b.Events[i].ProjectErr; err != nil {
			return err
		}
	}
	return nil
}

func notProjected(err error) error { return fmt.Errorf("not sent, its projection failed: %w", err) }

// parted parts the events that cannot be sent from those that can.
func parted(b *buffer.Lease) *sink.SplitError {
	groups := make([]sink.Group, 1)
	for i := range b.Events {
		if err := b.Events[i].ProjectErr; err != nil {
			groups = append(groups, sink.Group{Indexes: []int{i}, Err: sink.Permanent(notProjected(err))})
			continue
		}
		groups[0].Indexes = append(groups[0].Indexes, i)
	}
	return &sink.SplitError{Groups: groups}
}
