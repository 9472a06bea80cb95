package sink_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// fail lets n sends find no sink.
func (b *bench) fail(t *testing.T, n int, err error) {
	t.Helper()
	b.answer(err)
	for range n {
		if _, _, err := b.work(t, batchOf(1)); err != nil {
			t.Fatal(err)
		}
	}
}

// heals sets what Check answers.
func (b *bench) heals(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.check = func(context.Context) error { return err }
}

func expectAllowed(t *testing.T, b *bench, want bool) {
	t.Helper()
	expect(t, "allowed", b.Allow(t.Context()), want)
	expect(t, "an outage is known", b.Outage() != nil, !want)
}

func TestCircuitOpensAfterOutagesInARow(t *testing.T) {
	t.Parallel()
	away := sink.Unavailable(errDown)
	partly := &sink.BatchError{Events: []sink.EventError{{Index: 0, Err: away}}}
	for _, c := range []struct {
		name    string
		answers []error
		allowed bool
	}{
		{"nothing was sent", nil, true},
		{"one outage", []error{away}, true},
		{"two", []error{away, away}, false},
		{"a success in between", []error{away, nil, away}, true},
		{"a refusal in between: the sink is there", []error{away, errBad, away}, true},
		{"an address away in between", []error{away, partly, away}, true},
		{"addresses away", []error{partly, partly, partly}, true},
		{"a success after", []error{away, away, away, nil}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(nil)
				for _, answer := range c.answers {
					b.fail(t, 1, answer)
				}
				expectAllowed(t, b, c.allowed)
				expect(t, "checks at once", b.checks, 0)
			})
		})
	}
}

func TestAnOpenCircuitAsksTheSinkNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.heals(sink.Unavailable(errDown))
		b.fail(t, 4, sink.Unavailable(errDown))
		for range 600 { // a distributor asks every second
			expectAllowed(t, b, false)
			<-time.After(time.Second)
		}
		if b.checks < 100 || b.checks > 200 {
			t.Errorf("the sink was asked %d times in ten minutes, once in five seconds was expected", b.checks)
		}
		if !errors.Is(b.Outage(), errDown) {
			t.Errorf("the outage is %v, want %v", b.Outage(), errDown)
		}
		b.heals(nil)
		<-time.After(5 * time.Second)
		expectAllowed(t, b, true)
		checks := b.checks
		expectAllowed(t, b, true)
		expect(t, "checks of a closed circuit", b.checks, checks)
	})
}

func TestACheckThatHangsEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.check = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		b.fail(t, 2, sink.Unavailable(errDown))
		<-time.After(5 * time.Second)
		began := time.Now()
		expectAllowed(t, b, false)
		expect(t, "took", time.Since(began), 5*time.Second)

		<-time.After(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		expect(t, "allowed beside a stop", b.Allow(ctx), false)
		expect(t, "took", time.Since(began), time.Second)
	})
}

func TestRetryAfterHoldsForTheWholeSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.fail(t, 1, &sink.UnavailableError{Err: errDown, RetryAfter: 10 * time.Minute})
		expectAllowed(t, b, false)
		// Sends that were under way end one way or the other.
		b.fail(t, 1, nil)
		b.fail(t, 1, sink.Unavailable(errDown))
		b.fail(t, 1, &sink.UnavailableError{Err: errDown, RetryAfter: time.Second})
		b.fail(t, 1, nil)
		<-time.After(10*time.Minute - time.Second)
		expectAllowed(t, b, false)
		expect(t, "checks while the sink wants to be left alone", b.checks, 0)
		<-time.After(time.Second)
		expectAllowed(t, b, true)
	})
}
