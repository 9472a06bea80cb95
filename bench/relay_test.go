package bench

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// claimedBy fails if the buffer was claimed in another mode than requested, so that no
// figure has the wrong name.
func (db *database) claimedBy(b *testing.B, mode buffer.ClaimMode) {
	b.Helper()
	if used := db.claimMode(b); used != mode {
		b.Fatalf("%s was asked for, and the relay claimed by %s", mode, used)
	}
}

// claimMode returns the stored claim mode of the buffer.
func (db *database) claimMode(b *testing.B) buffer.ClaimMode {
	b.Helper()
	return queryValue[buffer.ClaimMode](b, db, "SELECT claim FROM outbox_buffers WHERE buffer = 'public.outbox_events'")
}

// pipeline starts a pipeline in this process that ends with a number of events.
func (db *database) pipeline(b *testing.B, c postgres.Config, s sink.Sink, events int) drain {
	b.Helper()
	count := newCountdown(events)
	stop := db.start(b, c, s, count)
	return drain{done: func() { count.await(b, 2*time.Minute) }, stop: stop}
}

// start runs a pipeline until the returned function is called.
func (db *database) start(b *testing.B, c postgres.Config, s sink.Sink, observer pipeline.Observer) (stop func()) {
	b.Helper()
	return db.startTraced(b, c, s, observer, pipeline.Tracing{})
}

// startTraced is start with spans.
func (db *database) startTraced(b *testing.B, c postgres.Config, s sink.Sink, observer pipeline.Observer, tracing pipeline.Tracing) (stop func()) {
	b.Helper()
	c.URL, c.Pipeline, c.Owner, c.Connections = db.url, orders, "bench", 6
	buf, err := postgres.Open(c)
	testkit.NoError(b, err)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	config := pipeline.Config{Name: orders, Observer: observer, Log: log, Poll: true, Tracing: tracing}
	if c.Custom.Project == "" { // nothing notifies of a custom table's events
		config.Listener = buf.Listener(log)
	}
	p, err := pipeline.New(buf, s, config)
	testkit.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, b.Context()) }()
	return func() {
		cancel()
		testkit.NoError(b, <-ended)
		testkit.NoError(b, buf.Close())
	}
}
