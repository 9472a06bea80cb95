package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// errHungCheck is the outage while a Check does not return.
var errHungCheck = errors.New("the sink library does not return from a check; restart the relay")

// Check calls the sink's Check. If that has not returned SendGrace after ctx's end, it is given up, and until it returns no
// other is begun: each would keep a goroutine.
func (w *Worker) Check(ctx context.Context) error {
	began := time.Now()
	err := w.check(ctx)
	w.config.Tracer.CheckFailed(ctx, began, err)
	return err
}

func (w *Worker) check(ctx context.Context) error {
	if w.hungChecks.Load() > 0 {
		return sink.Unavailable(errHungCheck)
	}
	grace := func() time.Duration {
		if errors.Is(ctx.Err(), context.Canceled) { // nobody waits for the answer
			return min(w.config.SendGrace, stopTimeout)
		}
		return w.config.SendGrace
	}
	err, late := await(ctx, grace, func() error { return Guard(func() error { return w.sink.Check(ctx) }) })
	if late == nil {
		return err
	}
	w.hungChecks.Add(1)
	w.config.Log.ErrorContext(ctx, "sink does not return from a check, gave it up; restart the relay, and report this as a fault of the sink's library")
	go func() { // nobody can wait for it
		err := <-late
		w.hungChecks.Add(-1)
		w.config.Log.InfoContext(ctx, "sink returned from a check at last", "error", err)
	}()
	return sink.Unavailable(errHungCheck)
}
