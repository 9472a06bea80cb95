package claimer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/claimer"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const lease = 30 * time.Second

var errDown = errors.New("connection refused")

// ledger is the one row of a ledger that a claimer deals with here.
type ledger struct {
	mu    sync.Mutex
	began time.Time
	// answer says how a renewal goes; nil: well.
	answer   func(ctx context.Context) error
	renewals []time.Duration // when each began, since the bubble did
}

func (l *ledger) set(answer func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

func (l *ledger) renewed() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.renewals)
}

func (l *ledger) Renew(ctx context.Context, b *buffer.Lease, lease time.Duration) error {
	l.mu.Lock()
	l.renewals = append(l.renewals, time.Since(l.began))
	answer := l.answer
	l.mu.Unlock()
	end := time.Now().Add(lease)
	if answer != nil {
		if err := answer(ctx); err != nil {
			return err
		}
	}
	b.Ends = end
	return nil
}

func (l *ledger) Claim(context.Context, int, time.Duration) (*buffer.Lease, error) {
	return nil, errDown
}

func (l *ledger) TakeOver(context.Context, time.Duration, buffer.Due) (*buffer.Lease, error) {
	return nil, errDown
}

func (l *ledger) Read(context.Context, *buffer.Lease) error { return errDown }

func refuse(context.Context) error { return errDown }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// keepAlive renews a fresh lease in a bubble.
func keepAlive(ctx context.Context) (l *ledger, leaseCtx context.Context, stop func()) {
	l = &ledger{began: time.Now()}
	c := claimer.New(l, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)})
	leaseCtx, stop = c.KeepAlive(ctx, &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, Ends: time.Now().Add(lease)})
	return l, leaseCtx, stop
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func expectRenewals(t *testing.T, l *ledger, want ...time.Duration) {
	t.Helper()
	if got := l.renewed(); !slices.Equal(got, want) {
		t.Errorf("renewals began at %v, want %v", got, want)
	}
}

func expectLeased(t *testing.T, leaseCtx context.Context) {
	t.Helper()
	if leaseCtx.Err() != nil {
		t.Fatalf("the lease is lost: %v", context.Cause(leaseCtx))
	}
}

func expectLost(t *testing.T, leaseCtx context.Context) {
	t.Helper()
	if !errors.Is(context.Cause(leaseCtx), buffer.ErrLeaseLost) {
		t.Fatalf("the lease is leaseCtx, or ended because of %v; want ErrLeaseLost", context.Cause(leaseCtx))
	}
}

func TestKeepAlive_RenewsAfterAThird(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, leaseCtx, stop := keepAlive(t.Context())
		pass(35 * time.Second)
		expectLeased(t, leaseCtx)
		expectRenewals(t, l, 10*time.Second, 20*time.Second, 30*time.Second)
		stop()
		if leaseCtx.Err() == nil {
			t.Error("leaseCtx after its stop")
		}
		pass(time.Hour)
		expectRenewals(t, l, 10*time.Second, 20*time.Second, 30*time.Second)
	})
}

// A batch that took long to come, or whose lease is another's setting, has less
// left than a third.
func TestKeepAlive_RenewsAShortRestSooner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{began: time.Now()}
		c := claimer.New(l, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)})
		leaseCtx, stop := c.KeepAlive(t.Context(), &buffer.Lease{Ends: time.Now().Add(4 * time.Second)})
		defer stop()
		pass(13 * time.Second)
		expectLeased(t, leaseCtx)
		expectRenewals(t, l, 2*time.Second, 12*time.Second)
	})
}

func TestKeepAlive_ReportsLossAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, leaseCtx, stop := keepAlive(t.Context())
		defer stop()
		pass(9 * time.Second)
		expectLeased(t, leaseCtx)
		l.set(func(context.Context) error { return buffer.ErrLeaseLost })
		pass(time.Second)
		expectLost(t, leaseCtx)
		pass(time.Hour)
		expectRenewals(t, l, 10*time.Second)
	})
}

