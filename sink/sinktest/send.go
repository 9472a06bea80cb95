package sinktest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// sendTimeout is enough for any Send that should work, also on a slow machine.
const sendTimeout = 30 * time.Second

// lastID makes ids unique in the process, because tests may share a destination.
var lastID atomic.Int64

var createdAt = time.Date(2026, 1, 2, 3, 4, 5, 123456000, time.UTC)

// newBatch returns a batch of n JSON events with one topic. change may change each event.
func newBatch(n int, change func(i int, e *outbox.Event)) *buffer.Batch {
	first := lastID.Add(int64(n)) - int64(n) + 1
	events := make([]outbox.Event, n)
	for i := range events {
		e := &events[i]
		*e = outbox.Event{
			ID: first + int64(i), Topic: TopicPrefix + "orders",
			CreatedAt: createdAt,
		}
		if change != nil {
			change(i, e)
		}
		if e.Payload == nil {
			e.Payload = fmt.Appendf(nil, `{"order": %d}`, i)
		}
	}
	return batchOf(events, nil)
}

// batchOf returns a batch as it is sent for the first time.
func batchOf(events []outbox.Event, origins []uuid.UUID) *buffer.Batch {
	return &buffer.Batch{
		GroupID: buffer.NewGroupID(), Pipeline: Pipeline, Events: events, PayloadIsJSON: true,
		Origins: origins, FirstSend: true,
	}
}

// part is some of b's events under a new group_id, as after a split.
func part(b *buffer.Batch, indexes ...int) *buffer.Batch {
	p := b.Part(indexes)
	p.GroupID, p.Origins = buffer.NewGroupID(), append(append([]uuid.UUID(nil), b.Origins...), b.GroupID)
	return p
}

// halve splits b in two.
func halve(b *buffer.Batch) (first, second *buffer.Batch) {
	all := make([]int, len(b.Events))
	for i := range all {
		all[i] = i
	}
	return part(b, all[:len(all)/2]...), part(b, all[len(all)/2:]...)
}

// retaken is the batch after a take-over.
func retaken(b *buffer.Batch) *buffer.Batch {
	again := *b
	again.FirstSend = false
	return &again
}

// connect returns a sink that is closed when the test ends.
func connect(t *testing.T, d Destination) sink.Sink {
	t.Helper()
	s := d.Connect(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// deliver sends the batch, or its parts if the sink splits it. It returns the batches that
// were delivered.
func deliver(ctx context.Context, s sink.Sink, b *buffer.Batch) ([]*buffer.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	err := s.Send(ctx, b)
	var split *sink.SplitError
	if !errors.As(err, &split) {
		return []*buffer.Batch{b}, err
	}
	var parts []*buffer.Batch
	for _, g := range split.Groups {
		p := part(b, g.Indexes...)
		if err := s.Send(ctx, p); err != nil {
			return nil, fmt.Errorf("part for %s: %w", g.Address, err)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// mustDeliver is deliver without an error.
func mustDeliver(t *testing.T, s sink.Sink, b *buffer.Batch) []*buffer.Batch {
	t.Helper()
	parts, err := deliver(t.Context(), s, b)
	if err != nil {
		t.Fatalf("Send: %v", err)
	}
	return parts
}

// deliverEventually sends the batch, or what is left of it, until there is no outage.
func deliverEventually(ctx context.Context, s sink.Sink, b *buffer.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, 2*sendTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := deliver(ctx, s, b)
		var batchErr *sink.BatchError
		switch {
		case err == nil:
			return nil
		case errors.Is(err, sink.ErrUnavailable):
			b = retaken(b)
		case errors.As(err, &batchErr):
			left := make([]int, len(batchErr.Events))
			for i, e := range batchErr.Events {
				if left[i] = e.Index; !errors.Is(e.Err, sink.ErrUnavailable) {
					return err
				}
			}
			b = part(b, left...)
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still an outage: %w", err)
		case <-tick.C:
		}
	}
}

func outage(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, sink.ErrUnavailable) {
		t.Fatalf("%s: got %v; want an error that wraps sink.ErrUnavailable", what, err)
	}
	if errors.Is(err, sink.ErrPermanent) {
		t.Fatalf("%s: %v is both an outage and a permanent rejection", what, err)
	}
}
