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
		"Events that are committed and neither delivered nor dead; exact to 100,000, an estimate beyond. "+
			"With several sinks an event counts once at each that does not have it, and at sink * until it is routed."+unknown)
	delayedDesc     = desc("relay_events_delayed", "Events whose available_at has not come; they are not pending. Exact to 100,000, an estimate beyond."+unknown)
	oldestDesc      = desc("relay_oldest_pending_seconds", "Age of the oldest pending event, or the time since it became available; 0 if there is none, absent if nothing says when events were inserted."+unknown)
	batchesDesc     = desc("relay_batches", "Live batches by state."+unknown, "state")
	suspectsDesc    = desc("relay_suspect_batches", "Live batches that two or more owners in a row did not finish; they are sent one at a time, with nothing else in flight."+unknown)
	suspectDesc     = desc("relay_oldest_suspect_seconds", "Time since the oldest suspect batch was claimed; 0 if there is none."+unknown)
	transactionDesc = desc("relay_source_oldest_transaction_seconds",
		"Age of the oldest open transaction on the database server; 0 if there is none, absent if the role does not have pg_read_all_stats."+unknown)
	tableLockedDesc = desc("relay_source_table_locked",
		"1 while a transaction has locked a table of the relay as a whole, so that the application cannot insert events, or the relay cannot claim or settle them; 0 otherwise, NaN while that is unknown.")
	deadLettersDesc   = desc("relay_dead_letters", "Open dead letters: neither replayed nor discarded."+unknown)
	unnotifiedDesc    = desc("relay_dead_letters_unnotified", "Open dead letters that dead_letter.hook was not notified of; 0 without a hook."+unknown)
	hookDesc          = desc("relay_dead_letter_hook", "1 if a dead_letter.hook is notified of the dead letters, 0 if there is none.")
	archiveBytesDesc  = desc("relay_archive_bytes", "What the archive takes on the disk, with its indexes; an estimate on SQLite. Absent without an archive, up to a minute old."+unknown)
	archiveEventsDesc = desc("relay_archive_events", "Estimate of the events in the archive; NaN until PostgreSQL has analysed the table. Absent without an archive, up to a minute old."+unknown)
	archiveOldestDesc = desc("relay_archive_oldest_seconds", "Time since the oldest event of the archive was archived; 0 if there is none. Absent without an archive, up to a minute old."+unknown)
	leftBehindDesc    = desc("relay_events_left_behind", "Events in other tables that the pipeline owned before and from which no relay that runs sends, up to 1,000 a table. Not on SQLite, up to a minute old."+unknown)
	upDesc            = desc("relay_source_up", "1 if the status could be read from the database, 0 otherwise.")
	batchSizeDesc     = desc("relay_batch_size", "Current batch size: batch_size, or the value that auto found.")
	workersDesc       = desc("relay_workers", "Current number of batches sent at once: workers, or the value that auto found.")
	notReadyDesc      = desc("relay_not_ready", "1 for the class of the reason why the pipeline is not ready, as in /readyz, 0 for the others.", "class")
	pausedDesc        = desc("relay_paused", "1 while the pipeline, or the sink, is paused by relay pause, 0 otherwise."+unknown)
	readyDesc         = desc("relay_ready", "1 if the pipeline reaches its database and sink and makes progress, 0 otherwise; /readyz has the class of the reason.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(labels, label, sinkLabel), nil)
}

