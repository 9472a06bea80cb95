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
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const lease = 30 * time.Second

var errAway = errors.New("connection refused")

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
	return nil, errAway
}

func (l *ledger) TakeOver(context.Context, time.Duration) (*buffer.Lease, error) { return nil, errAway }

func refuse(context.Context) error { return errAway }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// hold holds a fresh lease in a bubble.
func hold(ctx context.Context) (l *ledger, held context.Context, release func()) {
	l = &ledger{began: time.Now()}
	c := claimer.New(l, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)})
	held, release = c.Hold(ctx, &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, Ends: time.Now().Add(lease)})
	return l, held, release
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

func expectHeld(t *testing.T, held context.Context) {
	t.Helper()
	if held.Err() != nil {
		t.Fatalf("the lease is not held: %v", context.Cause(held))
	}
}

func expectLost(t *testing.T, held context.Context) {
	t.Helper()
	if !errors.Is(context.Cause(held), buffer.ErrLeaseLost) {
		t.Fatalf("the lease is held, or ended because of %v; ErrLeaseLost was expected", context.Cause(held))
	}
}

func TestALeaseIsRenewedAfterAThird(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, held, release := hold(t.Context())
		pass(35 * time.Second)
		expectHeld(t, held)
		expectRenewals(t, l, 10*time.Second, 20*time.Second, 30*time.Second)
		release()
		if held.Err() == nil {
			t.Error("held after its release")
		}
		pass(time.Hour)
		expectRenewals(t, l, 10*time.Second, 20*time.Second, 30*time.Second)
	})
}

// A batch that took long to come, or whose lease is another's setting, has less
// left than a third.
func TestALeaseWithLittleLeftIsRenewedSooner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{began: time.Now()}
		c := claimer.New(l, claimer.Config{Lease: lease, Log: slog.New(slog.DiscardHandler)})
		held, release := c.Hold(t.Context(), &buffer.Lease{Ends: time.Now().Add(4 * time.Second)})
		defer release()
		pass(13 * time.Second)
		expectHeld(t, held)
		expectRenewals(t, l, 2*time.Second, 12*time.Second)
	})
}

func TestALeaseThatAnotherOwnerHasIsLostAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, held, release := hold(t.Context())
		defer release()
		pass(9 * time.Second)
		expectHeld(t, held)
		l.set(func(context.Context) error { return buffer.ErrLeaseLost })
		pass(time.Second)
		expectLost(t, held)
		pass(time.Hour)
		expectRenewals(t, l, 10*time.Second)
	})
}

func TestADatabaseThatComesBackInTimeKeepsTheLease(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(context.Context) error{"refuses": refuse, "hangs": hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, held, release := hold(t.Context())
				defer release()
				l.set(away)
				pass(15 * time.Second)
				l.set(nil)
				pass(30 * time.Second)
				expectHeld(t, held)
				if n := len(l.renewed()); n > 12 {
					t.Errorf("%d renewals, at most one a second was expected", n)
				}
			})
		})
	}
}

func TestADatabaseThatStaysAwayEndsTheLeaseInTime(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(context.Context) error{"refuses": refuse, "hangs": hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, held, release := hold(t.Context())
				defer release()
				l.set(away)
				pass(lease - time.Millisecond)
				expectHeld(t, held)
				pass(time.Millisecond)
				expectLost(t, held)
				n := len(l.renewed())
				if n < 2 || n > 30 {
					t.Errorf("%d renewals were tried, one a second was expected", n)
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
func TestAShortLeaseIsTriedAgainToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{began: time.Now(), answer: refuse}
		c := claimer.New(l, claimer.Config{Lease: time.Second, Log: slog.New(slog.DiscardHandler)})
		held, release := c.Hold(t.Context(), &buffer.Lease{Ends: time.Now().Add(time.Second)})
		defer release()
		pass(900 * time.Millisecond)
		expectHeld(t, held)
		l.set(nil)
		pass(time.Second)
		expectHeld(t, held)
	})
}

func TestReleaseEndsARenewalUnderWayAndWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := &ledger{began: time.Now()}
		c := claimer.New(l, claimer.Config{Lease: lease, Log: slog.New(slog.NewTextHandler(&log, nil))})
		held, release := c.Hold(t.Context(), &buffer.Lease{Ends: time.Now().Add(lease)})
		ended := make(chan struct{})
		l.set(func(ctx context.Context) error {
			defer close(ended)
			<-ctx.Done()
			<-time.After(time.Second) // a database that takes its time to hear
			return ctx.Err()
		})
		pass(10 * time.Second)
		before := time.Now()
		release()
		select {
		case <-ended:
		default:
			t.Error("release returned before the renewal did")
		}
		if took := time.Since(before); took != time.Second {
			t.Errorf("release took %v, want 1s", took)
		}
		if errors.Is(context.Cause(held), buffer.ErrLeaseLost) {
			t.Error("a released lease counts as lost")
		}
		if log.Len() > 0 {
			t.Errorf("a release that nobody need know of was logged: %s", &log)
		}
	})
}

func TestAStopEndsTheHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("out of time")
		stop, cancel := context.WithCancelCause(t.Context())
		l, held, release := hold(stop)
		defer release()
		pass(time.Second)
		cancel(why)
		synctest.Wait()
		if !errors.Is(context.Cause(held), why) {
			t.Errorf("the hold ended because of %v, want %v", context.Cause(held), why)
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
}

func (s *source) Claim(ctx context.Context, limit int, d time.Duration) (*buffer.Lease, error) {
	if s.hangs {
		return nil, hang(ctx)
	}
	s.limit = limit
	<-time.After(3 * time.Millisecond)
	return s.fresh, s.lease(d)
}

func (s *source) TakeOver(_ context.Context, d time.Duration) (*buffer.Lease, error) {
	return s.due, s.lease(d)
}

func (s *source) lease(d time.Duration) error {
	if d != lease {
		return errors.New("asked for another lease than the configured one")
	}
	return nil
}

func TestClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &source{fresh: &buffer.Lease{FirstID: 1}, due: &buffer.Lease{FirstID: 2}}
		var (
			told *buffer.Lease
			took time.Duration
		)
		c := claimer.New(s, claimer.Config{Lease: lease, Claimed: func(b *buffer.Lease, d time.Duration) { told, took = b, d }})
		if b, err := c.Claim(t.Context(), 10, false); b != s.fresh || err != nil || told != b || took != 3*time.Millisecond || s.limit != 10 {
			t.Errorf("got %+v, %v, told of %+v after %v, limit %d", b, err, told, took, s.limit)
		}
		if b, err := c.Claim(t.Context(), 10, true); b != s.due || err != nil || told != b {
			t.Errorf("got %+v, %v, told of %+v; the due batch was expected", b, err, told)
		}
		told, s.due = nil, nil
		if b, err := c.Claim(t.Context(), 10, true); b != nil || err != nil || told != nil {
			t.Errorf("got %+v, %v, told of %+v; nothing was due", b, err, told)
		}
		s.hangs = true
		before := time.Now()
		if b, err := c.Claim(t.Context(), 10, false); b != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(before) != 15*time.Second {
			t.Errorf("got %+v, %v after %v; a connection that hangs is given up after 15s", b, err, time.Since(before))
		}
	})
}
