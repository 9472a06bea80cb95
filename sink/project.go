package sink

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
)

// What a table of the user's own does not have to send.

// missing tells whether the projection left events out.
func missing(b *outbox.Batch) bool {
	if b.ProjectErr != nil {
		return false
	}
	for i := range b.Events {
		if b.Events[i].Unprojected {
			return true
		}
	}
	return false
}

// unprojected: events that there is nothing to send of are buried, and the rest goes on
// at once under a new group_id. Nobody knows whether it was sent before with them.
func unprojected(b *outbox.Batch) []outbox.Outcome {
	dead := outbox.Outcome{Verdict: outbox.Dead, Attempts: b.Attempts, Error: outbox.NotProjected}
	rest := outbox.Outcome{Verdict: outbox.Retry, Attempts: b.Attempts}
	for i := range b.Events {
		o := &rest
		if b.Events[i].Unprojected {
			o = &dead
		}
		o.IDs = append(o.IDs, b.Events[i].ID)
	}
	if len(rest.IDs) == 0 {
		dead.IDs = nil
		return []outbox.Outcome{dead}
	}
	rest.GroupID = outbox.NewGroupID()
	return []outbox.Outcome{dead, rest}
}

// send sends what there is to send. Where the projection returned nothing that can be
// sent of some events, and the others are fine, it is these events' doing: they are
// refused, and the others need not wait. Else it may be the projection's, and while
// other batches go through the event is found by halving. It is so whoever held the batch
// before: what cannot be sent was not sent, unless the projection has changed since.
func (w *Worker) send(ctx context.Context, b *outbox.Batch) error {
	err := wrong(b)
	switch {
	case err == nil:
		return w.sink.Send(ctx, b)
	case errors.Is(b.ProjectErr, outbox.ErrDatabase):
		return Unavailable(notProjected(err))
	case len(b.Events) < 2:
	case b.ProjectErr == nil:
		if parts := parted(b); len(parts.Groups[0].Indexes) > 0 {
			return parts
		}
	case errors.Is(b.ProjectErr, outbox.ErrEventData):
		half := &DivideError{Groups: make([]Group, 2)}
		for i := range b.Events {
			g := &half.Groups[2*i/len(b.Events)]
			g.Indexes = append(g.Indexes, i)
		}
		return half
	}
	return Suspect(notProjected(err))
}

// wrong is what is wrong with the batch's projection, or with the first event's of which
// something is; nil: all of it can be sent.
func wrong(b *outbox.Batch) error {
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
func parted(b *outbox.Batch) *DivideError {
	groups := make([]Group, 1)
	for i := range b.Events {
		if err := b.Events[i].ProjectErr; err != nil {
			groups = append(groups, Group{Indexes: []int{i}, Err: Permanent(notProjected(err))})
			continue
		}
		groups[0].Indexes = append(groups[0].Indexes, i)
	}
	return &DivideError{Groups: groups}
}
