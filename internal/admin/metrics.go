package admin

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// label is the label of every metric of a pipeline.
const label = "pipeline"

// durations are the buckets for claims, sends and settles, in seconds.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metrics are the Prometheus metrics of a process. Safe for concurrent use.
type Metrics struct {
	registry            *prometheus.Registry
	delivered, dead     *prometheus.CounterVec
	batches             *prometheus.CounterVec
	claim, send, settle *prometheus.HistogramVec
	latencies           latencies
	xminHorizon         *prometheus.GaugeVec
}

// NewMetrics returns metrics with a registry of their own and the metrics of the
// process. [Metrics.Observer] adds those of a pipeline.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(labels, label))
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durations}, []string{label})
	}
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		delivered: counter("relay_events_delivered_total", "Events that were delivered and deleted from the buffer."),
		dead:      counter("relay_events_dead_total", "Events that became dead letters."),
		batches: counter("relay_batches_total",
			"Settled batches, each counted under the first outcome that applies: buried (one of its events became a dead letter), "+
				"split (part of it is retried, under a new group_id), retry (all of it is retried, under its own), delivered.",
			"outcome"),
		claim:  histogram("relay_claim_seconds", "Duration of claims and take-overs."),
		send:   histogram("relay_send_seconds", "Duration of sends, successful or not."),
		settle: histogram("relay_settle_seconds", "Duration of settles, which write the outcomes of a batch."),
	}
	m.xminHorizon = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "relay_source_xmin_horizon_seconds",
		Help: "Age of the oldest transaction, prepared transaction and replication slot that blocks vacuum or keeps WAL on the database server, " +
			"as last observed by the supervisor; 0 if there is none, NaN while the database is unavailable.",
	}, []string{"kind", label})
	m.registry.MustRegister(m.xminHorizon, m.delivered, m.dead, m.batches, m.claim, m.send, m.settle, &m.latencies,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Observer returns the observer of a pipeline and creates its metrics. It must be
// called once for each pipeline.
func (m *Metrics) Observer(pipeline string) *Observer {
	m.VacuumObserver(pipeline).reset()
	batches := m.batches.MustCurryWith(prometheus.Labels{label: pipeline})
	return &Observer{
		delivered: m.delivered.WithLabelValues(pipeline), dead: m.dead.WithLabelValues(pipeline),
		deliveredBatches: batches.WithLabelValues("delivered"), retryBatches: batches.WithLabelValues("retry"),
		splitBatches: batches.WithLabelValues("split"), buriedBatches: batches.WithLabelValues("buried"),
		claim: m.claim.WithLabelValues(pipeline), send: m.send.WithLabelValues(pipeline), settle: m.settle.WithLabelValues(pipeline),
		latency: m.latencies.add(pipeline),
	}
}

// latencies collects the latency histograms of all pipelines.
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
