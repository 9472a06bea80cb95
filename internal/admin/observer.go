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
	claim                                                       prometheus.Observer
	send, settle, latency                                       traced
}

// Claimed implements pipeline.Observer.
func (o *Observer) Claimed(_ *buffer.Lease, took time.Duration) { o.claim.Observe(took.Seconds()) }

// Sent implements delivery.Observer.
func (o *Observer) Sent(b *buffer.Lease, took time.Duration) { o.send.observe(took, b.TraceID) }

// Settled implements delivery.Observer.
func (o *Observer) Settled(b *buffer.Lease, outcomes []buffer.Outcome, _ bool, took time.Duration) {
	o.settle.observe(took, b.TraceID)
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
			o.latency.observeEach(b, to.IDs, sent)
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

// traced is a histogram whose buckets name the trace of a batch that fell into them.
type traced struct{ prometheus.Observer }

func withTraces(h *prometheus.HistogramVec, pipeline, sink string) traced {
	return traced{h.WithLabelValues(pipeline, sink)}
}

// observe counts one value. The trace is "" for a batch that is not sampled.
func (h traced) observe(took time.Duration, trace string) {
	if e, ok := h.Observer.(prometheus.ExemplarObserver); ok && trace != "" {
		e.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": trace})
		return
	}
	h.Observe(took.Seconds())
}

// observeEach counts the latencies of events of a batch; the slowest one of them names the trace.
func (h traced) observeEach(b *buffer.Lease, ids []int64, sent time.Time) {
	if b.TraceID == "" {
		b.EachLatency(ids, sent, func(took time.Duration) { h.Observe(took.Seconds()) })
		return
	}
	var (
		slowest time.Duration
		some    bool
	)
	b.EachLatency(ids, sent, func(took time.Duration) {
		if !some {
			slowest, some = took, true
			return
		}
		h.Observe(min(took, slowest).Seconds())
		slowest = max(took, slowest)
	})
	if some {
		h.observe(slowest, b.TraceID)
	}
}
