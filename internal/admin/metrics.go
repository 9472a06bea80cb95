package admin

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Every metric of a pipeline has this label.
const label = "pipeline"

// durations are the buckets of claims, sends and settles, in seconds.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metrics is what Prometheus is shown. Safe for concurrent use.
type Metrics struct {
	registry            *prometheus.Registry
	delivered, dead     *prometheus.CounterVec
	batches             *prometheus.CounterVec
	claim, send, settle *prometheus.HistogramVec
	latencies           latencies
	horizon             *prometheus.GaugeVec
}

// NewMetrics makes a registry of its own, with the metrics of the process in it.
// A pipeline's come with its Observer.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(labels, label))
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durations}, []string{label})
	}
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		delivered: counter("relay_events_delivered_total", "Events that the sink has and the buffer has no more."),
		dead:      counter("relay_events_dead_total", "Events that became dead letters."),
		batches: counter("relay_batches_total",
			"Batches settled. Each counts once, for the first of these that is true: buried (an event of it became a dead letter), "+
				"split (a part of it is sent again, under a new group_id), retry (all of it is sent again, under its own), delivered.",
			"outcome"),
		claim:  histogram("relay_claim_seconds", "How long it took to claim a batch, or to take one over."),
		send:   histogram("relay_send_seconds", "How long one attempt at sending a batch took, however it ended."),
		settle: histogram("relay_settle_seconds", "How long it took to write down what became of a batch."),
	}
	m.horizon = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "relay_source_horizon_seconds",
		Help: "Age of the oldest transaction, prepared transaction and replication slot that keeps dead rows, or WAL, on the database's server, " +
			"as the supervisor last saw it, or for how long it saw it; 0 when there is none. NaN while the database cannot be asked.",
	}, []string{"kind", label})
	m.registry.MustRegister(m.horizon, m.delivered, m.dead, m.batches, m.claim, m.send, m.settle, &m.latencies,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Observer returns a pipeline's observer, to be called once a pipeline. Every
// metric it counts is there from now on.
func (m *Metrics) Observer(pipeline string) *Observer {
	m.Horizon(pipeline).held(0)
	batches := m.batches.MustCurryWith(prometheus.Labels{label: pipeline})
	return &Observer{
		delivered: m.delivered.WithLabelValues(pipeline), dead: m.dead.WithLabelValues(pipeline),
		deliveredBatches: batches.WithLabelValues("delivered"), retryBatches: batches.WithLabelValues("retry"),
		splitBatches: batches.WithLabelValues("split"), buriedBatches: batches.WithLabelValues("buried"),
		claim: m.claim.WithLabelValues(pipeline), send: m.send.WithLabelValues(pipeline), settle: m.settle.WithLabelValues(pipeline),
		latency: m.latencies.add(pipeline),
	}
}

// latencies collects those of all pipelines.
type latencies struct {
	mu  sync.Mutex
	all []*latency
}

func (l *latencies) add(pipeline string) *latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := &latency{pipeline: pipeline}
	l.all = append(l.all, one)
	return one
}

// Describe implements prometheus.Collector.
func (l *latencies) Describe(to chan<- *prometheus.Desc) { to <- latencyDesc }

// Collect implements prometheus.Collector.
func (l *latencies) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.mu.Unlock()
	for _, one := range all {
		to <- one.metric()
	}
}
