package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The registry of sinks is shared by all relays of a table. Each notes which sinks it serves, and ends the batches of
// those that a command has dropped.

const (
	// endEvery is how often a router looks for batches of dropped sinks.
	endEvery = 10 * time.Second
	// endAtOnce is how many of them it ends in a row.
	endAtOnce = 100
)

// tender looks after the registry.
type tender struct {
	router   *Router
	registry buffer.SinkRegistry
	notices  *notices
	// known are the findings that were logged, by sink.
	known map[string]string
	// differ is how many notices there are of sinks that have other patterns than registered ones.
	differ int
}

// ready waits for the database, and registers the sinks.
func (r *Router) ready(ctx context.Context) error {
	if err := r.buffer.Check(ctx); err != nil {
		return err
	}
	if registry, ok := r.buffer.(buffer.SinkRegistry); ok {
		return registry.RegisterSinks(ctx)
	}
	return nil
}

// tend looks after the registry until ctx is done.
func (r *Router) tend(ctx context.Context, notices *notices) error {
	registry, ok := r.buffer.(buffer.SinkRegistry)
	if !ok {
		return nil
	}
	t := &tender{router: r, registry: registry, notices: notices}
	end, serve := time.NewTicker(endEvery), time.NewTicker(buffer.SeenEvery)
	defer end.Stop()
	defer serve.Stop()
	t.report(ctx)
	for {
		t.end(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-end.C:
		case <-serve.C:
			if err := registry.ServeSinks(ctx); err != nil {
				t.failed(ctx, "noting that sinks are served failed", err)
				continue
			}
			t.report(ctx)
		}
	}
}

// end ends batches of dropped sinks.
func (t *tender) end(ctx context.Context) {
	for ctx.Err() == nil {
		ended, err := t.registry.EndDropped(ctx, endAtOnce)
		if ended.Batches > 0 {
			t.router.config.Log.InfoContext(ctx, "batches of dropped sinks ended", "batches", ended.Batches, "events", ended.Events)
		}
		if err != nil {
			t.failed(ctx, "looking for batches of dropped or renamed sinks failed", err)
		}
		if err != nil || ended.Batches < endAtOnce {
			return
		}
	}
}

// report logs what is wrong with the sinks, once.
func (t *tender) report(ctx context.Context) {
	sinks, err := t.registry.Sinks(ctx)
	if err != nil {
		t.failed(ctx, "reading the sinks failed", err)
		return
	}
	known := map[string]string{}
	var differ []string
	for i := range sinks {
		if f, ok := sinks[i].MatchFinding(); ok {
			text := f.Subject + ": " + f.Text
			known[f.Subject+" match"] = text
			differ = append(differ, text+". > "+f.Fix)
			if t.known[f.Subject+" match"] != text {
				t.router.config.Log.WarnContext(ctx, text, "fix", f.Fix)
			}
		}
		f, ok := sinks[i].Finding()
		if !ok {
			continue
		}
		known[f.Subject] = f.Fix
		if t.known[f.Subject] == f.Fix {
			continue
		}
		log := t.router.config.Log.WarnContext
		if f.Level == buffer.LevelError {
			log = t.router.config.Log.ErrorContext
		}
		log(ctx, f.Subject+": "+f.Text, "fix", f.Fix)
	}
	t.known = known
	for i, text := range differ {
		t.notices.set(fmt.Sprintf("match %d", i), text)
	}
	for i := len(differ); i < t.differ; i++ {
		t.notices.set(fmt.Sprintf("match %d", i), "")
	}
	t.differ = len(differ)
}

func (t *tender) failed(ctx context.Context, doing string, err error) {
	if ctx.Err() == nil {
		t.router.config.Log.WarnContext(ctx, doing, "error", err)
	}
}
