package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

const readyInterval = time.Second

// waitReady waits until check finds its server. It logs once if it does not, again if the
// reason changes, and every minute. false: ctx is done.
func waitReady(ctx context.Context, log *slog.Logger, what string, check func(context.Context) error, report func(error)) bool {
	var (
		logged   string
		loggedAt time.Time
		tick     = time.NewTicker(readyInterval)
	)
	defer tick.Stop()
	for {
		checkCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := check(checkCtx)
		cancel()
		if ctx.Err() != nil {
			return false
		}
		report(err)
		if err == nil {
			if logged != "" {
				log.InfoContext(ctx, "connected to "+what)
			}
			return true
		}
		if err.Error() != logged || time.Since(loggedAt) >= time.Minute {
			logged, loggedAt = err.Error(), time.Now()
			text := "waiting for the " + what
			if errors.Is(err, buffer.ErrNotReady) {
				text = "waiting until the " + what + " is ready"
			}
			log.WarnContext(ctx, text, "error", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

const (
	// probeInterval is how often the sink's Check is called, and recheckInterval after one that failed. One that is asked for
	// (checkSoon) begins readyInterval after the last one at the earliest.
	probeInterval   = 10 * time.Second
	recheckInterval = 2 * time.Second
)

// warn logs what endangers the promises at the sink, and what of the configuration is not done at the buffer.
func (p *Pipeline) warn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	for _, side := range []any{p.buffer, p.sink} {
		if w, ok := side.(sink.Warner); ok {
			for _, warning := range w.Warnings(ctx) {
				p.config.Log.WarnContext(ctx, warning)
			}
		}
	}
}

// logAttrs are how events are claimed and sent, for the log.
func (p *Pipeline) logAttrs() []any {
	c := &p.config
	limit := func(n int, auto bool) any {
		if auto {
			return "auto"
		}
		return n
	}
	wake := "schedule"
	switch {
	case c.Routed:
		wake = "router"
	case c.Listener != nil:
		wake = "notify, otherwise poll" // the listener logs when it cannot listen
	case c.Poll:
		wake = "poll"
	}
	all := []any{"workers", limit(c.Workers, c.AutoWorkers), "batch_size", limit(c.BatchSize, c.AutoBatchSize), "wake", wake}
	if b, ok := p.buffer.(interface{ ClaimMode() buffer.ClaimMode }); ok {
		all = append(all, "claim", b.ClaimMode())
	}
	return all
}

// probeSink calls the sink's Check from time to time, so that readiness notices an outage, and its end, while
// nothing is sent.
func (p *Pipeline) probeSink(ctx context.Context) {
	next := time.NewTimer(probeInterval)
	defer next.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-p.checks:
			next.Reset(readyInterval - min(readyInterval, time.Since(last)))
			continue
		case <-next.C:
		}
		checkCtx, cancel := context.WithTimeout(ctx, probeInterval)
		last = time.Now()
		err := p.worker.Check(checkCtx)
		cancel()
		p.noticeAnswers() // one may have ended
		if ctx.Err() == nil {
			p.health.sink(err, last)
		}
		if next.Reset(probeInterval); err != nil {
			next.Reset(recheckInterval)
		}
	}
}

// checkSoon asks for a Check of the sink, because it may be back. It never blocks.
func (p *Pipeline) checkSoon() {
	select {
	case p.checks <- struct{}{}:
	default:
	}
}
