package admin

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var latencyDesc = desc("relay_delivery_latency_seconds",
	"Age of an event when the sink had it, from its insert on and by the database's clock. "+
		"Not counted: events whose delete had to be done again.")

// latencyBounds are the upper bounds of the delivery latency's buckets.
var latencyBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour,
}

// latency is a histogram of how old events are when the sink has them. It takes a
// batch at a time: there may be hundreds of thousands of events a second, and the
// events of a batch are of nearly the same age.
type latency struct {
	pipeline string

	mu      sync.Mutex
	buckets [len(latencyBounds) + 1]uint64
	count   uint64
	sum     time.Duration
}

// observe takes the events of b that ids names in ascending order, nil for all,
// as delivered at a time.
func (l *latency) observe(b *buffer.Lease, ids []int64, delivered time.Time) {
	// The database's clock when they were delivered.
	now := b.ClaimedAt.Add(delivered.Sub(b.ClaimedLocal))
	var (
		buckets [len(latencyBounds) + 1]uint64
		count   uint64
		sum     time.Duration
		bucket  int
	)
	for i := range b.Events {
		e := &b.Events[i]
		if ids != nil {
			if len(ids) == 0 {
				break
			}
			if e.ID != ids[0] {
				continue
			}
			ids = ids[1:]
		}
		age := max(0, now.Sub(e.CreatedAt))
		for bucket > 0 && age <= latencyBounds[bucket-1] {
			bucket--
		}
		for bucket < len(latencyBounds) && age > latencyBounds[bucket] {
			bucket++
		}
		buckets[bucket]++
		count++
		sum += age
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, n := range buckets {
		l.buckets[i] += n
	}
	l.count += count
	l.sum += sum
}

// metric shows the histogram as Prometheus wants it: cumulative.
func (l *latency) metric() prometheus.Metric {
	l.mu.Lock()
	defer l.mu.Unlock()
	cumulative := make(map[float64]uint64, len(latencyBounds))
	var n uint64
	for i, bound := range latencyBounds {
		n += l.buckets[i]
		cumulative[bound.Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(latencyDesc, l.count, l.sum.Seconds(), cumulative, l.pipeline)
}