func TestKeepAlive_RecoversInTime(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(context.Context) error{"refuses": refuse, "hangs": hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, leaseCtx, stop := keepAlive(t.Context())
				defer stop()
				l.set(answer)
				pass(15 * time.Second)
				l.set(nil)
				pass(30 * time.Second)
				expectLeased(t, leaseCtx)
				if n := len(l.renewed()); n > 12 {
					t.Errorf("%d renewals; want at most one a second", n)
				}
			})
		})
	}
}

func TestKeepAlive_EndsTheLeaseInTime(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(context.Context) error{"refuses": refuse, "hangs": hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, leaseCtx, stop := keepAlive(t.Context())
				defer stop()
				l.set(answer)
				pass(lease - time.Millisecond)
				expectLeased(t, leaseCtx)
				pass(time.Millisecond)
				expectLost(t, leaseCtx)
				n := len(l.renewed())
				if n < 2 || n > 30 {
					t.Errorf("%d renewals were tried; want one a second", n)
				}
				pass(time.Hour)
				if len(l.renewed()) != n {
					t.Error("renewals go on after the lease is over")
				}
			})
		})
	}
}

// A lease so short that a second is long.
func TestKeepAlive_RetriesAShortLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{began: time.Now(), answer: refuse}
		c := claimer.New(l, claimer.Config{Lease: time.Second, Log: slog.New(slog.DiscardHandler)})
		leaseCtx, stop := c.KeepAlive(t.Context(), &buffer.Lease{Ends: time.Now().Add(time.Second)})
		defer stop()
		pass(900 * time.Millisecond)
		expectLeased(t, leaseCtx)
		l.set(nil)
		pass(time.Second)
		expectLeased(t, leaseCtx)
	})
}

func TestKeepAlive_StopWaitsForARenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := &ledger{began: time.Now()}
		c := claimer.New(l, claimer.Config{Lease: lease, Log: slog.New(slog.NewTextHandler(&log, nil))})
		leaseCtx, stop := c.KeepAlive(t.Context(), &buffer.Lease{Ends: time.Now().Add(lease)})
		ended := make(chan struct{})
		l.set(func(ctx context.Context) error {
			defer close(ended)
			<-ctx.Done()
			<-time.After(time.Second) // a database that reacts late to the cancellation
			return ctx.Err()
		})
		pass(10 * time.Second)
		before := time.Now()
		stop()
		select {
		case <-ended:
		default:
			t.Error("stop returned before the renewal did")
		}
		if took := time.Since(before); took != time.Second {
			t.Errorf("stop took %v, want 1s", took)
		}
		if errors.Is(context.Cause(leaseCtx), buffer.ErrLeaseLost) {
			t.Error("a released lease counts as lost")
		}
		if log.Len() > 0 {
			t.Errorf("an ordinary stop was logged: %s", &log)
		}
	})
}

func TestKeepAlive_EndsWithStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("out of time")
		ctx, cancel := context.WithCancelCause(t.Context())
		l, leaseCtx, stop := keepAlive(ctx)
		defer stop()
		pass(time.Second)
		cancel(why)
		synctest.Wait()
		if !errors.Is(context.Cause(leaseCtx), why) {
			t.Errorf("the lease ended because of %v, want %v", context.Cause(leaseCtx), why)
		}
		pass(time.Hour)
		expectRenewals(t, l)
	})
}

// source answers claims.
type source struct {
	*ledger
	fresh, due *buffer.Lease
	limit      int
	hangs      bool
	kind       buffer.Due
}

func (s *source) Claim(ctx context.Context, limit int, d time.Duration) (*buffer.Lease, error) {
	if s.hangs {
		return nil, hang(ctx)
	}
	s.limit = limit
	<-time.After(3 * time.Millisecond)
	return s.fresh, s.lease(d)
}

