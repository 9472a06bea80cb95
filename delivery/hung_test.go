package delivery_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// hang makes every Send ignore its context until the test lets it return this.
func (b *workerHarness) hang() (returns func(error)) {
	answer := make(chan error)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.send = func(context.Context, *buffer.Batch) error { return <-answer }
	return func(err error) {
		answer <- err
		synctest.Wait()
	}
}

// A Send that does not return is given up: its batch waits as in an outage, and what it returns later changes nothing.
func TestHungSend(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]error{
		"returns nothing of use": errDown, "returns a success": nil, "returns a refusal": sink.Permanent(errBad), "returns a time-out": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				of := &slots{left: 1}
				b.slot = of.acquire
				returns := b.hang()
				batch := batchOf(3)
				batch.Attempts = 2 // the next refusal would be its last
				began := time.Now()
				putBack, _, err := b.work(t, batch)
				expectError(t, err, nil)
				expect(t, "put back", putBack, true)
				expect(t, "given up after", time.Since(began), 40*time.Second)
				expect(t, "outcomes", describe(b.settled), "retry []")
				if o := b.settled[0]; o.GroupID != batch.GroupID || o.Attempts != 2 || o.Outages != 1 || o.UnfinishedLeases != 0 {
					t.Errorf("put back as %+v", o)
				}
				expect(t, "slots that are out", of.out, 0)
				if !slices.Equal(b.hung, []int{1}) {
					t.Errorf("observed calls that hang: %v", b.hung)
				}
				<-time.After(time.Minute)
				if err := b.Hung(); err == nil || !strings.Contains(err.Error(), "batch "+batch.GroupID.String()+" for 1m40s") {
					t.Errorf("hung: %v", err)
				}
				expect(t, "log lines", strings.Count(b.log.String(), "level=ERROR msg=\"sink does not return"), 1)

				returns(late)
				expectError(t, b.Hung(), nil)
				if !slices.Equal(b.hung, []int{1, 0}) {
					t.Errorf("observed calls that hang: %v", b.hung)
				}
				expect(t, "settles", len(b.settles), 1)
				expect(t, "records of a delivery", len(b.recorded), 0)
			})
		})
	}
}

// A Send that returns late, but within its grace, still counts.
func TestHungSend_WithinItsGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		b.send = func(context.Context, *buffer.Batch) error {
			<-time.After(39 * time.Second)
			return nil
		}
		_, _, err := b.work(t, batchOf(3))
		expectError(t, err, nil)
		expect(t, "outcomes", describe(b.settled), "delivered []")
		expect(t, "observed calls that hang", len(b.hung), 0)
	})
}

// No batch is blamed, however often its Sends hang while others are accepted.
func TestHungSend_BlamesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		batch := batchOf(1)
		var let []func(error)
		for range 7 {
			let = append(let, b.hang())
			_, _, err := b.work(t, batch)
			expectError(t, err, nil)
			expect(t, "outcomes", describe(b.settled), "retry []")
			expect(t, "attempts", b.settled[0].Attempts, 0)
			batch.Outages = b.settled[0].Outages
			b.answer(nil)
			for range 10 {
				_, _, err := b.work(t, batchOf(1))
				expectError(t, err, nil)
			}
		}
		for _, returns := range let {
			returns(nil)
		}
		expectError(t, b.Hung(), nil)
	})
}

// A lost lease and the end of the time to stop end a Send's context, too.
func TestHungSend_ContextEndsEarly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cause error
		after time.Duration
		want  error
	}{
		"lease lost":        {buffer.ErrLeaseLost, 10 * time.Second, buffer.ErrLeaseLost},
		"the process stops": {errors.New("stop"), time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				returns := b.hang()
				leaseCtx, end := context.WithCancelCause(t.Context())
				end(c.cause)
				began := time.Now()
				_, err := b.Work(leaseCtx, t.Context(), batchOf(3), nil, nil)
				expectError(t, err, c.want)
				expect(t, "given up after", time.Since(began), c.after)
				returns(nil)
			})
		})
	}
}

// hangingFence is a sink whose Fence ignores its context.
type hangingFence struct {
	*workerHarness
	answer chan error
}

func (f *hangingFence) Fence(context.Context, *buffer.Batch) (bool, error) { return true, <-f.answer }

func TestHungSend_Fence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &hangingFence{newHarness(nil), make(chan error)}
		f.Worker = delivery.NewWorker(f, f.workerHarness, delivery.Config{
			MaxAttempts: 3, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2}, Observer: f.workerHarness,
			Log: slog.New(slog.DiscardHandler),
		})
		batch := batchOf(1)
		batch.UnfinishedLeases = buffer.SuspectAfter + buffer.AloneBeforeBurial + 1
		_, _, err := f.work(t, batch)
		expectError(t, err, nil)
		expect(t, "outcomes", describe(f.settled), "retry []")
		expect(t, "unfinished leases", f.settled[0].UnfinishedLeases, batch.UnfinishedLeases-1)
		f.answer <- nil
		synctest.Wait()
		expect(t, "settles", len(f.settles), 1)
	})
}

// TestHungCheck: a Check that does not return is given up, and until it returns no other is begun.
func TestHungCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(context.Context) (context.Context, context.CancelFunc)
		after time.Duration
	}{
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 5*time.Second)
		}, 15 * time.Second},
		"stop": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(5*time.Second, cancel)
			return ctx, cancel
		}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(nil)
				goOn := make(chan struct{})
				b.check = func(context.Context) error { <-goOn; return nil }
				ctx, cancel := c.end(t.Context())
				defer cancel()
				began := time.Now()
				for range 3 {
					if err := b.Worker.Check(ctx); !errors.Is(err, sink.ErrUnavailable) {
						t.Errorf("got %v; want an outage", err)
					}
					expect(t, "given up after", time.Since(began), c.after)
				}
				b.mu.Lock()
				expect(t, "checks", b.checks, 1)
				b.mu.Unlock()
				expect(t, "hung", b.Hung() != nil, true)
				close(goOn)
				synctest.Wait()
				expectError(t, b.Hung(), nil)
				expectError(t, b.Worker.Check(t.Context()), nil)
				expect(t, "checks", b.checks, 2)
			})
		})
	}
}
