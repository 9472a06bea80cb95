package bench

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
)

// BenchmarkBroker sends the events of a drain as the loop does, but from memory: no database is read and nothing is
// deleted. Its rate is what a drain to that broker could reach on this machine if PostgreSQL cost nothing.
func BenchmarkBroker(b *testing.B) {
	events := scaled(300_000)
	for name, to := range map[string]broker{"Redis": redisStream(b), "JetStream": jetStream(b, false)} {
		b.Run(name, func(b *testing.B) {
			results := map[int][]figures{}
			for b.Loop() {
				for _, workers := range []int{1, 2, 4} {
					results[workers] = append(results[workers], to.alone(b, workers, events))
				}
			}
			t := table{head: []string{"workers", "events/s", "own µs", "broker µs"}}
			for _, workers := range []int{1, 2, 4} {
				mine := results[workers]
				t.add(fmt.Sprint(workers), medianOf(mine, rate), medianOf(mine, ownWork), medianOf(mine, brokerWork))
				b.ReportMetric(medianOf(mine, rate), fmt.Sprintf("%d-events/s", workers))
			}
			b.ReportMetric(0, "ns/op")
			b.Logf("%d events, no database, medians of %d rounds\n%s", events, b.N, t)
		})
	}
}

// alone sends events by a number of workers, each with a push of its own.
func (to broker) alone(b *testing.B, workers, events int) figures {
	b.Helper()
	to.empty(b, contender{})
	own, broker, began := cpuTime(b, os.Getpid()), cpuTime(b, to.pid), time.Now()
	var group errgroup.Group
	for w := range workers {
		group.Go(func() error {
			push, err := to.loop()
			for first := w * batchSize; err == nil && first < events; first += workers * batchSize {
				batch := make([]loopEvent, min(batchSize, events-first))
				for i := range batch {
					batch[i] = loopEvent{id: int64(first + i), topic: orders, payload: []byte(payloadOf(first + i))}
				}
				err = push(b.Context(), batch)
			}
			return err
		})
	}
	testkit.NoError(b, group.Wait())
	took := time.Since(began)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(events) }
	return figures{
		rate:   float64(events) / took.Seconds(),
		own:    each(cpuTime(b, os.Getpid()) - own),
		broker: each(cpuTime(b, to.pid) - broker),
	}
}