func (s *source) TakeOver(_ context.Context, d time.Duration, due buffer.Due) (*buffer.Lease, error) {
	s.kind = due
	return s.due, s.lease(d)
}

func (s *source) lease(d time.Duration) error {
	if d != lease {
		return errors.New("asked for another lease than the configured one")
	}
	return nil
}

// When a suspect kills its owner again, nobody takes it over before its lease is over: that is the backoff.
func TestTakeOver_LeasesOfSuspectsGrow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unfinished int
		delivered  bool
		want       time.Duration
	}{{1, false, lease}, {2, false, lease}, {3, false, lease}, {4, false, 2 * lease}, {7, false, 5 * lease}, {60, false, 5 * lease}, {7, true, lease}} {
		synctest.Test(t, func(t *testing.T) {
			l := &buffer.Lease{UnfinishedLeases: c.unfinished, Ends: time.Now().Add(lease)}
			if c.delivered {
				l.Delivered = []int64{1}
			}
			s := &source{ledger: &ledger{began: time.Now()}, due: l}
			claims := claimer.New(s, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)})
			if _, err := claims.TakeOver(t.Context(), buffer.DueSuspect); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(l.Ends); got != c.want {
				t.Errorf("after %d unfinished leases the next ends after %v, want %v", c.unfinished-1, got, c.want)
			}
			leaseCtx, stop := claims.KeepAlive(t.Context(), l)
			defer stop()
			pass(20 * lease)
			expectLeased(t, leaseCtx)
			if got := time.Until(l.Ends); got <= c.want/2 {
				t.Errorf("a renewed lease of %v ends after %v", c.want, got)
			}
		})
	}
}

func TestClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &source{fresh: &buffer.Lease{FirstID: 1}, due: &buffer.Lease{FirstID: 2}}
		c := claimer.New(s, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)})
		if l, err := c.Claim(t.Context(), 10); l != s.fresh || err != nil || s.limit != 10 {
			t.Errorf("got %+v, %v, limit %d", l, err, s.limit)
		}
		for _, kind := range []buffer.Due{buffer.DueRetry, buffer.DueSuspect} {
			if l, err := c.TakeOver(t.Context(), kind); l != s.due || err != nil || s.kind != kind {
				t.Errorf("got %+v, %v of kind %v; want the due batch of kind %v", l, err, s.kind, kind)
			}
		}
		s.due = nil
		if l, err := c.TakeOver(t.Context(), buffer.DueRetry); l != nil || err != nil {
			t.Errorf("got %+v, %v; want none", l, err)
		}
		s.hangs = true
		before := time.Now()
		if b, err := c.Claim(t.Context(), 10); b != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(before) != 20*time.Second {
			t.Errorf("got %+v, %v after %v; a connection that hangs is given up after 20s", b, err, time.Since(before))
		}
	})
}

// reader reads a batch, or fails.
type reader struct {
	source
	err   error
	reads int
}

func (r *reader) Read(_ context.Context, l *buffer.Lease) error {
	r.reads++
	if r.err == nil {
		l.NotRead = nil
	}
	return r.err
}

// A single event is read by itself; several are divided instead.
func TestRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		events, reads int
		notRead, err  error
		want          error
	}{
		{1, 0, nil, nil, nil},
		{1, 1, buffer.ErrSlowRead, nil, nil},
		{1, 1, buffer.ErrSlowRead, errDown, errDown},
		{2, 0, buffer.ErrTooLarge, nil, buffer.ErrTooLarge},
	} {
		r := &reader{err: c.err}
		l := &buffer.Lease{Batch: buffer.Batch{Events: make([]outbox.Event, c.events)}, NotRead: c.notRead}
		claimer.New(r, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)}).Read(t.Context(), l)
		if r.reads != c.reads || !errors.Is(l.NotRead, c.want) || c.want == nil && l.NotRead != nil {
			t.Errorf("%+v: %d reads, NotRead %v", c, r.reads, l.NotRead)
		}
	}
}
