package bench

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// countdown closes done when all remaining events are delivered.
type countdown struct {
	left int64
	seen atomic.Int64
	done chan struct{}

	mu     sync.Mutex
	claims []time.Duration
}

func newCountdown(events int) *countdown {
	return &countdown{left: int64(events), done: make(chan struct{})}
}

// await fails if the end is late.
func (c *countdown) await(b *testing.B, atMost time.Duration) {
	b.Helper()
	select {
	case <-c.done:
	case <-time.After(atMost):
		b.Fatalf("%d of %d events were delivered in %v", c.seen.Load(), c.left, atMost)
	}
}

func (c *countdown) Claimed(_ *buffer.Lease, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims = append(c.claims, took)
}
func (c *countdown) Sent(*buffer.Lease, time.Duration) {}

func (c *countdown) Settled(b *buffer.Lease, outcomes []buffer.Outcome, _ bool, _ time.Duration) {
	for i := range outcomes {
		if outcomes[i].Verdict != buffer.Delivered {
			continue
		}
		n := int64(len(outcomes[i].IDs))
		if outcomes[i].IDs == nil {
			n = int64(len(b.Events))
		}
		c.add(int(n))
	}
}

func (c *countdown) add(n int) {
	if c.seen.Add(int64(n)) == c.left {
		close(c.done)
	}
}

// rotating passes what it observes to one countdown after the other. A round ends
// before the next begins.
type rotating struct {
	current atomic.Pointer[countdown]
}

func (r *rotating) next(c *countdown) { r.current.Store(c) }

func (r *rotating) Claimed(b *buffer.Lease, took time.Duration) { r.current.Load().Claimed(b, took) }
func (r *rotating) Sent(*buffer.Lease, time.Duration)           {}

func (r *rotating) Settled(b *buffer.Lease, outcomes []buffer.Outcome, sent bool, took time.Duration) {
	r.current.Load().Settled(b, outcomes, sent, took)
}
