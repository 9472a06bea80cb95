package sinktest

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Bench measures Send with batches of 1000 events of 300 bytes to one topic, from one
// goroutine and from four that share a sink. It reports events/s.
func Bench(b *testing.B, h Harness) {
	const size = 1000
	payload := fmt.Appendf(nil, `{"order": 12345, "note": %q}`, strings.Repeat("x", 272))
	for _, senders := range []int{1, 4} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			d := h.Open(b)
			s := d.Connect(b)
			b.Cleanup(func() {
				if err := s.Close(); err != nil {
					b.Errorf("Close: %v", err)
				}
			})
			if err := s.Send(b.Context(), newBatch(size, nil)); err != nil { // connect
				b.Fatalf("Send: %v", err)
			}
			batches := make(chan *buffer.Batch)
			g, ctx := errgroup.WithContext(b.Context())
			for range senders {
				g.Go(func() error {
					for batch := range batches {
						if err := s.Send(ctx, batch); err != nil {
							return err
						}
					}
					return nil
				})
			}
			b.ReportAllocs()
			b.ResetTimer()
			g.Go(func() error {
				defer close(batches)
				for range b.N {
					batch := newBatch(size, func(_ int, e *outbox.Event) { e.Payload = payload })
					select {
					case batches <- batch:
					case <-ctx.Done():
						return nil // the sender returns the error
					}
				}
				return nil
			})
			if err := g.Wait(); err != nil {
				b.Fatalf("Send: %v", err)
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "events/s")
		})
	}
}
