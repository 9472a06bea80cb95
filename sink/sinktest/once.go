package sinktest

import (
	"context"
	"errors"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Several topics each: what a sink remembers may be kept by address.
func ofThreeTopics() *buffer.Batch {
	return newBatch(60, func(i int, e *outbox.Event) { e.Topic = topicNo(i % 3) })
}

func sentAgain(t *testing.T, h Harness, d Destination) {
	b := ofThreeTopics()
	mustDeliver(t, connect(t, d), b)
	mustDeliver(t, connect(t, d), retaken(b))
	mustDeliver(t, connect(t, d), retaken(retaken(b)))
	accountOf(b).exactly(t, h, d)
}

func halvedAfterSent(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	b := ofThreeTopics()
	mustDeliver(t, s, b)
	first, second := halve(b)
	mustDeliver(t, s, first)
	mustDeliver(t, s, second)
	mustDeliver(t, s, retaken(first))
	quarter, _ := halve(second)
	mustDeliver(t, s, quarter)
	accountOf(b).ofAnyGroup().exactly(t, h, d)
}

// halvedBeforeSent ends with an owner that lost its lease, wakes up and sends
// the whole: that is either remembered event by event or fenced.
func halvedBeforeSent(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	b := ofThreeTopics()
	first, second := halve(b)
	mustDeliver(t, s, first)
	quarter, last := halve(second)
	mustDeliver(t, s, last)
	mustDeliver(t, s, quarter)
	mustDeliver(t, s, retaken(first))

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Send(ctx, retaken(b)); err != nil && !errors.Is(err, sink.ErrFenced) {
		t.Errorf("Send by an owner that lost its lease: got %v, want nil or sink.ErrFenced", err)
	}
	accountOf(b).ofAnyGroup().exactly(t, h, d)
}
