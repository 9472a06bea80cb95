package httpsink

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// sendAll sends batches from that many workers until the time is over.
func sendAll(t *testing.T, sinks []*Sink, workers int, atLength time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	defer time.AfterFunc(atLength, stop).Stop()
	var group sync.WaitGroup
	for _, s := range sinks {
		for range workers {
			group.Go(func() {
				for ctx.Err() == nil {
					// A worker gives each Send its own deadline.
					one, cancel := context.WithTimeout(ctx, time.Minute)
					if err := s.Send(one, oneEvent()); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	group.Wait()
}

// TestRateLimit_AnyWindow expects four workers to keep the rate over a minute, evenly, and to exceed it in no
// window of a second.
func TestRateLimit_AnyWindow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate     sink.Rate
		response time.Duration
		workers  int
		from, to int
	}{
		"at once":            {sink.Rate{Requests: 10, Per: time.Second}, 0, 4, 600, 601},
		"slow":               {sink.Rate{Requests: 10, Per: time.Second}, 350 * time.Millisecond, 4, 599, 601},
		"slower than that":   {sink.Rate{Requests: 10, Per: time.Second}, time.Second, 4, 239, 241},
		"in minutes":         {sink.Rate{Requests: 600, Per: time.Minute}, 0, 4, 600, 601},
		"not in whole parts": {sink.Rate{Requests: 7, Per: time.Second}, 0, 4, 419, 421},
		"quick":              {sink.Rate{Requests: 500, Per: time.Second}, 0, 20, 29_990, 30_001},
		"of one":             {sink.Rate{Requests: 1, Per: 7 * time.Second}, 0, 4, 9, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var came arrivals
				s, done := newBubbleSink(t, Config{Rate: c.rate, Timeout: 5 * time.Second}, func(http.ResponseWriter, *http.Request) {
					came.note()
					<-time.After(c.response)
				})
				defer done()
				sendAll(t, []*Sink{s}, c.workers, time.Minute)
				all := came.list()
				if n := len(all); n < c.from || n > c.to {
					t.Errorf("%d requests in a minute, want %d to %d", n, c.from, c.to)
				}
				if n := maxInWindow(all, c.rate.Per); n > c.rate.Requests {
					t.Errorf("%d requests within %v, want %d at the most", n, c.rate.Per, c.rate.Requests)
				}
				pace := c.rate.Per / time.Duration(c.rate.Requests)
				for i := range all[1:] {
					if apart := all[i+1].Sub(all[i]); apart < pace-time.Microsecond {
						t.Fatalf("requests %d and %d are %v apart, want %v", i, i+1, apart, pace)
					}
				}
			})
		})
	}
}

// TestRateLimit_LateTimers expects the next requests to make up for a late one, and no window to have more.
func TestRateLimit_LateTimers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate sink.Rate
		late time.Duration // at the most
		slow float64       // how much slower it may get
	}{
		{sink.Rate{Requests: 10, Per: time.Second}, 10 * time.Millisecond, 0.02},
		{sink.Rate{Requests: 100, Per: time.Second}, 5 * time.Millisecond, 0.01},
		{sink.Rate{Requests: 1000, Per: time.Second}, 5 * time.Millisecond, 0.05},
		{sink.Rate{Requests: 10, Per: time.Second}, time.Second, 1}, // a machine that hangs
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(Config{Rate: c.rate})
			var all []time.Time
			began, ctx := time.Now(), t.Context()
			for time.Since(began) < time.Minute {
				at, err := l.token(ctx)
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Until(at))
				if rand.IntN(3) == 0 {
					<-time.After(rand.N(c.late))
				}
				all = append(all, time.Now())
				l.consume(time.Now())
			}
			want := float64(c.rate.Requests) * float64(time.Minute/c.rate.Per)
			if n := float64(len(all)); n > want+1 || n < want*(1-c.slow) {
				t.Errorf("%v, up to %v late: %v requests in a minute, want %v", c.rate, c.late, n, want)
			}
			if n := maxInWindow(all, c.rate.Per); n > c.rate.Requests {
				t.Errorf("%v, up to %v late: %d requests within %v", c.rate, c.late, n, c.rate.Per)
			}
		})
	}
}

