package jq

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
)

// TestPool_Busy has a run that waits longer than slotWait for the run of another. That is not its own time-out.
func TestPool_Busy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pool{slots: semaphore.NewWeighted(1)}
		if err := p.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*slotWait)
		defer cancel()
		if err := p.acquire(ctx); !errors.Is(err, ErrProcess) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) != slotWait {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("when the context ends first: got %v", err)
		}
		p.slots.Release(1)
		if err := p.acquire(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
