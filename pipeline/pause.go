package pipeline

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// pause is whether an operator paused what a pipeline or a router does; see [buffer.Pauser]. It is read at the start, and with every count of the backlog.
type pause struct {
	log    *slog.Logger
	paused atomic.Bool
}

// check returns a check of the buffer that also reads whether it is paused, so that nothing is claimed before that is known.
func (p *pause) check(check func(context.Context) error, b any) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		pausable, ok := b.(buffer.Pausable)
		if !ok { // the queue of a dead-letter hook
			return nil
		}
		paused, err := pausable.Paused(ctx)
		if err == nil {
			p.set(paused)
		}
		return err
	}
}

// allow returns allow, but 0 during a pause.
func (p *pause) allow(allow func(context.Context) int) func(context.Context) int {
	return func(ctx context.Context) int {
		if p.paused.Load() {
			return 0
		}
		return allow(ctx)
	}
}

// set takes what was read, and reports whether a pause has ended.
func (p *pause) set(paused bool) (resumed bool) {
	if was := p.paused.Swap(paused); was == paused {
		return false
	}
	if paused {
		p.log.Info("paused: nothing is claimed or sent until relay resume")
	} else {
		p.log.Info("resumed")
	}
	return !paused
}