// gauges collects the status of pipelines during a scrape. Unknown values are NaN,
// because 0 would look healthy.
type gauges struct{ snapshots snapshots }

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pendingDesc, delayedDesc, oldestDesc, batchesDesc, suspectsDesc, suspectDesc, transactionDesc, tableLockedDesc, deadLettersDesc, unnotifiedDesc, hookDesc, archiveBytesDesc, archiveEventsDesc, archiveOldestDesc, leftBehindDesc, upDesc, pausedDesc, readyDesc, notReadyDesc, batchSizeDesc, workersDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	for i, size := range g.snapshots.archiveSizes(context.Background()) {
		if size != nil {
			collecting{to, g.snapshots[i].pipeline.Name, "", false}.archive(size())
		}
	}
	for i, left := range g.snapshots.leftBehind(context.Background()) {
		if left != nil {
			collecting{to, g.snapshots[i].pipeline.Name, "", false}.left(left())
		}
	}
	g.snapshots.each(context.Background(), func(p Pipeline, s buffer.Status, _, err error) {
		c := collecting{to, p.Name, "", err != nil}
		if !s.TransactionsHidden {
			c.known(transactionDesc, s.OldestTransaction.Seconds())
		}
		locked, known := p.tableLocked(err)
		collecting{to, p.Name, "", !known}.known(tableLockedDesc, boolGauge(locked))
		c.known(delayedDesc, float64(s.Delayed))
		c.gauge(upDesc, boolGauge(err == nil))
		if len(p.Sinks) == 0 {
			if !p.Notifies("") {
				s.Unnotified = 0
			}
			c.status(&buffer.SinkStatus{
				Pending: s.Pending, OldestPending: s.OldestPending, AgeUnknown: s.AgeUnknown, Leased: s.Leased, Waiting: s.Waiting, Delivered: s.Delivered,
				Suspects: s.Suspects, OldestSuspect: s.OldestSuspect, Dead: s.Dead, Unnotified: s.Unnotified,
			})
			c.gauge(hookDesc, boolGauge(p.HasHook))
			c.known(pausedDesc, boolGauge(pausedState(s.Pauses, "") != ""))
			c.health(p.Health)
			return
		}
		for _, one := range p.statuses(&s) {
			c.sink = one.Name
			if !p.Notifies(one.Name) {
				one.Unnotified = 0
			}
			c.status(&one)
		}
		for _, one := range p.Sinks {
			c.sink = one.Name
			c.gauge(hookDesc, boolGauge(p.Notifies(one.Name)))
			c.known(pausedDesc, boolGauge(pausedState(s.Pauses, one.Name) != ""))
			c.health(one.Health)
		}
		c.sink = buffer.Unrouted
		c.ready(p.Router)
	})
}

// collecting collects the gauges of a pipeline or of one of its sinks.
type collecting struct {
	to             chan<- prometheus.Metric
	pipeline, sink string
	unknown        bool
}

func (c collecting) gauge(d *prometheus.Desc, value float64, labels ...string) {
	c.to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append(labels, c.pipeline, c.sink)...)
}

func (c collecting) known(d *prometheus.Desc, value float64, labels ...string) {
	if c.unknown {
		value = math.NaN()
	}
	c.gauge(d, value, labels...)
}

func (c collecting) status(s *buffer.SinkStatus) {
	c.known(pendingDesc, float64(s.Pending))
	if !s.AgeUnknown {
		c.known(oldestDesc, s.OldestPending.Seconds())
	}
	c.known(batchesDesc, float64(s.Leased), "leased")
	c.known(batchesDesc, float64(s.Waiting), "waiting")
	c.known(batchesDesc, float64(s.Delivered), "delivered")
	c.known(suspectsDesc, float64(s.Suspects))
	c.known(suspectDesc, s.OldestSuspect.Seconds())
	c.known(deadLettersDesc, float64(s.Dead))
	c.known(unnotifiedDesc, float64(s.Unnotified))
}

func (c collecting) health(h SinkHealth) {
	c.ready(h)
	batchSize, workers := h.Limits()
	c.gauge(batchSizeDesc, float64(batchSize))
	c.gauge(workersDesc, float64(workers))
}

func (c collecting) ready(r Readiness) {
	err := r.Ready()
	c.gauge(readyDesc, boolGauge(err == nil))
	for _, class := range []string{buffer.NotReadyDatabase, buffer.NotReadySink, buffer.NotReadyStalled, buffer.NotReadyRefusing} {
		c.gauge(notReadyDesc, boolGauge(err != nil && classOf(err) == class), class)
	}
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
