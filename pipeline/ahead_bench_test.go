package pipeline_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
)

// BenchmarkFixedLatency drains 200 batches of 100 events into a sink of which every
// Send takes as long, however many there are at once: what is not spent waiting for
// the sink shows as the share of the rate that such a sink allows. "0s" is bound by
// the database and this machine.
func BenchmarkFixedLatency(b *testing.B) {
	d := newDatabase(b)
	for _, workers := range []int{1, 4} {
		for _, latency := range []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
			b.Run(fmt.Sprintf("workers=%d/latency=%v", workers, latency), func(b *testing.B) {
				const batches = 200
				var took time.Duration
				for b.Loop() {
					took += d.drainInto(b, &slow{latency: latency}, batches, workers)
				}
				rate := float64(batches*b.N) / took.Seconds()
				b.ReportMetric(rate, "batches/s")
				if latency > 0 {
					b.ReportMetric(100*rate*latency.Seconds()/float64(workers), "%ofsink")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// drainInto returns the time from the first claim to the last settle.
func (d *database) drainInto(b *testing.B, to *slow, batches, workers int) time.Duration {
	b.Helper()
	d.exec(b, "TRUNCATE outbox_events, outbox_batches")
	d.insert(b, "orders", batches*100)
	d.exec(b, "VACUUM ANALYZE outbox_events")
	buf := d.buffer(b, "bench")
	end := &ending{left: int64(batches) * 100, done: make(chan struct{})}
	p, err := pipeline.New(buf, to, pipeline.Config{
		Name: "orders", BatchSize: 100, Workers: workers, MaxBatches: batches, Schedule: often(20 * time.Millisecond),
		Observer: end, Log: slog.New(slog.DiscardHandler),
	})
	testkit.NoError(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	go func() {
		select {
		case <-end.done:
		case <-ctx.Done():
		}
		cancel()
	}()
	testkit.NoError(b, p.Run(ctx, b.Context()))
	d.expectDrained(b)
	return end.took
}

// slow is a sink of which every Send takes as long.
type slow struct{ latency time.Duration }

func (s *slow) Send(ctx context.Context, _ *buffer.Batch) error {
	select {
	case <-time.After(s.latency):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (*slow) Check(context.Context) error { return nil }
func (*slow) Close() error                { return nil }

// ending closes done when so many events were delivered.
type ending struct {
	left  int64
	began atomic.Pointer[time.Time]
	took  time.Duration
	done  chan struct{}
}

func (e *ending) Claimed(_ *buffer.Lease, took time.Duration) {
	began := time.Now().Add(-took)
	e.began.CompareAndSwap(nil, &began)
}
func (*ending) Sent(*buffer.Lease, time.Duration) {}
func (e *ending) Settled(b *buffer.Lease, _ []buffer.Outcome, _ bool, _ time.Duration) {
	if atomic.AddInt64(&e.left, -int64(len(b.Events))) == 0 {
		e.took = time.Since(*e.began.Load())
		close(e.done)
	}
}
