package admin

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// VacuumObserver is a supervisor.Observer that exports what blocks vacuum in a
// database, for each of its pipelines. Safe for concurrent use.
type VacuumObserver struct{ gauges []*prometheus.GaugeVec }

// VacuumObserver returns the observer for the pipelines of a database.
func (m *Metrics) VacuumObserver(pipelines ...string) *VacuumObserver {
	o := &VacuumObserver{}
	for _, p := range pipelines {
		o.gauges = append(o.gauges, m.xminHorizon.MustCurryWith(prometheus.Labels{label: p}))
	}
	return o
}

// reset sets the gauges of all kinds to 0.
func (o *VacuumObserver) reset() {
	for _, kind := range buffer.BlockerKinds() {
		o.Blocked(kind, 0)
	}
}

// Blocked implements supervisor.Observer.
func (o *VacuumObserver) Blocked(kind buffer.BlockerKind, age time.Duration) {
	seconds := age.Seconds()
	if age < 0 {
		seconds = math.NaN()
	}
	values := map[buffer.BlockerKind]string{buffer.BlockedByTransaction: "transaction", buffer.BlockedByPrepared: "prepared", buffer.BlockedBySlot: "slot"}
	for _, g := range o.gauges {
		g.WithLabelValues(values[kind]).Set(seconds)
	}
}
