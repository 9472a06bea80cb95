package console

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// liveEvery is how often the status is read while a browser shows the overview; otherwise every hourStep.
const liveEvery = time.Second

// Run reads the status of all pipelines for the history, and renders it for the browsers that show the overview, until ctx is
// done. Then the live connections end.
func (s *Console) Run(ctx context.Context) error {
	defer s.latest.close()
	defer s.live.close()
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	var background sync.WaitGroup
	defer background.Wait()
	var (
		watched time.Time // since when, zero: not
		sampled time.Time
		asked   bool // by a page
	)
	for {
		if s.level.restore(time.Now()) {
			s.config.Log.InfoContext(ctx, "the log level is the configured one again", "level", levelName(s.config.Level.Level()))
		}
		if now := time.Now(); s.inUse.Load() && (asked || s.live.watched() || now.Sub(sampled) >= hourStep-liveEvery/2) {
			changes := s.latest.begin()
			report := s.config.Source.Report(ctx)
			if ctx.Err() != nil {
				return nil
			}
			sampled = now
			s.latest.put(&report, now, changes)
			s.sample(now, &report)
			s.readDeadCauses(ctx, &report)
			s.readRefusedTopics(ctx)
			all := problems(s, &report)
			s.live.observe(now, all)
			if s.live.watched() {
				s.live.publish(s.overviewParts(ctx, &report, all))
			}
		}
		switch now := time.Now(); {
		case !s.live.watched():
			watched = time.Time{}
		case watched.IsZero():
			watched = now
		case s.diagnosisDue(now, watched, func() string {
			report, _ := s.latest.shown()
			return s.state(report)
		}):
			watched = now // the next one is not due at once if this one fails
			background.Go(func() { s.diagnoseAgain(ctx) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			asked = false
		case <-s.live.wake:
			asked = true
		}
	}
}

// sample adds a report to the history.
func (s *Console) sample(now time.Time, report *admin.Report) {
	for i := range report.Pipelines {
		p := &report.Pipelines[i]
		all := observation{pending: p.Pending, oldest: p.OldestPendingSeconds, dead: p.Dead}
		all.relays(p, func(string) bool { return true })
		for j := range p.Sinks {
			one := &p.Sinks[j]
			o := observation{pending: one.Pending, oldest: one.OldestPendingSeconds, dead: one.Dead}
			o.relays(p, func(sink string) bool { return sink == one.Name })
			s.history.add(seriesKey{p.Name, one.Name}, now, o)
		}
		s.history.add(seriesKey{pipeline: p.Name}, now, all)
	}
}

// relays adds what the running relays report of some sinks.
func (o *observation) relays(p *admin.PipelineReport, of func(sink string) bool) {
	o.delivered, o.died, o.latencies = map[string]int64{}, map[string]int64{}, map[string]buffer.Latencies{}
	for i := range p.Relays {
		if r := &p.Relays[i]; r.Running && of(r.Sink) {
			key := r.Owner + " " + r.Sink
			o.delivered[key], o.died[key], o.latencies[key] = r.Delivered, r.Dead, r.Latencies
		}
	}
}
