package sinktest

import (
	"context"
	"errors"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// addresser is the sink as one; nil when all its events go to the same place.
func addresser(t *testing.T, s sink.Sink, d Destination) sink.Addresser {
	t.Helper()
	a, ok := s.(sink.Addresser)
	if !ok && d.Address != nil {
		t.Fatalf("%T sends to several addresses and is no sink.Addresser", s)
	}
	return a
}

// addressesAreTold: events have the same AddressOf exactly when they arrive at the
// same place.
func addressesAreTold(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	a := addresser(t, s, d)
	if a == nil {
		return
	}
	b := newBatch(40, func(i int, e *outbox.Event) { e.Topic = topicNo(i % 5) })
	sent := accountOf(mustDeliver(t, s, b)...)
	sent.exactly(t, h, d)
	arrived, told := map[string]string{}, map[string]string{}
	for _, got := range d.Arrivals(t) {
		address, ok := a.AddressOf(sent[got.ID].event)
		if !ok {
			t.Fatalf("event %s arrived at %q and has no address", got.ID, got.Address)
		}
		if was, known := arrived[address]; known && was != got.Address {
			t.Errorf("AddressOf %q is %q and %q", address, was, got.Address)
		}
		if was, known := told[got.Address]; known && was != address {
			t.Errorf("what arrived at %q was for %q and %q", got.Address, was, address)
		}
		arrived[address], told[got.Address] = got.Address, address
	}
}

// anAddressIsAway: the outage of an address is told of its events, alone or among
// others, so that it stops nobody else's.
func anAddressIsAway(t *testing.T, h Harness, d Destination) {
	if d.BreakAddress == nil {
		return
	}
	s := connect(t, d)
	a := addresser(t, s, d)
	away := topicNo(1)
	d.BreakAddress(t, away)
	sent := account{}
	for _, topics := range []int{1, 3} {
		b := newBatch(12, func(i int, e *outbox.Event) { e.Topic = topicNo(1 + i%topics) })
		sent.add(expectAway(t, s, a, b, away)...)
	}
	sent.exactly(t, h, d)
}

// expectAway sends a batch, or the parts that the sink wants of it, and expects an
// outage of exactly the events whose topic is away. It returns what arrived.
func expectAway(t *testing.T, s sink.Sink, a sink.Addresser, b *buffer.Batch, away string) []*buffer.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := s.Send(ctx, b)
	if divide, ok := errors.AsType[*sink.SplitError](err); ok {
		var there []*buffer.Batch
		for _, g := range divide.Groups {
			there = append(there, expectAway(t, s, a, part(b, g.Indexes...), away)...)
		}
		return there
	}
	missing := map[int]bool{}
	if some, ok := errors.AsType[*sink.BatchError](err); ok {
		for _, e := range some.Events {
			outage(t, "an event whose address is away", e.Err)
			missing[e.Index] = true
		}
	} else if err != nil {
		t.Fatalf("Send: got %v, want a *sink.BatchError", err)
	}
	there := *b
	there.Events = nil
	for i := range b.Events {
		e := &b.Events[i]
		if missing[i] != (e.Topic == away) {
			address, _ := a.AddressOf(e)
			t.Errorf("event %d for %q: missing %v", e.ID, address, missing[i])
		}
		if !missing[i] {
			there.Events = append(there.Events, *e)
		}
	}
	if all := len(missing) == len(b.Events); errors.Is(err, sink.ErrUnavailable) != all {
		t.Errorf("%d of %d events are away, and of the batch is said: %v", len(missing), len(b.Events), err)
	}
	return []*buffer.Batch{&there}
}
