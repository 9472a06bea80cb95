package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	reportTick     = time.Second
	ticksPerMinute = int(time.Minute / reportTick)
	// reportChanged is how often a report is written at the most while counts change. One that did not change is written every
	// buffer.ReportEvery; a new reason why no progress is made, or its end, or the first delivery after as long without one, at once.
	reportChanged = 5 * time.Second
)

// reportTimeout bounds a report, lastReportTimeout the last one, which delays the end of the process.
const (
	reportTimeout     = 5 * time.Second
	lastReportTimeout = time.Second
)

// refusesAgain is how soon a sink that accepts something refuses again if that is the same refusal: of a topic among others, each event of another ends it.
const refusesAgain = 30 * time.Second

// progress counts what a pipeline delivered and buried. It is safe for concurrent use.
type progress struct {
	mu              sync.Mutex
	delivered, dead int64
	last            time.Time // of the last delivery
	latencies       buffer.Latencies
}

// settled adds a settled batch, which was sent at a local time.
func (p *progress) settled(l *buffer.Lease, outcomes []buffer.Outcome, sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range outcomes {
		events := int64(len(outcomes[i].IDs))
		if outcomes[i].IDs == nil {
			events = int64(l.Len())
		}
		switch outcomes[i].Verdict {
		case buffer.Delivered:
			p.delivered += events
			p.last = time.Now()
			l.EachLatency(outcomes[i].IDs, sent, p.latencies.Add)
		case buffer.Dead:
			p.dead += events
		case buffer.Retry:
		}
	}
}

func (p *progress) read() (delivered, dead int64, last time.Time, latencies buffer.Latencies) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delivered, p.dead, p.last, p.latencies
}

// reporter tells operators what a process does: it logs a line a minute, and writes the same into the database, if the queue is a
// buffer.RelayReporter.
type reporter struct {
	to       buffer.RelayReporter // nil: nothing is written
	progress *progress            // nil: nothing is logged
	version  string
	// notices are what else operators should know.
	notices *notices
	// requests has the channels to close when a report is written that began later; nil: none are asked for.
	requests <-chan chan struct{}
	// archive remembers where delivered events are copied; nil: another reporter of the buffer asks it.
	archive buffer.ArchiveMemory
	// probes reports whether the sink is tried while batches wait for it; nil: nothing is sent.
	probes func() bool
	// ready returns why no progress is made, and waiting how many batches wait.
	ready   func() error
	waiting func() int
	// outdated is the Config's.
	outdated func(class string) string
	// unaccepted is why nothing is accepted, for onUnaccepted, the Config's.
	unaccepted   *unaccepted
	onUnaccepted func(text string, since time.Time)
	redact       func(string) string
	log          *slog.Logger
	// written gets the result of each report.
	written func(error)

	first    bool
	ticks    int
	counts   [ticksPerMinute]int64 // delivered, at the last ticks
	deadThen int64                 // dead, a minute ago
	since    time.Time             // of the class of the reason
	class    string
	// refused is when the sink was last said to refuse what it gets, and since when.
	refused struct{ since, last time.Time }
	last    buffer.RelayReport // that was written
	at      time.Time          // when it was
	failing bool
	// changed is what was outdated at the last tick, and loggedAt when that was logged.
	changed       string
	outdatedClass string // the class for which it was not ready while the configuration had changed; "" for never
	loggedAt      time.Time
	// archiveAt is when archive was asked.
	archiveAt time.Time
	// forgotten is the archive of other relays that was logged.
	forgotten string
}

// start reports until ctx is done. The function that it returns waits for that and writes that the process stops.
func (r *reporter) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	r.first = true
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	return func() {
		cancel()
		<-done
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReportTimeout)
		defer cancel()
		report := r.report()
		report.Stopped = true
		r.write(last, report)
	}
}

func (r *reporter) run(ctx context.Context) {
	tick := time.NewTicker(reportTick)
	defer tick.Stop()
	for {
		r.noteOutdated(ctx)
		r.noteArchive(ctx)
		report := r.report()
		r.onUnaccepted(r.unaccepted.read())
		if r.ticks%ticksPerMinute == 0 && r.ticks > 0 {
			r.logMinute(ctx, report)
		}
		r.counts[r.ticks%ticksPerMinute] = report.Delivered
		r.ticks++
		if due := r.dueAfter(report); time.Since(r.at) >= due-reportTick/2 {
			r.write(ctx, report)
		}
		if !r.wait(ctx, tick.C) {
			return
		}
	}
}

