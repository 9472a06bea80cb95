package sinktest

import (
	"context"
	"errors"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// addresser returns the sink as a sink.Addresser; nil if it has one address.
func addresser(t *testing.T, s sink.Sink, d Destination) sink.Addresser {
	t.Helper()
	a, ok := s.(sink.Addresser)
	if !ok && d.Address != nil {
		t.Fatalf("%T sends to several addresses but is not a sink.Addresser", s)
	}
	return a
}

// addressOf checks that two events have the same AddressOf if and only if they arrive at the
// same address.
func addressOf(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	a := addresser(t, s, d)
	if a == nil {
		return
	}
	b := newBatch(40, func(i int, e *outbox.Event) { e.Topic = topicNo(i % 5) })
	sent := accountOf(mustDeliver(t, s, b)...)
	sent.exactly(t, h, d)
	arrivedAt, addressFor := map[string]string{}, map[string]string{}
	for _, got := range d.Arrivals(t) {
		address, ok := a.AddressOf(sent[got.ID].event)
		if !ok {
			t.Fatalf("event %s arrived at %q but has no address", got.ID, got.Address)
		}
		if other, known := arrivedAt[address]; known && other != got.Address {
			t.Errorf("events with AddressOf %q arrived at %q and %q", address, other, got.Address)
		}
		if other, known := addressFor[got.Address]; known && other != address {
			t.Errorf("events at %q have AddressOf %q and %q", got.Address, other, address)
		}
		arrivedAt[address], addressFor[got.Address] = got.Address, address
	}
}

// addressUnavailable checks that an outage of one address is reported for its events only,
// whether they are alone in a batch or among others.
func addressUnavailable(t *testing.T, h Harness, d Destination) {
	if d.BreakAddress == nil {
		return
	}
	s := connect(t, d)
	a := addresser(t, s, d)
	broken := topicNo(1)
	d.BreakAddress(t, broken)
	sent := account{}
	for _, topics := range []int{1, 3} {
		b := newBatch(12, func(i int, e *outbox.Event) { e.Topic = topicNo(1 + i%topics) })
		sent.add(sendToBroken(t, s, a, b, broken)...)
	}
	sent.exactly(t, h, d)
}

// sendToBroken sends a batch, or its parts if the sink splits it, and expects an outage of
// exactly the events whose topic is broken. It returns the delivered events.
func sendToBroken(t *testing.T, s sink.Sink, a sink.Addresser, b *buffer.Batch, broken string) []*buffer.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sendTimeout)
	defer cancel()
	err := s.Send(ctx, b)
	if split, ok := errors.AsType[*sink.SplitError](err); ok {
		var delivered []*buffer.Batch
		for _, g := range split.Groups {
			delivered = append(delivered, sendToBroken(t, s, a, part(b, g.Indexes...), broken)...)
		}
		return delivered
	}
	missing := map[int]bool{}
	if batchErr, ok := errors.AsType[*sink.BatchError](err); ok {
		for _, e := range batchErr.Events {
			outage(t, "an event whose address is broken", e.Err)
			missing[e.Index] = true
		}
	} else if err != nil {
		t.Fatalf("Send: got %v; want a *sink.BatchError", err)
	}
	var delivered []int
	for i := range b.Events {
		e := &b.Events[i]
		if missing[i] != (e.Topic == broken) {
			address, _ := a.AddressOf(e)
			t.Errorf("event %d for %q: missing %v", e.ID, address, missing[i])
		}
		if !missing[i] {
			delivered = append(delivered, i)
		}
	}
	if all := len(missing) == len(b.Events); errors.Is(err, sink.ErrUnavailable) != all {
		t.Errorf("%d of %d events met an outage, but Send returned %v", len(missing), len(b.Events), err)
	}
	return []*buffer.Batch{b.Part(delivered)}
}
