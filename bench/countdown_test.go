package bench

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// countdown closes done when as many events as were left have been delivered,
// and takes the time from the begin of the first claim: what a pipeline waits for
// its schedule is no work.
type countdown struct {
	left  int64
	seen  atomic.Int64
	done  chan struct{}
	once  sync.Once
	began time.Time
	took  time.Duration // good when done is closed
}

func (c *countdown) Claimed(_ *outbox.Batch, took time.Duration) {
	c.once.Do(func() { c.began = time.Now().Add(-took) })
}
func (c *countdown) Sent(*outbox.Batch, time.Duration) {}

func (c *countdown) Settled(b *outbox.Batch, outcomes []outbox.Outcome, _ time.Duration) {
	for i := range outcomes {
		if outcomes[i].Verdict != outbox.Delivered {
			continue
		}
		n := int64(len(outcomes[i].IDs))
		if outcomes[i].IDs == nil {
			n = int64(len(b.Events))
		}
		if c.seen.Add(n) == c.left {
			c.took = time.Since(c.began)
			close(c.done)
		}
	}
}
