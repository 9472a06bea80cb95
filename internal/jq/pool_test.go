package jq

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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
		begun, err := p.enter(t.Context(), other, false, false)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*slotWait)
		defer cancel()
		if _, err := p.enter(ctx, mine, false, false); !errors.Is(err, ErrProcess) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) != slotWait {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if _, err := p.enter(ctx, mine, true, false); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*slotWait {
			t.Errorf("sent: got %v after %v", err, time.Since(began))
		}
		p.runs.leave(begun, time.Since(began))
		if begun, err = p.enter(t.Context(), mine, false, false); err != nil {
			t.Fatal(err)
		}
		p.runs.leave(begun, 0)
		if len(p.runs.active) > 0 || len(p.runs.waiting) > 0 || p.runs.free != 1 {
			t.Errorf("%d programs are active, %d runs wait, %d may begin", len(p.runs.active), len(p.runs.waiting), p.runs.free)
		}
	})
}

// use is a run that takes a time, as Program.run does it.
func (q *queue) use(ctx context.Context, s *share, takes time.Duration) {
	for long := false; ; long = true {
		begun, ok := q.enter(ctx, s, long)
		if !ok {
			return
		}
		took := takes
		if begun.short {
			took = min(takes, shortRun)
		}
		<-time.After(took)
		if q.leave(begun, took); took == takes {
			return
		}
	}
}

// TestQueue_Fair has programs whose runs take 5 s, several at a time, and some whose runs take 10 ms. These wait for no run that
// waits. With a child for short runs they wait for no run of 5 s at all, once those are known.
func TestQueue_Fair(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slow, atOnce, reserved int
		most                   time.Duration
	}{
		"one program":                {1, 16, 0, 5100 * time.Millisecond},
		"many programs":              {40, 4, 0, 5100 * time.Millisecond},
		"a child for short runs":     {1, 16, 1, 100 * time.Millisecond},
		"many, and a child for them": {40, 4, 1, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := &queue{free: 2, reserved: c.reserved}
				ctx, cancel := context.WithTimeout(t.Context(), 7*time.Minute)
				defer cancel()
				var wait sync.WaitGroup
				defer wait.Wait()
				runs := make([]atomic.Int64, c.slow)
				for i := range c.slow {
					slow := &share{}
					for range c.atOnce {
						wait.Go(func() {
							for ctx.Err() == nil {
								q.use(ctx, slow, 5*time.Second)
								runs[i].Add(1)
							}
						})
					}
				}
				<-time.After(4 * time.Minute) // each slow program has run
				for range 3 {
					fast := &share{}
					for range 2 {
						wait.Go(func() {
							for ctx.Err() == nil {
								began := time.Now()
								if q.use(ctx, fast, 10*time.Millisecond); time.Since(began) > c.most && ctx.Err() == nil {
									t.Errorf("a short run took %v", time.Since(began))
								}
								<-time.After(100 * time.Millisecond)
							}
						})
					}
				}
				wait.Wait()
				for i := range runs {
					if n := int(runs[i].Load()); n < 100/c.slow {
						t.Errorf("a slow program had %d runs", n)
					}
				}
			})
		})
	}
}

// TestQueue_BecomesSlow has programs whose runs were short and take 5 s all at once. In the child for short runs each of them can
// delay a short run by shortRun.
func TestQueue_BecomesSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const programs = 16
		q, fast := &queue{free: 2, reserved: 1}, &share{}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var wait sync.WaitGroup
		for range programs {
			slow := &share{}
			q.use(ctx, slow, time.Millisecond)
			wait.Go(func() {
				for ctx.Err() == nil {
					q.use(ctx, slow, 5*time.Second)
				}
			})
		}
		for ctx.Err() == nil {
			began := time.Now()
			if q.use(ctx, fast, time.Millisecond); time.Since(began) > (programs+1)*shortRun && ctx.Err() == nil {
				t.Errorf("a short run took %v", time.Since(began))
			}
			<-time.After(10 * time.Millisecond)
		}
		wait.Wait()
	})
}
