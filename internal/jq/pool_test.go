package jq

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestPool_Busy has a run that waits longer than slotWait for the run of another. That is not its own time-out. A run
// whose request was sent waits on.
func TestPool_Busy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, mine, other := &pool{runs: queue{free: 1}}, &share{}, &share{}
		leave, err := p.enter(t.Context(), other, false)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*slotWait)
		defer cancel()
		if _, err := p.enter(ctx, mine, false); !errors.Is(err, ErrProcess) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) != slotWait {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if _, err := p.enter(ctx, mine, true); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*slotWait {
			t.Errorf("sent: got %v after %v", err, time.Since(began))
		}
		leave()
		if leave, err = p.enter(t.Context(), mine, false); err != nil {
			t.Fatal(err)
		}
		leave()
		if mine.runs != 0 || other.runs != 0 || len(p.runs.waiting) > 0 || p.runs.free != 1 {
			t.Errorf("%d and %d runs are left, %d wait, %d may begin", mine.runs, other.runs, len(p.runs.waiting), p.runs.free)
		}
	})
}

// TestPool_Fair has a program whose runs take 5 s, sixteen at a time, and one whose runs take 10 ms. The second one
// waits for the runs that have begun, and never for those that wait.
func TestPool_Fair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, slow, fast := &pool{runs: queue{free: 2}}, &share{}, &share{}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		use := func(s *share, took time.Duration) {
			leave, err := p.enter(ctx, s, true)
			if err != nil {
				return
			}
			defer leave()
			<-time.After(took)
		}
		var wait sync.WaitGroup
		defer wait.Wait()
		for range 16 {
			wait.Go(func() {
				for ctx.Err() == nil {
					use(slow, 5*time.Second)
				}
			})
		}
		for range 4 {
			wait.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					if use(fast, 10*time.Millisecond); time.Since(began) > 6*time.Second && ctx.Err() == nil {
						t.Errorf("waited for %v", time.Since(began))
					}
					<-time.After(100 * time.Millisecond)
				}
			})
		}
	})
}
