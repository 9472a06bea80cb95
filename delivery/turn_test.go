package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// turns hands out turns while there are any, and counts those that are out.
type turns struct{ left, out int }

func (t *turns) take(context.Context) (done func(), ok bool) {
	if t.left == 0 {
		return nil, false
	}
	t.left--
	t.out++
	return func() { t.out-- }, true
}

func TestEveryTurnIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"delivered": nil, "refused": errBad, "refused for good": sink.Permanent(errBad), "an outage": sink.Unavailable(errDown),
		"a time-out": sink.MaybePoison(errDown), "fenced": sink.ErrFenced,
		"in part": &sink.BatchError{Events: []sink.EventError{{Index: 1, Err: errBad}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := &turns{left: 1}
			b := newBench(func(c *delivery.Config) { c.Turn = to.take })
			b.answer(answer)
			_, _, _ = b.work(t, batchOf(3))
			expect(t, "sends", b.sends, 1)
			expect(t, "turns that are out", to.out, 0)
		})
	}
}

func TestABatchThatGetsNoTurnIsHandedBack(t *testing.T) {
	t.Parallel()
	b := newBench(func(c *delivery.Config) { c.Turn = (&turns{}).take })
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
		t.Errorf("it was put back as %+v", o)
	}
	_, err = b.Work(lost(t), t.Context(), batchOf(3))
	expectError(t, err, buffer.ErrLeaseLost)
	expect(t, "settles", len(b.settles), 1)

	takenOver := batchOf(3) // somebody else may have sent it
	takenOver.UnfinishedLeases = 2
	_, _, err = b.work(t, takenOver)
	expectError(t, err, nil)
	expect(t, "outages of what may have been sent", b.settled[0].Outages, 1)
}

// What is settled and not sent needs no turn.
func TestAMarkedBatchNeedsNoTurn(t *testing.T) {
	t.Parallel()
	b := newBench(func(c *delivery.Config) { c.Turn = (&turns{}).take })
	batch := batchOf(2)
	batch.Delivered = batch.IDs()
	putBack, _, err := b.work(t, batch)
	expectError(t, err, nil)
	expect(t, "put back", putBack, false)
	expect(t, "outcomes", describe(b.settled), "delivered []")
}

// A batch that was claimed before the sink was found away is not sent into the outage;
// one that was claimed after is, for it is the trial.
func TestWhatWasClaimedBeforeAnOutageIsPutBackUnsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
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
			t.Errorf("it was put back as %+v", o)
		}
		b.answer(nil)
		trial := claimed()
		_, _, err = b.work(t, trial)
		expectError(t, err, nil)
		expect(t, "sends", b.sends, 3)
		_, _, err = b.work(t, ahead) // the outage is over
		expectError(t, err, nil)
		expect(t, "sends", b.sends, 4)
	})
}

func TestWhatWasClaimedBeforeAPauseIsPutBackUntilItIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
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
			t.Error("it is woken by the sink's return, before its time")
		}
	})
}

// A Send that the end of the process found waiting is as none: it is no attempt, no outage
// and no news of the sink.
func TestABatchThatWasNotSentIsHandedBack(t *testing.T) {
	t.Parallel()
	drain, begin := context.WithCancel(t.Context())
	to := &turns{left: 2}
	watched := &sends{}
	b := newBench(func(c *delivery.Config) { c.Turn, c.Observer = to.take, watched })
	b.send = func(ctx context.Context, _ *buffer.Batch) error {
		before, over := sink.BeforeSend(ctx)
		defer over()
		begin()
		<-before.Done()
		if errors.Is(context.Cause(ctx), sink.ErrNotSent) {
			t.Error("requests that have begun are called off")
		}
		return fmt.Errorf("POST http://api: %w", context.Cause(before))
	}
	batch := batchOf(3)
	batch.Attempts, batch.Outages = 2, 1
	done, err := b.Work(sink.WithDrain(t.Context(), drain), t.Context(), batch)
	expectError(t, err, nil)
	expect(t, "put back", done.PutBack, true)
	expect(t, "due in", done.DueIn, 0)
	expect(t, "outcomes", describe(b.settles[0]), "retry []")
	expect(t, "sends that were heard of", watched.n, 0)
	expect(t, "Send's answer", done.SendErr, nil)
	expect(t, "the outage", b.Outage(), nil)
	expect(t, "turns that are out", to.out, 0)
	o := b.settles[0][0]
	if o.GroupID != batch.GroupID || o.Attempts != 2 || o.Outages != 1 || o.After != 0 || o.Error != "" {
		t.Errorf("it was put back as %+v", o)
	}
	_, err = b.Work(sink.WithDrain(lost(t), drain), t.Context(), batchOf(3))
	expectError(t, err, buffer.ErrLeaseLost)
	expect(t, "settles", len(b.settles), 1)
}

// sends counts those that a worker tells of.
type sends struct{ n int }

func (s *sends) Sent(*buffer.Lease, time.Duration)                      { s.n++ }
func (s *sends) Settled(*buffer.Lease, []buffer.Outcome, time.Duration) {}
