package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const awaitEvery = time.Second

// await waits until check finds its server, and says so once when it does not,
// again when the reason changes, and every minute. false: ctx is done.
func (p *Pipeline) await(ctx context.Context, what string, check func(context.Context) error, tell func(error)) bool {
	var (
		said   string
		saidAt time.Time
		tick   = time.NewTicker(awaitEvery)
	)
	defer tick.Stop()
	for {
		checkCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := check(checkCtx)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		tell(err)
		if err == nil {
			if said != "" {
				p.config.Log.InfoContext(ctx, what+" is there now")
			}
			return true
		}
		if err.Error() != said || time.Since(saidAt) >= time.Minute {
			said, saidAt = err.Error(), time.Now()
			text := "waiting for the " + what
			if errors.Is(err, buffer.ErrNotReady) {
				text = "waiting until the " + what + " is made ready"
			}
			p.config.Log.WarnContext(ctx, text, "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

const watchEvery = 10 * time.Second

// warn says what endangers the promises at the sink, and what of the configuration is
// not done at the buffer.
func (p *Pipeline) warn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	for _, side := range []any{p.buffer, p.sink} {
		if w, ok := side.(sink.Warner); ok {
			for _, warning := range w.Warnings(ctx) {
				p.config.Log.WarnContext(ctx, warning)
			}
		}
	}
}

// ways are how events are got and sent, for the log.
func (p *Pipeline) ways() []any {
	c := &p.config
	limit := func(n int, auto bool) any {
		if auto {
			return "auto"
		}
		return n
	}
	wake := "schedule"
	switch {
	case c.Bell != nil:
		wake = "notify, else poll" // the bell says when it cannot hear
	case c.Poll:
		wake = "poll"
	}
	all := []any{"workers", limit(c.Workers, c.AutoWorkers), "batch_size", limit(c.BatchSize, c.AutoBatchSize), "wake", wake}
	if b, ok := p.buffer.(interface{ ClaimMode() buffer.ClaimMode }); ok {
		all = append(all, "claim", b.ClaimMode())
	}
	return all
}

// watchSink asks the sink from time to time, so that readiness knows of one that
// went away while nothing was to be sent.
func (p *Pipeline) watchSink(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		checkCtx, cancel := context.WithTimeout(ctx, watchEvery)
		err := p.sink.Check(checkCtx)
		cancel()
		if ctx.Err() == nil {
			p.health.sink(err)
		}
	}
}
