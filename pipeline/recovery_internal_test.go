package pipeline

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// TestRecoveries_Wait: an idle pipeline has no timer that wakes the process, and what there is to do later is done at the next tick.
func TestRecoveries_Wait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := recoveries{wake: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var ticks atomic.Int64
		var defers atomic.Bool
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for r.wait(ctx, began, defers.Load) {
				ticks.Add(1)
			}
		}()
		expect := func(subject string, after time.Duration, want int64) {
			t.Helper()
			time.Sleep(after) //nolint:forbidigo // in a synctest bubble
			synctest.Wait()
			testkit.Equal(t, subject, ticks.Load(), want)
		}
		expect("ticks while nothing waits", time.Hour+recoveryInterval/2, 0)
		r.add("")
		expect("ticks before the next is due", recoveryInterval/2-1, 0)
		expect("ticks once it is due", 1, 1)
		expect("ticks after that", time.Hour, 1)
		defers.Store(true)
		r.signal()
		expect("ticks while batches wait", 10*recoveryInterval, 11)
		defers.Store(false)
		expect("ticks when none waits any more", time.Hour, 12) // one was begun
		cancel()
		<-ended
	})
}
