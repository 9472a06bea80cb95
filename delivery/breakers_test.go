package delivery_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// fail lets n sends find no sink.
func (b *workerHarness) fail(t *testing.T, n int, err error) {
	t.Helper()
	b.answer(err)
	for range n {
		if _, _, err := b.work(t, batchOf(1)); err != nil {
			t.Fatal(err)
		}
	}
}

// heals sets what Check answers.
func (b *workerHarness) heals(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.check = func(context.Context) error { return err }
}

// What Allow answers.
const (
	none  = 0
	probe = 1
	all   = math.MaxInt
)

func expectAllowed(t *testing.T, b *workerHarness, want int) {
	t.Helper()
	expect(t, "allowed", b.Allow(t.Context()), want)
	expect(t, "an outage is known", b.Outage() != nil, want != all)
}

// A batch that fails again after a success at its address is not probed: Probes says so, as status does.
func TestBreaker_Probes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		probes := func(want bool) {
			t.Helper()
			expect(t, "the sink is probed", b.Probes([]string{""}), want)
		}
		b.fail(t, 2, sink.Unavailable(errDown))
		probes(true)
		b.fail(t, 1, nil)
		probes(false)
		again := batchOf(1)
		again.Outages = 1
		b.answer(sink.Unavailable(errDown))
		if _, _, err := b.work(t, again); err != nil {
			t.Fatal(err)
		}
		probes(false)
		b.fail(t, 1, sink.Unavailable(errDown))
		probes(true)
	})
}

func TestBreaker_OpensAfterOutagesInARow(t *testing.T) {
	t.Parallel()
	down := sink.Unavailable(errDown)
	split := &sink.SplitError{Groups: []sink.Group{{Indexes: []int{0}}, {Indexes: []int{1}}}}
	partly := &sink.BatchError{Events: []sink.EventError{{Index: 0, Err: down}}}
	for _, c := range []struct {
		name    string
		answers []error
		allowed int
	}{
		{"nothing was sent", nil, all},
		{"one outage", []error{down}, all},
		{"two", []error{down, down}, none},
		{"a success in between", []error{down, nil, down}, all},
		{"a refusal in between: the sink is there", []error{down, errBad, down}, all},
		{"an unavailable address in between", []error{down, partly, down}, all},
		{"unavailable addresses", []error{partly, partly, partly}, all},
		{"a batch that has to be split: nothing was sent", []error{down, split, down}, none},
		{"a success after", []error{down, down, down, nil}, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				for _, answer := range c.answers {
					b.answer(answer)
					n := 1
					if _, ok := errors.AsType[*sink.SplitError](answer); ok {
						n = 2
					}
					if _, _, err := b.work(t, batchOf(n)); err != nil {
						t.Fatal(err)
					}
				}
				expectAllowed(t, b, c.allowed)
				expect(t, "checks at once", b.checks, 0)
			})
		})
	}
}

// A batch that waits for an unavailable address fails again, while others are delivered.
func TestBreaker_StaysClosedForDeferredRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		left := batchOf(1)
		left.Outages = 1
		for range 10 {
			b.fail(t, 1, nil) // an event for another address
			b.answer(sink.Unavailable(errDown))
			if _, _, err := b.work(t, left); err != nil {
				t.Fatal(err)
			}
		}
		expectAllowed(t, b, all)
	})
}

func TestBreaker_OpenChecksTheSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.heals(sink.Unavailable(errDown))
		b.fail(t, 4, sink.Unavailable(errDown))
		for range 600 { // a distributor asks every second
			expectAllowed(t, b, none)
			<-time.After(time.Second)
		}
		if b.checks < 300 || b.checks > 600 {
			t.Errorf("the sink was asked %d times in ten minutes; want once in one or two seconds", b.checks)
		}
		if !errors.Is(b.Outage(), errDown) {
			t.Errorf("the outage is %v, want %v", b.Outage(), errDown)
		}
	})
}

// A sink that answers may still take nothing.
func TestBreaker_ClosesOnlyAfterASuccessfulProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.fail(t, 4, sink.Unavailable(errDown))
		probes := 0
		for range 600 {
			if n := b.Allow(t.Context()); n != none {
				expect(t, "allowed", n, probe)
				probes++
				b.fail(t, 1, sink.Unavailable(errDown))
			}
			expect(t, "an outage is known", b.Outage() != nil, true)
			<-time.After(time.Second)
		}
		if probes < 300 || probes > 600 {
			t.Errorf("%d probes in ten minutes; want one in one or two seconds", probes)
		}
		<-time.After(5 * time.Second)
		expectAllowed(t, b, probe)
		expectAllowed(t, b, none) // one is under way
		b.fail(t, 1, nil)
		expectAllowed(t, b, all)
		checks := b.checks
		expectAllowed(t, b, all)
		expect(t, "checks of a closed circuit", b.checks, checks)

		// A probe that found nothing to claim leaves room for another.
		b.fail(t, 4, sink.Unavailable(errDown))
		<-time.After(5 * time.Second)
		expectAllowed(t, b, probe)
		<-time.After(5 * time.Second)
		expectAllowed(t, b, probe)
	})
}

func TestBreaker_BoundsTheSinksCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.check = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		b.fail(t, 2, sink.Unavailable(errDown))
		<-time.After(5 * time.Second)
		began := time.Now()
		expectAllowed(t, b, none)
		expect(t, "took", time.Since(began), 5*time.Second)

		<-time.After(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		expect(t, "allowed during a pause", b.Allow(ctx), none)
		expect(t, "took", time.Since(began), time.Second)
	})
}

func TestBreaker_RetryAfterHoldsForTheSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.fail(t, 1, &sink.UnavailableError{Err: errDown, RetryAfter: 10 * time.Minute})
		expectAllowed(t, b, none)
		// Sends that were under way end one way or the other.
		b.fail(t, 1, nil)
		b.fail(t, 1, sink.Unavailable(errDown))
		b.fail(t, 1, &sink.UnavailableError{Err: errDown, RetryAfter: time.Second})
		b.fail(t, 1, nil)
		<-time.After(10*time.Minute - time.Second)
		expectAllowed(t, b, none)
		expect(t, "checks while the sink wants to be left alone", b.checks, 0)
		<-time.After(time.Second)
		expectAllowed(t, b, all)
	})
}
