package config

import (
	"log/slog"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
)

// everySecond is the schedule that nobody asked for.
const everySecond = "@every 1s"

// betweenDistributions tells whether fresh events are claimed between distributions:
// whoever gave a schedule gets that one, unless he wrote how he is to be woken too.
func (p *Pipeline) betweenDistributions() bool {
	return p.Eager && (p.Wake != string(outbox.WakeAuto) || p.Schedule.Text == everySecond)
}

// wake is how the relay hears of events; it looks for them where nothing is to ring.
func (p *Pipeline) wake() outbox.WakeMode {
	if !p.betweenDistributions() || p.Source.Own.Is() { // migrate makes no trigger there
		return outbox.WakePoll
	}
	return outbox.WakeMode(p.Wake)
}

// wakes tells whether fresh events are claimed between distributions, and what rings
// then; nil: nothing does.
func (p *Pipeline) wakes(b Buffer, log *slog.Logger) (bool, pipeline.Bell) {
	on := p.betweenDistributions()
	if b, ok := b.(*postgres.Buffer); ok && p.wake() != outbox.WakePoll {
		if log == nil {
			log = slog.Default()
		}
		return on, b.Bell(log.With("pipeline", p.Name))
	}
	return on, nil
}

// checkWake keeps apart what contradicts itself.
func (p *Pipeline) checkWake(r *reader, at, eager Place) {
	switch {
	case p.Wake == "" || p.Wake == string(outbox.WakeAuto):
	case !p.Eager && !r.mistaken(eager):
		r.say(at, "wake is %s, and eager: false sends fresh events on schedule only: auto, or eager: true, was expected", p.Wake)
	case p.Wake == string(outbox.WakeNotify) && p.Source.Driver == "sqlite":
		r.say(at, "wake is notify, and SQLite notifies nobody: auto or poll was expected")
	}
}
