package bench

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// claimedBy fails when the buffer was not claimed in the mode that was asked for: no
// figure may stand under the name of another.
func (db *database) claimedBy(b *testing.B, mode buffer.ClaimMode) {
	b.Helper()
	if used := db.claimMode(b); used != mode {
		b.Fatalf("%s was asked for, and the relay claimed by %s", mode, used)
	}
}

// claimMode is how the buffer was claimed last.
func (db *database) claimMode(b *testing.B) buffer.ClaimMode {
	b.Helper()
	return ask[buffer.ClaimMode](b, db, "SELECT claim FROM outbox_buffers WHERE buffer = 'public.outbox_events'")
}

// relay runs a pipeline in this process until so many events are delivered, and
// returns how long it took from the begin of the first claim to the last settle.
func (db *database) relay(b *testing.B, mode buffer.ClaimMode, s sink.Sink, events int) time.Duration {
	b.Helper()
	return db.drained(b, postgres.Config{Claim: mode}, s, events)
}

// drained does so with the buffer that c says.
func (db *database) drained(b *testing.B, c postgres.Config, s sink.Sink, events int) time.Duration {
	b.Helper()
	count := newCountdown(events)
	stop := db.start(b, c, s, count)
	count.await(b, 2*time.Minute)
	stop()
	return count.took
}

// start runs a pipeline until the returned function is called.
func (db *database) start(b *testing.B, c postgres.Config, s sink.Sink, observer pipeline.Observer) (stop func()) {
	b.Helper()
	c.URL, c.Pipeline, c.Owner, c.Connections = db.url, "bench", "bench", 6
	buf, err := postgres.Open(c)
	check(b, err)
	p, err := pipeline.New(buf, s, pipeline.Config{
		Name: "bench", Observer: observer, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	check(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx, b.Context()) }()
	return func() {
		cancel()
		check(b, <-ended)
		check(b, buf.Close())
	}
}
