package admin

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Horizon is a supervisor.Observer that shows what holds a database back, for each of
// the pipelines on it. Safe for concurrent use.
type Horizon struct{ of []*prometheus.GaugeVec }

// Horizon returns the observer for the pipelines of one database.
func (m *Metrics) Horizon(pipelines ...string) *Horizon {
	h := &Horizon{}
	for _, p := range pipelines {
		h.of = append(h.of, m.horizon.MustCurryWith(prometheus.Labels{label: p}))
	}
	return h
}

// held sets all kinds.
func (h *Horizon) held(age time.Duration) {
	for _, kind := range buffer.BlockerKinds() {
		h.Held(kind, age)
	}
}

// Held implements supervisor.Observer.
func (h *Horizon) Held(kind buffer.BlockerKind, age time.Duration) {
	seconds := age.Seconds()
	if age < 0 {
		seconds = math.NaN()
	}
	words := map[buffer.BlockerKind]string{buffer.BlockedByTransaction: "transaction", buffer.BlockedByPrepared: "prepared", buffer.BlockedBySlot: "slot"}
	for _, one := range h.of {
		one.WithLabelValues(words[kind]).Set(seconds)
	}
}