func TestRateLimit_NoBurstAfterIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came arrivals
		s, done := newBubbleSink(t, Config{Rate: sink.Rate{Requests: 10, Per: time.Second}}, func(http.ResponseWriter, *http.Request) { came.note() })
		defer done()
		for range 3 {
			sendAll(t, []*Sink{s}, 4, 250*time.Millisecond)
			<-time.After(time.Hour)
		}
		if all := came.list(); len(all) != 9 || maxInWindow(all, 100*time.Millisecond) != 1 {
			t.Errorf("requests at %v, want three times three, 100ms apart", all)
		}
	})
}

// TestRateLimit_SlotAfterDeadline expects an outage at once. The next batch gets the token.
func TestRateLimit_SlotAfterDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came arrivals
		s, done := newBubbleSink(t, Config{Rate: sink.Rate{Requests: 1, Per: time.Hour}}, func(http.ResponseWriter, *http.Request) { came.note() })
		defer done()
		if err := s.Send(t.Context(), oneEvent()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
			err := s.Send(ctx, oneEvent())
			cancel()
			timed, ok := errors.AsType[*sink.UnavailableError](err)
			if !ok || timed.RetryAfter != time.Hour || errors.Is(err, sink.ErrMaybePoison) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want RetryAfter of an hour", err)
			}
			if !strings.Contains(err.Error(), "rate limit, next slot in 1h0m0s (1 per 1h0m0s)") {
				t.Errorf("got %q", err)
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("it took %v to say so", took)
			}
		}
		if err := s.Send(t.Context(), oneEvent()); err != nil {
			t.Fatal(err)
		}
		if all := came.list(); len(all) != 2 || all[1].Sub(all[0]) != time.Hour {
			t.Errorf("requests at %v, want two, an hour apart", all)
		}
	})
}

// TestRateLimit_Cancelled expects no request; the next one in the queue begins.
func TestRateLimit_Cancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came arrivals
		s, done := newBubbleSink(t, Config{Rate: sink.Rate{Requests: 1, Per: time.Second}}, func(http.ResponseWriter, *http.Request) { came.note() })
		defer done()
		if err := s.Send(t.Context(), oneEvent()); err != nil {
			t.Fatal(err)
		}
		ctx, callOff := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for range 2 { // one with the turn, and one behind it
			group.Go(func() {
				if err := s.Send(ctx, oneEvent()); !errors.Is(err, sink.ErrUnavailable) {
					t.Errorf("got %v, want an outage", err)
				}
			})
		}
		synctest.Wait()
		<-time.After(500 * time.Millisecond)
		callOff()
		group.Wait()
		if err := s.Send(t.Context(), oneEvent()); err != nil {
			t.Fatal(err)
		}
		if all := came.list(); len(all) != 2 || all[1].Sub(all[0]) != time.Second {
			t.Errorf("requests at %v, want two, a second apart", all)
		}
	})
}

// TestRateLimit_RejectedBatch expects a batch that is not sent to use no token.
func TestRateLimit_RejectedBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came arrivals
		s, done := newBubbleSink(t, Config{Rate: sink.Rate{Requests: 1, Per: time.Hour}, MaxBytes: 1000}, func(http.ResponseWriter, *http.Request) { came.note() })
		defer done()
		large := oneEvent()
		large.Events[0].Payload = []byte(`"` + strings.Repeat("x", 2000) + `"`)
		if err := s.Send(t.Context(), large); !errors.Is(err, sink.ErrPermanent) {
			if some, ok := errors.AsType[*sink.BatchError](err); !ok || !errors.Is(some.Events[0].Err, sink.ErrPermanent) {
				t.Errorf("got %v, want a rejection", err)
			}
		}
		began := time.Now()
		if err := s.Send(t.Context(), oneEvent()); err != nil || time.Since(began) > 0 {
			t.Errorf("the first request waited %v: %v", time.Since(began), err)
		}
	})
}

