package delivery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errDown     = errors.New("connection refused")
	errBad      = errors.New("no such customer")
	errDeadlock = errors.New("deadlock detected")
)

// workerHarness is a worker between a sink and a buffer whose results the test gives.
type workerHarness struct {
	*delivery.Worker
	log bytes.Buffer

	mu     sync.Mutex
	send   func(ctx context.Context, b *buffer.Batch) error
	check  func(ctx context.Context) error
	settle func(ctx context.Context, n int) error // the nth, from 1
	mark   func(ctx context.Context, n int) error

	sends, checks int
	settles       [][]buffer.Outcome // tried
	recorded      [][]int64          // deliveries, tried
	settled       []buffer.Outcome   // observed
	observed      int                // sends
	recovered     []string           // addresses, observed
	accepts       int                // observed
	hung          []int              // calls, observed

	slot delivery.AcquireSlot
}

func newHarness(change func(*delivery.Config)) *workerHarness {
	b := &workerHarness{}
	c := delivery.Config{
		MaxAttempts: 3, Backoff: delivery.Backoff{Initial: time.Second, Max: time.Minute, Multiplier: 2},
		Observer: b, Log: slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&c)
	}
	b.Worker = delivery.NewWorker(b, b, c)
	return b
}

func (b *workerHarness) Send(ctx context.Context, batch *buffer.Batch) error {
	b.mu.Lock()
	b.sends++
	send := b.send
	b.mu.Unlock()
	if send == nil {
		return nil
	}
	return send(ctx, batch)
}

func (b *workerHarness) Check(ctx context.Context) error {
	b.mu.Lock()
	b.checks++
	check := b.check
	b.mu.Unlock()
	if check == nil {
		return nil
	}
	return check(ctx)
}

func (b *workerHarness) Close() error { return nil }

func (b *workerHarness) Settle(ctx context.Context, _ *buffer.Lease, outcomes []buffer.Outcome) error {
	b.settles = append(b.settles, outcomes)
	if b.settle == nil {
		return nil
	}
	return b.settle(ctx, len(b.settles))
}

func (b *workerHarness) MarkDelivered(ctx context.Context, _ *buffer.Lease, delivered []int64) error {
	b.recorded = append(b.recorded, delivered)
	if b.mark == nil {
		return nil
	}
	return b.mark(ctx, len(b.recorded))
}

func (b *workerHarness) Sent(*buffer.Lease, time.Duration) { b.observed++ }
func (b *workerHarness) Recovered(address string)          { b.recovered = append(b.recovered, address) }

func (b *workerHarness) Accepts() { b.accepts++ }

func (b *workerHarness) Hanging(calls int) { b.hung = append(b.hung, calls) }

func (b *workerHarness) Settled(_ *buffer.Lease, outcomes []buffer.Outcome, _ bool, _ time.Duration) {
	b.settled = outcomes
}

// answer makes every Send answer so.
func (b *workerHarness) answer(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.send = func(context.Context, *buffer.Batch) error { return err }
}

// batchOf makes a freshly claimed batch with ids 101, 102, ...
func batchOf(n int) *buffer.Lease {
	b := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, UnfinishedLeases: 1, LeaseNo: 1}
	for i := range n {
		b.Events = append(b.Events, outbox.Event{ID: int64(101 + i), Topic: "orders", Payload: []byte("{}")})
	}
	if n > 0 {
		b.FirstID, b.LastID = b.Events[0].ID, b.Events[n-1].ID
	}
	return b
}

// work works on a batch whose lease lasts.
func (b *workerHarness) work(t *testing.T, batch *buffer.Lease) (putBack bool, dueIn time.Duration, err error) {
	t.Helper()
	done, err := b.Work(t.Context(), t.Context(), batch, b.slot, nil)
	return done.PutBack, done.DueIn, err
}

func always(err error) func(context.Context, int) error {
	return func(context.Context, int) error { return err }
}

// upTo fails the first n times.
func upTo(n int, err error) func(context.Context, int) error {
	return func(_ context.Context, nth int) error {
		if nth <= n {
			return err
		}
		return nil
	}
}

func hangs(ctx context.Context, _ int) error {
	<-ctx.Done()
	return ctx.Err()
}

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func expectError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Errorf("got error %v, want %v", got, want)
	}
}

// describe says verdict and ids of each outcome.
func describe(outcomes []buffer.Outcome) string {
	parts := make([]string, len(outcomes))
	for i, o := range outcomes {
		parts[i] = fmt.Sprint(o.Verdict, " ", o.IDs)
	}
	return strings.Join(parts, " ")
}

// lost is a lease that is lost while the test runs.
func lost(t *testing.T) context.Context {
	leaseCtx, lose := context.WithCancelCause(t.Context())
	lose(buffer.ErrLeaseLost)
	return leaseCtx
}

// reject moves the events at these indexes to the lease's Rejected.
func reject(l *buffer.Lease, err error, indexes ...int) {
	var sent []outbox.Event
	for i, e := range l.Events {
		if slices.Contains(indexes, i) {
			l.Rejected = append(l.Rejected, buffer.Rejection{Event: e, Err: err})
		} else {
			sent = append(sent, e)
		}
	}
	l.Events = sent
}
