package sinktest

import (
	"context"
	"errors"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// threeTopics returns a batch with several addresses, because a sink may remember events by
// address.
func threeTopics() *buffer.Batch {
	return newBatch(60, func(i int, e *outbox.Event) { e.Topic = topicNo(i % 3) })
}

func resent(t *testing.T, h Harness, d Destination) {
	b := threeTopics()
	mustDeliver(t, connect(t, d), b)
	mustDeliver(t, connect(t, d), retaken(b))
	mustDeliver(t, connect(t, d), retaken(retaken(b)))
	accountOf(b).exactly(t, h, d)
}

func splitAfterSend(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	b := threeTopics()
	mustDeliver(t, s, b)
	first, second := halve(b)
	mustDeliver(t, s, first)
	mustDeliver(t, s, second)
	mustDeliver(t, s, retaken(first))
	quarter, _ := halve(second)
	mustDeliver(t, s, quarter)
	accountOf(b).ofAnyGroup().exactly(t, h, d)
}

// splitBeforeSend ends with a former owner that sends the whole batch: the sink must either
// drop its events as duplicates or fence it.
func splitBeforeSend(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	b := threeTopics()
	first, second := halve(b)
	mustDeliver(t, s, first)
	quarter, last := halve(second)
	mustDeliver(t, s, last)
	mustDeliver(t, s, quarter)
	mustDeliver(t, s, retaken(first))

	ctx, cancel := context.WithTimeout(t.Context(), sendTimeout)
	defer cancel()
	if err := s.Send(ctx, retaken(b)); err != nil && !errors.Is(err, sink.ErrFenced) {
		t.Errorf("Send by a former owner: got %v; want nil or sink.ErrFenced", err)
	}
	accountOf(b).ofAnyGroup().exactly(t, h, d)
}