func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came arrivals
		var now, peak atomic.Int64
		s, done := newBubbleSink(t, Config{MaxInFlight: 3}, func(http.ResponseWriter, *http.Request) {
			came.note()
			peak.Store(max(peak.Load(), now.Add(1)))
			<-time.After(time.Second)
			now.Add(-1)
		})
		defer done()
		sendAll(t, []*Sink{s}, 10, 9500*time.Millisecond)
		if n := len(came.list()); peak.Load() != 3 || n != 30 {
			t.Errorf("%d requests, %d at once, want 30 and 3", n, peak.Load())
		}
	})
}

func TestMaxInFlight_NoRoomBeforeDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, done := newBubbleSink(t, Config{MaxInFlight: 1, Timeout: time.Hour}, func(http.ResponseWriter, *http.Request) { <-time.After(50 * time.Minute) })
		defer done()
		first := make(chan error, 1)
		go func() { first <- s.Send(t.Context(), oneEvent()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		began := time.Now()
		err := s.Send(ctx, oneEvent())
		if !errors.Is(err, sink.ErrUnavailable) || errors.Is(err, sink.ErrMaybePoison) || !strings.Contains(err.Error(), "max_in_flight") {
			t.Errorf("got %v, want an outage that names max_in_flight", err)
		}
		if took := time.Since(began); took != 10*time.Minute {
			t.Errorf("it gave up after %v, want half of its time", took)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// TestPause_UsedUpQuota expects the next request when the quota is reset.
func TestPause_UsedUpQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came arrivals
		left, since := 3, time.Now()
		var mu sync.Mutex
		s, done := newBubbleSink(t, Config{MaxInFlight: 1}, func(w http.ResponseWriter, _ *http.Request) {
			came.note()
			mu.Lock()
			defer mu.Unlock()
			if time.Since(since) >= 3*time.Second {
				left, since = 3, time.Now()
			}
			if left == 0 {
				t.Error("a request exceeded the API's limit")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			if left--; left == 0 {
				w.Header().Set("RateLimit", `"default";r=0;t=3`)
			}
		})
		defer done()
		sendAll(t, []*Sink{s}, 4, 10*time.Second)
		if n := len(came.list()); n != 12 {
			t.Errorf("%d requests, want 12", n)
		}
	})
}

// TestPause_AskedAlone: an event that alone is asked to come back later, while others are accepted, pauses no other.
func TestPause_AskedAlone(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var came arrivals
			s, done := newBubbleSink(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
				came.note()
				if len(came.list()) == 1 {
					w.Header().Set("Retry-After", "60")
					w.WriteHeader(http.StatusTooManyRequests)
				}
			})
			defer done()
			bad := oneEvent()
			bad.AskedAlone = alone
			if err := s.Send(t.Context(), bad); !errors.Is(err, sink.ErrAskedToWait) {
				t.Errorf("got %v", err)
			}
			if err := s.Send(t.Context(), oneEvent()); (err == nil) != alone {
				t.Errorf("asked alone %t: the next event gets %v", alone, err)
			}
		})
	}
}

// TestPause_Long expects batches to be released for a minute, without a request.
func TestPause_Long(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]func(http.ResponseWriter){
		"the last that was accepted": func(w http.ResponseWriter) {
			w.Header().Set("X-RateLimit-Remaining", "0")
			w.Header().Set("X-RateLimit-Reset", "60")
		},
		"429": func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var came arrivals
				s, done := newBubbleSink(t, Config{Rate: sink.Rate{Requests: 1, Per: time.Second}}, func(w http.ResponseWriter, _ *http.Request) {
					came.note()
					response(w)
				})
				defer done()
				_ = s.Send(t.Context(), oneEvent())
				for range 2 {
					err := s.Send(t.Context(), oneEvent())
					if timed, ok := errors.AsType[*sink.UnavailableError](err); !ok || timed.RetryAfter != time.Minute {
						t.Errorf("got %v, want RetryAfter of a minute", err)
					}
				}
				<-time.After(time.Minute)
				_ = s.Send(t.Context(), oneEvent())
				if all := came.list(); len(all) != 2 || all[1].Sub(all[0]) != time.Minute {
					t.Errorf("requests at %v, want two, a minute apart", all)
				}
			})
		})
	}
}
