package sink

import (
	"context"
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

// send sends what there is to send. A projection that fails may be one event's doing:
// while other batches go through it is found by halving. Where it is known whose, the
// others need not wait, unless the batch may have been sent before.
func (w *Worker) send(ctx context.Context, b *outbox.Batch) error {
	wrong, bad := b.ProjectErr, 0
	for i := range b.Events {
		if err := b.Events[i].ProjectErr; err != nil {
			bad++
			if wrong == nil {
				wrong = err
			}
		}
	}
	fresh := b.Starts <= 1 && b.Outages == 0 && b.Attempts == 0
	switch {
	case wrong == nil:
		return w.sink.Send(ctx, b)
	case b.ProjectErr == nil && bad < len(b.Events) && fresh:
		return parted(b)
	}
	return Suspect(fmt.Errorf("not sent, its projection failed: %w", wrong))
}

// parted asks for the events that cannot be sent to be parted from those that can.
func parted(b *outbox.Batch) error {
	var good, bad Group
	for i := range b.Events {
		to := &good
		if b.Events[i].ProjectErr != nil {
			to = &bad
		}
		to.Indexes = append(to.Indexes, i)
	}
	return &DivideError{Groups: []Group{good, bad}}
}
