package sinktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func topicNo(i int) string { return fmt.Sprintf("%st%d", TopicPrefix, i) }

// orderWithinAddress checks that the events of consecutive batches arrive in id order at each
// address.
func orderWithinAddress(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	sent := account{}
	for range 5 {
		b := newBatch(100, func(i int, e *outbox.Event) { e.Topic = topicNo(i % 3) })
		sent.add(mustDeliver(t, s, b)...)
	}
	sent.exactly(t, h, d)
	sent.ofAnyGroup().inOrder(t, d) // across batches
}

func concurrentSends(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	const senders, each = 8, 5
	parts := make([][]*buffer.Batch, senders)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range senders {
		g.Go(func() error {
			for range each {
				sent, err := deliver(ctx, s, newBatch(200, func(n int, e *outbox.Event) { e.Topic = topicNo(n % 2) }))
				if err != nil {
					return err
				}
				parts[i] = append(parts[i], sent...)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatalf("Send: %v", err)
	}
	sent := account{}
	for _, p := range parts {
		sent.add(p...)
	}
	sent.exactly(t, h, d)
	sent.inOrder(t, d)
}

func contextDone(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancelLate()
	sent := account{}
	for _, ctx := range []context.Context{cancelled, late} {
		b := newBatch(10, nil)
		sent.add(b)
		if err := s.Send(ctx, b); !errors.Is(err, sink.ErrUnavailable) && !errors.Is(err, ctx.Err()) {
			t.Errorf("Send with a context that is done: got %v; want one that wraps sink.ErrUnavailable or %q", err, ctx.Err())
		}
		mustDeliver(t, s, retaken(b))
	}
	if h.OnceOnly {
		sent.exactly(t, h, d)
	} else {
		sent.atLeast(t, h, d)
	}
}

func check(t *testing.T, h Harness, d Destination) {
	ctx, cancel := context.WithTimeout(t.Context(), sendTimeout)
	defer cancel()
	if err := connect(t, d).Check(ctx); err != nil {
		t.Errorf("Check of a good sink: %v", err)
	}
	if got := d.Arrivals(t); len(got) != 0 {
		t.Errorf("Check sent %d events", len(got))
	}
	broken := connect(t, Destination{Connect: h.OpenBroken})
	outage(t, "Check of a broken sink", broken.Check(ctx))
	began := time.Now()
	outage(t, "Send to a broken sink", broken.Send(ctx, newBatch(2, nil)))
	if took := time.Since(began); took > sendTimeout/2 {
		t.Errorf("Send to a broken sink took %v; want less than %v", took, sendTimeout/2)
	}
}

func destinationRestarts(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	first, second := newBatch(10, nil), newBatch(10, nil)
	mustDeliver(t, s, first)
	d.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), sendTimeout)
	defer cancel()
	outage(t, "Send to a stopped destination", s.Send(ctx, second))
	outage(t, "Check of a stopped destination", s.Check(ctx))
	d.Start(t)
	if err := deliverEventually(t.Context(), s, retaken(second)); err != nil {
		t.Fatalf("Send after the destination has restarted: %v", err)
	}
	if err := s.Check(ctx); err != nil {
		t.Fatalf("Check after the destination has restarted: %v", err)
	}
	accountOf(first, second).exactly(t, h, d)
}

// restartDuringSends restarts the destination during Sends. Batches that meet the outage are
// resent, so only a sink with OnceOnly delivers them once.
func restartDuringSends(t *testing.T, h Harness, d Destination) {
	s := connect(t, d)
	const senders, each = 4, 25
	sent := account{}
	var batches [senders][]*buffer.Batch
	for i := range senders {
		for range each {
			b := newBatch(100, nil)
			batches[i] = append(batches[i], b)
			sent.add(b)
		}
	}
	started := make(chan struct{}, senders*each)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range senders {
		g.Go(func() error {
			for _, b := range batches[i] {
				started <- struct{}{}
				if err := deliverEventually(ctx, s, b); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 10 {
		<-started
	}
	d.Stop(t)
	d.Start(t)
	if err := g.Wait(); err != nil {
		t.Fatalf("Send: %v", err)
	}
	if h.OnceOnly {
		sent.ofAnyGroup().exactly(t, h, d)
	} else {
		sent.ofAnyGroup().atLeast(t, h, d)
	}
}

func closeEndsGoroutines(t *testing.T, h Harness) {
	d := h.Open(t)
	use := func() {
		s := d.Connect(t)
		mustDeliver(t, s, newBatch(10, nil))
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	use() // the destination may start goroutines at first use
	before := goleak.IgnoreCurrent()
	use()
	if err := goleak.Find(before); err != nil {
		t.Errorf("after Close: %v", err)
	}
}
