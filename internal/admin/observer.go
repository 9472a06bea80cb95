package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Observer is a pipeline.Observer that counts. Safe for concurrent use.
type Observer struct {
	delivered, dead                                             prometheus.Counter
	deliveredBatches, retryBatches, splitBatches, buriedBatches prometheus.Counter
	claim, send, settle, latency                                prometheus.Observer
}

// Claimed implements pipeline.Observer.
func (o *Observer) Claimed(_ *buffer.Lease, took time.Duration) { o.claim.Observe(took.Seconds()) }

// Sent implements delivery.Observer.
func (o *Observer) Sent(_ *buffer.Lease, took time.Duration) { o.send.Observe(took.Seconds()) }

// Settled implements delivery.Observer.
func (o *Observer) Settled(b *buffer.Lease, outcomes []buffer.Outcome, _ bool, took time.Duration) {
	o.settle.Observe(took.Seconds())
	var (
		sent      = time.Now().Add(-took) // settling starts when the send is over
		delivered int
		dead      int
		split     bool
		retry     bool
	)
	for i := range outcomes {
		to := &outcomes[i]
		events := len(to.IDs)
		if to.IDs == nil {
			events = b.Len()
		}
		switch to.Verdict {
		case buffer.Delivered:
			delivered += events
			b.EachLatency(to.IDs, sent, func(took time.Duration) { o.latency.Observe(took.Seconds()) })
		case buffer.Dead:
			dead += events
		case buffer.Retry:
			retry, split = true, split || to.IDs != nil
		}
	}
	o.delivered.Add(float64(delivered))
	o.dead.Add(float64(dead))
	switch {
	case dead > 0:
		o.buriedBatches.Inc()
	case split:
		o.splitBatches.Inc()
	case retry:
		o.retryBatches.Inc()
	default:
		o.deliveredBatches.Inc()
	}
}
