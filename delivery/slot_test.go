package delivery_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// slots are as many as are left, and count those that are out.
type slots struct{ left, out int }

func (s *slots) acquire(context.Context) (release func(), ok bool) {
	if s.left == 0 {
		return nil, false
	}
	s.left--
	s.out++
	return func() { s.out-- }, true
}

func TestWork_ReleasesItsSlot(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"delivered": nil, "refused": errBad, "refused for good": sink.Permanent(errBad), "an outage": sink.Unavailable(errDown),
		"a time-out": sink.MaybePoison(errDown), "fenced": sink.ErrFenced,
		"in part": &sink.BatchError{Events: []sink.EventError{{Index: 1, Err: errBad}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := &slots{left: 1}
			b := newHarness(nil)
			b.slot = of.acquire
			b.answer(answer)
			_, _, _ = b.work(t, batchOf(3))
			expect(t, "sends", b.sends, 1)
			expect(t, "slots that are out", of.out, 0)
		})
	}
}

func TestWork_ReleasesBatchWithoutSlot(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.slot = (&slots{}).acquire
	batch := batchOf(3)
	batch.Attempts, batch.Outages = 2, 1
	putBack, dueIn, err := b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back", putBack, true)
	expect(t, "due in", dueIn, 0)
	expect(t, "sends", b.sends, 0)
	expect(t, "outcomes", describe(b.settled), "retry []")
	o := b.settled[0]
	if o.GroupID != batch.GroupID || o.Attempts != 2 || o.Outages != 1 {
		t.Errorf("put back as %+v", o)
	}
	_, err = b.Work(lost(t), t.Context(), batchOf(3), b.slot, nil)
	expectError(t, err, buffer.ErrLeaseLost)
	expect(t, "settles", len(b.settles), 1)

	takenOver := batchOf(3) // another worker may have sent it
	takenOver.UnfinishedLeases = 2
	_, _, err = b.work(t, takenOver)
	expectError(t, err, nil)
	expect(t, "outages of what may have been sent", b.settled[0].Outages, 1)
}

// A batch that is settled without a send needs no slot.
func TestFinishDelivered_NeedsNoSlot(t *testing.T) {
	t.Parallel()
	b := newHarness(nil)
	b.slot = (&slots{}).acquire
	batch := batchOf(2)
	batch.Delivered = batch.IDs()
	putBack, _, err := b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back", putBack, false)
	expect(t, "outcomes", describe(b.settled), "delivered []")
}

// A batch that was claimed before the sink was found unavailable is not sent; one that was claimed
// afterwards is the probe.
func TestDefer_ClaimedBeforeAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		claimed := func() *buffer.Lease {
			batch := batchOf(3)
			batch.ClaimedLocal = time.Now()
			<-time.After(time.Millisecond)
			return batch
		}
		first, second, ahead := claimed(), claimed(), claimed()
		b.answer(sink.Unavailable(errDown))
		for _, batch := range []*buffer.Lease{first, second} {
			_, _, err := b.work(t, batch)
			expectError(t, err, nil)
		}
		putBack, _, err := b.work(t, ahead)
		expectError(t, err, nil)
		expect(t, "put back", putBack, true)
		expect(t, "sends", b.sends, 2)
		o := b.settled[0]
		if o.GroupID != ahead.GroupID || o.Attempts != 0 || o.Address == nil || *o.Address != "" {
			t.Errorf("put back as %+v", o)
		}
		b.answer(nil)
		probe := claimed()
		_, _, err = b.work(t, probe)
		expectError(t, err, nil)
		expect(t, "sends", b.sends, 3)
		_, _, err = b.work(t, ahead) // the outage is over
		expectError(t, err, nil)
		expect(t, "sends", b.sends, 4)
	})
}

