package admin

import (
	"context"
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const unknown = " NaN while relay_source_up is 0."

var (
	pendingDesc = desc("relay_events_pending",
		"Events that are committed and neither delivered nor dead; exact to 100,000, an estimate beyond."+unknown)
	oldestDesc      = desc("relay_oldest_pending_seconds", "Age of the oldest pending event; 0 when there is none."+unknown)
	batchesDesc     = desc("relay_batches", "Live batches by state."+unknown, "state")
	transactionDesc = desc("relay_source_oldest_transaction_seconds",
		"Age of the oldest transaction open on the database's server; 0 when there is none."+unknown)
	untoldDesc = desc("relay_dead_letters_untold", "Open dead letters that dead_letter.hook has not heard of: all of them where there is none."+unknown)
	upDesc     = desc("relay_source_up", "1 when the database told its status, else 0.")
	sizeDesc   = desc("relay_batch_size", "Events that a batch may hold: what batch_size says, or auto has found.")
	atOnceDesc = desc("relay_workers", "Batches that are sent at once at the most: what workers says, or auto has found.")
	readyDesc  = desc("relay_ready", "1 when the pipeline reaches its database and its sink and gets on, else 0; /readyz says why.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(labels, label), nil)
}

// gauges shows the status of pipelines, asked for when Prometheus asks. What is not
// known is NaN: 0 would look as if all were well.
type gauges struct{ snapshots snapshots }

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pendingDesc, oldestDesc, batchesDesc, transactionDesc, untoldDesc, upDesc, readyDesc, sizeDesc, atOnceDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	g.snapshots.each(context.Background(), func(p Pipeline, s buffer.Status, err error) {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append(labels, p.Name())...)
		}
		known := func(value float64) float64 {
			if err != nil {
				return math.NaN()
			}
			return value
		}
		gauge(pendingDesc, known(float64(s.Pending)))
		gauge(oldestDesc, known(s.OldestPending.Seconds()))
		gauge(batchesDesc, known(float64(s.Leased)), "leased")
		gauge(batchesDesc, known(float64(s.Waiting)), "waiting")
		gauge(batchesDesc, known(float64(s.Delivered)), "delivered")
		gauge(transactionDesc, known(s.OldestTransaction.Seconds()))
		gauge(untoldDesc, known(float64(s.Unnotified)))
		gauge(upDesc, truth(err == nil))
		gauge(readyDesc, truth(p.Ready() == nil))
		batchSize, workers := p.Limits()
		gauge(sizeDesc, float64(batchSize))
		gauge(atOnceDesc, float64(workers))
	})
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
