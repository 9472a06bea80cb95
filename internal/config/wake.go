package config

import (
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
)

// everySecond is the default schedule.
const everySecond = "@every 1s"

// betweenDistributions reports whether fresh events are claimed between distributions.
// A schedule in the configuration prevents it, unless wake is set too.
func (p *Pipeline) betweenDistributions() bool {
	return p.Eager && (p.Wake != string(buffer.WakeAuto) || p.Schedule.Text == everySecond)
}

// idlePoll is how often an idle relay polls PostgreSQL if nothing notifies it, all of its pipelines together. A poll takes both
// about a millisecond of a core. SQLite is polled once a second, because a poll takes the file's write lock.
const idlePoll = 100 * time.Millisecond

// wake is the wake mode of the buffer: polling if nothing would notify.
func (p *Pipeline) wake() buffer.WakeMode {
	if !p.betweenDistributions() || p.Source.Custom.Is() { // migrate installs no trigger on a custom table
		return buffer.WakePoll
	}
	return buffer.WakeMode(p.Wake)
}

// wakes reports whether fresh events are claimed between distributions, and returns the
// listener to commits; nil if there is none.
func (p *Pipeline) wakes(b buffer.Buffer, log *slog.Logger) (bool, pipeline.Listener) {
	on := p.betweenDistributions()
	if b, ok := b.(*postgres.Buffer); ok && p.wake() != buffer.WakePoll {
		if log == nil {
			log = slog.Default()
		}
		return on, b.Listener(log.With("pipeline", p.Name))
	}
	return on, nil
}

// checkWake rejects a wake mode that the other keys do not support.
func (p *Pipeline) checkWake(r *reader, at, eager Place) {
	switch {
	case p.Wake == "" || p.Wake == string(buffer.WakeAuto):
	case !p.Eager && !r.hasErrorAt(eager):
		r.errorf(at, `wake is %q, and eager: false claims fresh events on schedule only; expected "auto", or eager: true`, p.Wake)
	case p.Wake == string(buffer.WakeNotify) && p.Source.Driver == "sqlite":
		r.errorf(at, `wake is "notify", which SQLite does not support; expected "auto" or "poll"`)
	}
}

// Scheduled reports whether fresh events wait for a schedule of the configuration.
func (p *Pipeline) Scheduled() bool { return !p.Eager || p.Schedule.Text != everySecond }
