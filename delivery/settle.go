package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	settleTimeout = 15 * time.Second
	settleAgain   = 200 * time.Millisecond
	settleAtMost  = 5 * time.Second
	lastTry       = time.Second // for each step of a process that is out of time
	settleTries   = 5           // where the ledger knows all that a new owner needs
)

// settle writes the outcomes down and does not give up while the process may
// live. When it cannot (a lock, a connection lost in mid-commit), the ids that
// reached the sink are noted on the batch's own row, and only the delete is left
// for later.
func (w *Worker) settle(held, stop context.Context, b *buffer.Lease, outcomes []buffer.Outcome) error {
	var delivered []int64
	wait := settleAgain
	for tries := 1; ; tries++ {
		err := within(stop, func(ctx context.Context) error { return w.settler.Settle(ctx, b, outcomes) })
		if err == nil || errors.Is(err, buffer.ErrLocked) {
			return err
		}
		if errors.Is(err, buffer.ErrLeaseLost) {
			return w.wentThrough(held, tries > 1, err)
		}
		delivered = deliveredIDs(b, outcomes)
		w.config.Log.WarnContext(stop, "cannot settle a batch; trying again", "group_id", b.GroupID, "error", err)
		if len(delivered) > 0 && !b.DeliveryRecorded() {
			markErr := within(stop, func(ctx context.Context) error { return w.settler.MarkDelivered(ctx, b, delivered) })
			switch {
			case markErr == nil:
				return buffer.ErrLocked // its delete is done by whoever takes it over
			case errors.Is(markErr, buffer.ErrLeaseLost):
				return w.wentThrough(held, true, markErr)
			}
		}
		if (len(delivered) == 0 || b.DeliveryRecorded()) && tries == settleTries {
			return fmt.Errorf("batch %s was not settled, it will be taken over: %w", b.GroupID, err)
		}
		select {
		case <-stop.Done():
			return fmt.Errorf("batch %s was not settled, it will be taken over: %w", b.GroupID, err)
		case <-time.After(wait):
			wait = min(2*wait, settleAtMost)
		}
	}
}

// wentThrough looks at a ledger row that is not ours any more. When an earlier try
// to settle ended without an answer, and nobody can have taken the batch over since
// because the lease holds, then it was that try which took the row away.
func (w *Worker) wentThrough(held context.Context, unheard bool, lost error) error {
	if unheard && held.Err() == nil {
		return nil
	}
	return lost
}

// within runs one step of settling. What was sent is written down also after a
// signal, so the step does not end with stop, but lastTry after it.
func within(stop context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), settleTimeout)
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(lastTry, cancel) })()
	return step(ctx)
}
