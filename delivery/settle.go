package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	settleTimeout  = 15 * time.Second // for one step
	stopTimeout    = time.Second      // for one step, once the process is out of time
	firstRetry     = 200 * time.Millisecond
	maxRetry       = 5 * time.Second
	failingAfter   = 3 // tries the database is why nothing moves: a lock or a deadlock passes sooner
	maxSettleTries = 5 // where the ledger knows all that a new owner needs
)

// settle writes the outcomes down. If that fails (a lock, a connection lost during the commit), it records
// the ids that reached the sink on the batch's ledger row, and the delete is left for later. It tries both
// until one succeeds or the process has to end, because only this worker knows what reached the sink.
// unsettled is called when the first try has failed. If another worker of this process takes the batch over meanwhile, it knows
// what was accepted. A batch that the database refuses to settle (*buffer.SettleError) waits: as delivered if any of it was,
// otherwise it is sent again.
func (w *Worker) settle(leaseCtx, stop context.Context, l *buffer.Lease, outcomes []buffer.Outcome, unsettled func()) (err error) {
	if w.config.Tracer != nil {
		span := w.config.Tracer.Settle(leaseCtx)
		defer func() {
			if err != nil {
				span.Fail("settle_failed", err.Error())
				w.config.Tracer.Fail(leaseCtx, "settle_failed", err.Error())
			}
			span.End()
		}()
	}
	for i := range outcomes {
		if o := &outcomes[i]; o.Error != "" {
			o.Error = w.config.Redact(o.Error)
		}
	}
	wait := firstRetry
	for tries := 1; ; tries++ {
		err := w.settleStep(stop, l, func(ctx context.Context) error { return w.settler.Settle(ctx, l, outcomes) })
		if _, kept := errors.AsType[*buffer.KeptError](err); err == nil || kept || errors.Is(err, buffer.ErrLocked) {
			w.unsettled.settled(l)
			return err
		}
		refused, isRefused := errors.AsType[*buffer.SettleError](err)
		if isRefused && l.DeliveryRecorded() {
			w.unsettled.settled(l)
			return err
		}
		w.unsettled.remember(l, outcomes)
		if errors.Is(err, buffer.ErrLeaseLost) {
			return w.settledAnyway(leaseCtx, l, tries > 1, err)
		}
		if !isRefused && tries == failingAfter {
			w.failing.add(l.GroupID, err)
			defer w.failing.remove(l.GroupID)
		}
		if !isRefused {
			w.config.Log.WarnContext(leaseCtx, "settling a batch failed, will retry", "group_id", l.GroupID, "error", err)
		}
		if tries == 1 && unsettled != nil {
			unsettled()
		}
		delivered := deliveredIDs(l, outcomes)
		record := len(delivered) > 0 && !l.DeliveryRecorded()
		var (
			then  func(ctx context.Context) error
			dead  []buffer.Outcome
			group uuid.UUID
		)
		switch {
		case record: // the next owner deletes them
			then = func(ctx context.Context) error { return w.settler.MarkDelivered(ctx, l, delivered) }
		case isRefused:
			var waiting []buffer.Outcome
			waiting, dead, group = w.policy.putOff(l, outcomes, refused)
			if crashLoops(l) || errors.Is(l.NotRead, buffer.ErrKillsReader) {
				staySuspect(l, waiting)
			}
			then = func(ctx context.Context) error { return w.settler.Settle(ctx, l, waiting) }
		}
		if then != nil {
			thenErr := w.settleStep(stop, l, then)
			switch {
			case thenErr == nil && isRefused:
				w.unsettled.putOff(group, dead)
				return refused
			case thenErr == nil:
				return buffer.ErrLocked
			case errors.Is(thenErr, buffer.ErrLeaseLost):
				return w.settledAnyway(leaseCtx, l, true, thenErr)
			}
		}
		// Nobody can take it over either, and a lease that ends later would count as a death of this owner.
		noWrites := errors.Is(err, buffer.ErrNoWrites)
		if !record && tries >= maxSettleTries && !noWrites {
			return fmt.Errorf("batch %s was not settled, it will be taken over: %w", l.GroupID, err)
		}
		select {
		case <-stop.Done():
			return fmt.Errorf("batch %s was not settled, it will be taken over: %w", l.GroupID, err)
		case <-time.After(wait):
			if wait = min(2*wait, maxRetry); noWrites { // before another owner takes it over
				wait = min(wait, time.Second)
			}
		}
	}
}

// settledAnyway decides what a lost lease means. If an earlier try to settle ended without an
// answer, and the lease has not ended, that try removed the row.
func (w *Worker) settledAnyway(leaseCtx context.Context, l *buffer.Lease, unanswered bool, lost error) error {
	if unanswered && leaseCtx.Err() == nil {
		w.unsettled.settled(l)
		return nil
	}
	return lost
}

// settleStep runs one step of settling, whose panic is an error. The step may end stopTimeout after stop, so that
// what was sent is written down after a signal too.
func (w *Worker) settleStep(stop context.Context, l *buffer.Lease, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), settleTimeout)
	defer cancel()
	defer context.AfterFunc(stop, func() { time.AfterFunc(stopTimeout, cancel) })()
	err := Guard(func() error { return step(ctx) })
	LogPanic(stop, w.config.Log, "settling a batch", err, "group_id", l.GroupID)
	return err
}

// deliveredIDs returns the ids that reached the sink.
func deliveredIDs(l *buffer.Lease, outcomes []buffer.Outcome) []int64 {
	var ids []int64
	for i := range outcomes {
		if outcomes[i].Verdict != buffer.Delivered {
			continue
		}
		if outcomes[i].IDs == nil {
			return l.IDs()
		}
		ids = append(ids, outcomes[i].IDs...)
	}
	return ids
}

// failingSettles are the batches whose settle fails and is tried again.
type failingSettles struct {
	mu      sync.Mutex
	batches map[uuid.UUID]error
}

func (f *failingSettles) add(groupID uuid.UUID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.batches == nil {
		f.batches = map[uuid.UUID]error{}
	}
	f.batches[groupID] = err
}

func (f *failingSettles) remove(groupID uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.batches, groupID)
}

// Unsettled is why batches are not settled that were sent, though their settle is tried again and again; nil if there are none.
func (w *Worker) Unsettled() error {
	w.failing.mu.Lock()
	defer w.failing.mu.Unlock()
	for _, err := range w.failing.batches {
		return fmt.Errorf("settling batches fails: %w", err)
	}
	return nil
}