// wait waits for the next tick, and writes the reports that are asked for meanwhile. It returns false when ctx is done.
func (r *reporter) wait(ctx context.Context, tick <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case done := <-r.requests:
			r.write(ctx, r.report())
			close(done)
		}
	}
}

// report is the state now.
func (r *reporter) report() buffer.RelayReport {
	report := buffer.RelayReport{First: r.first, Version: r.version, LastDelivery: -1, Notice: r.redact(r.notices.text()), Answers: r.redact(r.notices.answersText())}
	if r.probes != nil {
		report.Probes = r.probes()
	}
	r.setNotReady(&report)
	if report.NotReadyClass == buffer.NotReadyRefusing && report.NotReadyKind != buffer.KindSome { // it refuses good events as well as bad ones, and says why
		report.Notice = r.redact(r.notices.text(answersKey))
	}
	if r.progress == nil {
		return report
	}
	var last time.Time
	report.Delivered, report.Dead, last, report.Latencies = r.progress.read()
	// Less the count of a minute ago, or of the start.
	report.LastMinute = report.Delivered - r.counts[r.ticks%ticksPerMinute]
	if !last.IsZero() {
		report.LastDelivery = time.Since(last)
	}
	return report
}

// setNotReady sets why no progress is made, and since when.
func (r *reporter) setNotReady(report *buffer.RelayReport) {
	err := r.ready()
	if err == nil || errors.Is(err, errStarting) {
		r.class = ""
		return
	}
	class, kind := "", ""
	if why, ok := errors.AsType[*NotReady](err); ok {
		class, kind = why.class, why.kind
	}
	now := time.Now()
	if class != r.class || r.since.IsZero() {
		r.class, r.since = class, now
		if class == refusing && now.Sub(r.refused.last) < refusesAgain {
			r.since = r.refused.since
		}
	}
	if class == refusing {
		r.refused.since, r.refused.last = r.since, now
	}
	if class == atSink && r.progress != nil { // between two ticks the sink may have been back
		if _, _, last, _ := r.progress.read(); last.After(r.since) {
			r.since = last
		}
	}
	report.NotReady, report.NotReadyClass, report.NotReadyKind, report.NotReadyFor = r.redact(err.Error()), class, kind, time.Since(r.since)
}

// dueAfter is how long after the last one a report is written. Ages, which grow, are no change.
func (r *reporter) dueAfter(report buffer.RelayReport) time.Duration {
	last := r.last
	last.LastDelivery, last.NotReadyFor = report.LastDelivery, report.NotReadyFor
	switch {
	case report == last:
		return buffer.ReportEvery
	case report.NotReadyClass != last.NotReadyClass:
		return reportTick
	case report.Delivered != last.Delivered && r.isQuiet():
		return reportTick
	}
	return reportChanged
}

// isQuiet reports whether the last delivery that was written is a while ago, or there was none: somebody may wait for the next one.
func (r *reporter) isQuiet() bool {
	return r.last.LastDelivery < 0 || r.last.LastDelivery+time.Since(r.at) >= reportChanged
}

func (r *reporter) write(ctx context.Context, report buffer.RelayReport) {
	if r.to == nil {
		return
	}
	writing, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := r.to.ReportRelay(writing, report)
	full := err
	if to, ok := r.to.(buffer.SpaceChecker); ok && err == nil {
		full = to.CheckSpace(writing)
	}
	if ctx.Err() == nil {
		r.written(full)
	}
	switch {
	case err == nil:
		r.first, r.failing = false, false
		report.First = false
		r.last, r.at = report, time.Now()
	case ctx.Err() == nil && !r.failing && !isDatabase(r.ready()): // other log lines say that the database is away, and when it is back
		r.failing = true
		r.log.WarnContext(ctx, "writing to outbox_relays failed; relay status does not show this relay", "error", err)
	}
}

// isDatabase reports whether the database is why no progress is made.
func isDatabase(err error) bool {
	why, ok := errors.AsType[*NotReady](err)
	return ok && why.class == database
}

// logMinute logs what became of events in the last minute, unless nothing did.
func (r *reporter) logMinute(ctx context.Context, report buffer.RelayReport) {
	if r.progress == nil {
		return
	}
	dead, waiting := report.Dead-r.deadThen, r.waiting()
	r.deadThen = report.Dead
	if report.LastMinute == 0 && dead == 0 && waiting == 0 {
		return
	}
	r.log.InfoContext(ctx, "delivered in the last minute", "events", report.LastMinute, "per_second", report.LastMinute/60, "dead", dead, "batches_waiting", waiting)
}
