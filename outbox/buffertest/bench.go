package buffertest

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Benchmark measures claim and settle, without any sink: batches of 1000,
// payloads of 300 bytes. It reports events/s.
func Benchmark(b *testing.B, h Harness) {
	for _, workers := range []int{1, 4} {
		b.Run(fmt.Sprintf("claim+settle/workers=%d", workers), func(b *testing.B) {
			claimAndSettle(b, h, workers)
		})
	}
}

func claimAndSettle(b *testing.B, h Harness, workers int) {
	const batch, stock = 1000, 50
	f := h.Open(b, Options{})
	payload := fmt.Appendf(nil, `{"order": 1234567, "note": "%s"}`, bytes.Repeat([]byte("x"), 270))
	events := make([]outbox.Event, batch)
	for i := range events {
		events[i] = outbox.Event{Topic: "orders.created", Key: text("customer-7"), Payload: payload}
	}
	todo := 0 // batches in the buffer
	total := 0
	b.ResetTimer()
	for total < b.N {
		if todo == 0 {
			b.StopTimer()
			for ; todo < stock; todo++ {
				f.Insert(b, events...)
			}
			b.StartTimer()
		}
		round := min(todo, b.N-total)
		tickets := make(chan struct{}, round)
		for range round {
			tickets <- struct{}{}
		}
		close(tickets)
		g, ctx := errgroup.WithContext(b.Context())
		for range workers {
			g.Go(func() error {
				for range tickets {
					got, err := f.Buffer.Claim(ctx, batch, lease)
					if err != nil {
						return err
					}
					if got == nil || len(got.Events) != batch {
						return fmt.Errorf("claim of %d waiting events came back short", batch)
					}
					if err := f.Buffer.Settle(ctx, got, []buffer.Outcome{delivered()}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		ok(b, "claim and settle", g.Wait())
		todo -= round
		total += round
	}
	b.ReportMetric(float64(total*batch)/b.Elapsed().Seconds(), "events/s")
}
