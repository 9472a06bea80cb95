package pipeline

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/claimer"
	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// dueBuffer counts take overs; there is never anything to take over.
type dueBuffer struct {
	buffer.Queue
	takenOver int
}

func (b *dueBuffer) TakeOver(context.Context, time.Duration, buffer.Due) (*buffer.Lease, error) {
	b.takenOver++
	return nil, nil
}

// anySink is never asked.
type anySink struct{ sink.Sink }

// A due batch is taken over when there is a slot to send it, and not before: what its owner leaves unfinished
// makes it a suspect.
func TestClaimAhead_TakesNothingOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		buf := &dueBuffer{}
		p, err := New(buf, anySink{}, Config{Name: "orders", Workers: 1, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		release, ok := p.limiter.slots.acquire(t.Context())
		if !ok {
			t.Fatal("the only slot is taken")
		}
		c := claimer.New(buf, claimer.Config{Lease: time.Minute, Log: slog.New(slog.DiscardHandler)})
		go func() { _, _ = p.work(t.Context(), t.Context(), c, distributor.Ticket{Due: true}) }()
		synctest.Wait()
		if buf.takenOver != 0 {
			t.Error("a batch was taken over while another was being sent in the only slot")
		}
		release()
		synctest.Wait()
		if buf.takenOver != 1 {
			t.Errorf("%d batches were taken over when the slot was free", buf.takenOver)
		}
		if _, ok := p.limiter.slots.acquire(t.Context()); !ok {
			t.Error("the slot was not released")
		}
	})
}