func TestDefer_UntilAPauseIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(nil)
		ahead := batchOf(3)
		ahead.ClaimedLocal = time.Now()
		b.answer(&sink.UnavailableError{Err: errDown, RetryAfter: time.Hour})
		_, _, err := b.work(t, batchOf(3))
		expectError(t, err, nil)
		_, dueIn, err := b.work(t, ahead)
		expectError(t, err, nil)
		expect(t, "sends", b.sends, 1)
		expect(t, "due in", dueIn, time.Hour)
		if o := b.settled[0]; o.Address != nil {
			t.Error("the sink's recovery makes it due before its time")
		}
	})
}

// limited is a sink whose requests wait for a rate limit.
type limited struct {
	*workerHarness
	wait func(ctx context.Context) error
}

func (s *limited) Prepare(_ context.Context, b *buffer.Batch) (sink.Prepared, error) {
	return &limitedRequest{s, b}, nil
}

type limitedRequest struct {
	*limited
	batch *buffer.Batch
}

func (r *limitedRequest) Acquire(ctx context.Context) error { return r.wait(ctx) }
func (r *limitedRequest) Send(ctx context.Context) error    { return r.workerHarness.Send(ctx, r.batch) }

func newLimited(wait func(ctx context.Context) error) *limited {
	s := &limited{newHarness(nil), wait}
	s.Worker = delivery.NewWorker(s, s.workerHarness, delivery.Config{MaxAttempts: 3, Observer: s.workerHarness, Log: slog.New(slog.DiscardHandler)})
	return s
}

// A batch that waits for a rate limit when the relay stops is released: that is no attempt, no outage
// and no result of the sink.
func TestDrain_ReleasesBatchThatWaitsForARateLimit(t *testing.T) {
	t.Parallel()
	var s *limited
	s = newLimited(func(ctx context.Context) error {
		s.Drain()
		<-ctx.Done()
		return fmt.Errorf("POST http://api: %w", ctx.Err())
	})
	of := &slots{left: 2}
	batch := batchOf(3)
	batch.Attempts, batch.Outages = 2, 1
	done, err := s.Work(t.Context(), t.Context(), batch, of.acquire, nil)
	expectError(t, err, nil)
	expect(t, "put back", done.PutBack, true)
	expect(t, "due in", done.DueIn, 0)
	expect(t, "outcomes", describe(s.settles[0]), "retry []")
	expect(t, "sends", s.sends, 0)
	expect(t, "observed sends", s.observed, 0)
	expect(t, "answer", done.Answer, delivery.Nothing)
	expect(t, "outage", s.Outage(), nil)
	expect(t, "slots that are out", of.out, 0)
	o := s.settles[0][0]
	if o.GroupID != batch.GroupID || o.Attempts != 2 || o.Outages != 1 || o.After != 0 || o.Error != "" {
		t.Errorf("put back as %+v", o)
	}
	_, err = s.Work(lost(t), t.Context(), batchOf(3), nil, nil)
	expectError(t, err, buffer.ErrLeaseLost)
	expect(t, "settles", len(s.settles), 1)
}

// A request that has begun is finished when the relay stops.
func TestDrain_FinishesRequests(t *testing.T) {
	t.Parallel()
	s := newLimited(func(context.Context) error { return nil })
	s.send = func(ctx context.Context, _ *buffer.Batch) error {
		s.Drain()
		return ctx.Err()
	}
	_, _, err := s.work(t, batchOf(3))
	expectError(t, err, nil)
	expect(t, "outcomes", describe(s.settled), "delivered []")
}

// The wait for a rate limit is not the sink's time, by which a batch's size is found.
func TestWork_RateLimitIsNotTheSinksTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(func(context.Context) error { <-time.After(6 * time.Second); return nil })
		s.send = func(context.Context, *buffer.Batch) error { <-time.After(time.Second); return nil }
		done, err := s.Work(t.Context(), t.Context(), batchOf(3), nil, nil)
		expectError(t, err, nil)
		expect(t, "sent", done.Sent, time.Second)
	})
}
