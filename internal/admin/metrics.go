package admin

import (
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// label is the label of every metric of a pipeline. sinkLabel is that of one of several sinks; where it is empty, it is left out:
// see [Metrics.gather].
const (
	label     = "pipeline"
	sinkLabel = "sink"
)

// durations are the buckets for claims and settles, in seconds. Those for sends have one more: 30 s is the default of sink.timeout, at which a send ends a bit later.
var (
	durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	sends     = append(slices.Clone(durations), 60)
)

// Metrics are the Prometheus metrics of a process. Safe for concurrent use.
type Metrics struct {
	registry            *prometheus.Registry
	delivered, dead     *prometheus.CounterVec
	batches             *prometheus.CounterVec
	claim, send, settle *prometheus.HistogramVec
	latency             *prometheus.HistogramVec
	xminHorizon         *prometheus.GaugeVec
}

// NewMetrics returns metrics with a registry of their own and the metrics of the
// process. [Metrics.Observer] adds those of a pipeline. version is the relay's, and may be "".
func NewMetrics(version string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(labels, label, sinkLabel))
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label, sinkLabel})
	}
	m := &Metrics{
		registry:  prometheus.NewRegistry(),
		delivered: counter("relay_events_delivered_total", "Events that were delivered and deleted from the buffer."),
		dead:      counter("relay_events_dead_total", "Events that became dead letters."),
		batches: counter("relay_batches_total",
			"Settled batches, each counted under the first outcome that applies: buried (one of its events became a dead letter), "+
				"split (part of it is retried, under a new group_id), retry (all of it is retried, under its own), delivered.",
			"outcome"),
		claim:  histogram("relay_claim_seconds", "Duration of claims and take-overs.", durations),
		send:   histogram("relay_send_seconds", "Duration of sends, successful or not.", sends),
		settle: histogram("relay_settle_seconds", "Duration of settles, which write the outcomes of a batch.", durations),
		latency: histogram("relay_delivery_latency_seconds", "Time from the insert of an event to its delivery, by the database's clock. "+
			"Events whose delete was repeated are not counted.", buffer.LatencyBounds()),
	}
	m.xminHorizon = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "relay_source_xmin_horizon_seconds",
		Help: "Age of the oldest transaction, prepared transaction and replication slot that blocks vacuum or keeps WAL on the database server, " +
			"as last observed by the supervisor; 0 if there is none, NaN while the database is unavailable.",
	}, []string{"kind", label})
	m.registry.MustRegister(buildInfo(version), m.xminHorizon, m.delivered, m.dead, m.batches, m.claim, m.send, m.settle, m.latency,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// buildInfo is 1, with labels that describe the program.
func buildInfo(version string) prometheus.Collector {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "relay_build_info", Help: "1, with the version, the commit (if the build knows it), and the version of Go in its labels.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}

// Observer returns the observer of a pipeline and creates its metrics; sink is the name of one of its several sinks, "" if it has a
// single one. It must be called once for each pipeline and sink.
func (m *Metrics) Observer(pipeline, sink string) *Observer {
	m.VacuumObserver(pipeline).reset()
	batches := m.batches.MustCurryWith(prometheus.Labels{label: pipeline, sinkLabel: sink})
	return &Observer{
		delivered: m.delivered.WithLabelValues(pipeline, sink), dead: m.dead.WithLabelValues(pipeline, sink),
		deliveredBatches: batches.WithLabelValues("delivered"), retryBatches: batches.WithLabelValues("retry"),
		splitBatches: batches.WithLabelValues("split"), buriedBatches: batches.WithLabelValues("buried"),
		claim: m.claim.WithLabelValues(pipeline, sink), send: withTraces(m.send, pipeline, sink), settle: withTraces(m.settle, pipeline, sink),
		latency: withTraces(m.latency, pipeline, sink),
	}
}

// gather returns all metrics. The metrics of one name must have the same labels in a registry, so those of a pipeline with a single sink
// have an empty label sink there, which Prometheus takes for none.
func (m *Metrics) gather() ([]*dto.MetricFamily, error) {
	families, err := m.registry.Gather()
	for _, f := range families {
		for _, one := range f.GetMetric() {
			isEmpty := func(l *dto.LabelPair) bool { return l.GetName() == sinkLabel && l.GetValue() == "" }
			if slices.ContainsFunc(one.GetLabel(), isEmpty) {
				one.Label = slices.DeleteFunc(slices.Clone(one.GetLabel()), isEmpty) // the registry has others
			}
		}
	}
	return families, err
}
