package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// hungCalls are the calls of the sink that did not return after their context had ended. Nothing can end such a call:
// it keeps its goroutine and its batch in memory until it returns, so each takes the place of a worker.
type hungCalls struct {
	mu    sync.Mutex
	calls []*hungCall // the oldest first
}

type hungCall struct {
	groupID uuid.UUID
	began   time.Time
}

// errHung is the outage of a call that was given up.
var errHung = errors.New("the sink library does not return")

// callSink calls the sink for the batch, as guardSend does. The sink returns before ctx's deadline, or soon after; if it has
// not returned SendGrace after ctx's end, the call is given up: the error is errHung, and what the call returns later
// is dropped, because another owner may have the batch then. leaseCtx is Work's.
func callSink[T any](w *Worker, leaseCtx, ctx context.Context, l *buffer.Lease, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	began, wait := time.Now(), w.config.SendGrace
	grace := func() time.Duration {
		if leaseCtx.Err() != nil && !leaseLost(leaseCtx) { // the process has no time left
			wait = min(wait, stopTimeout)
		}
		return wait
	}
	r, late := await(ctx, grace, func() (r result) {
		r.err = w.guardSend(ctx, l.GroupID.String(), func() (err error) {
			r.value, err = call()
			return err
		})
		return r
	})
	if late == nil {
		return r.value, r.err
	}
	one := &hungCall{l.GroupID, began}
	w.hung.add(one, w.config.Observer.Hanging)
	w.config.Log.ErrorContext(leaseCtx, "sink does not return, gave its batch up; it will be sent again, and one worker less sends until "+
		"the sink returns; restart the relay to get the worker back, and report this as a fault of the sink's library",
		"group_id", l.GroupID, "events", l.Len(), "after", time.Since(began).Round(time.Millisecond))
	go func() { // nobody can wait for it
		<-late
		w.hung.remove(one, w.config.Observer.Hanging)
		w.config.Log.InfoContext(leaseCtx, "sink returned at last, its worker sends again", "group_id", one.groupID,
			"after", time.Since(began).Round(time.Millisecond))
	}()
	var none T
	return none, sink.Unavailable(fmt.Errorf("%w: gave up %v after the end of its time", errHung, wait))
}

// await returns what call returns, unless that takes longer than grace after ctx's end: then it returns the channel on which
// the result comes at last.
func await[T any](ctx context.Context, grace func() time.Duration, call func() T) (result T, late <-chan T) {
	answer := make(chan T, 1)
	go func() { answer <- call() }()
	select {
	case result = <-answer:
		return result, nil
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace())
	defer timer.Stop()
	select {
	case result = <-answer:
		return result, nil
	case <-timer.C:
		return result, answer
	}
}

func (h *hungCalls) add(one *hungCall, observe func(calls int)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, one)
	observe(len(h.calls))
}

func (h *hungCalls) remove(one *hungCall, observe func(calls int)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = slices.DeleteFunc(h.calls, func(other *hungCall) bool { return other == one })
	observe(len(h.calls))
}

// Hung is which call of the sink does not return, and for how long; nil if there is none.
func (w *Worker) Hung() error {
	w.hung.mu.Lock()
	defer w.hung.mu.Unlock()
	if len(w.hung.calls) == 0 {
		if w.hungChecks.Load() > 0 {
			return errHungCheck
		}
		return nil
	}
	oldest := w.hung.calls[0]
	return fmt.Errorf("%w from batch %s for %v; calls that hang: %d, each keeps a worker; restart the relay", errHung, oldest.groupID,
		time.Since(oldest.began).Round(time.Second), len(w.hung.calls))
}
