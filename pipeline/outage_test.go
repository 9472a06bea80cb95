package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// at lets the test in at certain sends, counted from 1: before the batch goes to
// the sink, or after it went there and before it is settled.
func at(s sink.Sink, before, after func(n int64)) *sendHook {
	var sends atomic.Int64
	return &sendHook{s, func(_ context.Context, _ *buffer.Batch, next func() error) error {
		n := sends.Add(1)
		before(n)
		err := next()
		if err == nil {
			after(n)
		}
		return err
	}}
}

func nothing(int64) {}

// The sink is killed during a drain and restarted.
func TestSink_KilledInMidDrain(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := testserver.Redis(t, "--appendfsync", "always") // confirmed entries are on disk
		// Once: a file that was cut off inside a MULTI keeps it open, and the restart after the
		// next runs its commands (Redis 7.0.15).
		testDyingSink(t, redisAt(t, server.URL), 1, server.Kill, func() error { return server.Start(t.Context()) })
	})
	t.Run("jetstream", func(t *testing.T) {
		t.Parallel()
		server := testserver.NATS(t)
		addStream(t, server.URL, "orders")
		testDyingSink(t, natsAt(t, server.URL), 2, func() error { server.Stop(); return nil }, server.Start)
	})
}

func testDyingSink(t *testing.T, to destination, times int, kill, revive func() error) {
	t.Helper()
	d := newDatabase(t)
	ids := d.insert(t, "orders", 10_000)
	deaths := make(chan error, 2)
	die := func(when int64) func(int64) {
		return func(n int64) {
			if n == when {
				deaths <- kill()
			}
		}
	}
	again := int64(60)
	if times == 1 {
		again = -1
	}
	p := start(t, d.buffer(t, "relay"), at(to, die(20), die(again)), nil)
	for range times {
		testkit.NoError(t, testkit.Receive(t, "a death of the sink", deaths))
		p.expectNotReady(t)
		testkit.NoError(t, revive())
	}
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), 0)
	p.expectReady(t)
}

// PostgreSQL is killed while batches are claimed, under way, and sent but not
// settled; each time it comes back.
func TestDatabase_KilledInMidDrain(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{Durable: true})
	d, to := databaseAt(t, server.URL), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 10_000)
	deaths := make(chan error, 4)
	die := func(when ...int64) func(int64) {
		return func(n int64) {
			if slices.Contains(when, n) {
				deaths <- server.Kill()
			}
		}
	}
	p := start(t, d.buffer(t, "relay"), at(to, die(10, 50), die(30, 70)), func(c *pipeline.Config) {
		c.Lease = 2 * time.Second // what the crash left claimed comes back soon
	})
	for range 4 {
		testkit.NoError(t, testkit.Receive(t, "a death of the database", deaths))
		p.expectNotReady(t)
		testkit.NoError(t, server.Start(t.Context()))
	}
	d.app.Reset()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	p.expectReady(t)
}

func TestStartup_WaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	d, to := databaseAt(t, server.URL), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 500)
	testkit.NoError(t, server.Stop())
	p := start(t, d.buffer(t, "relay"), to, nil)
	testserver.Eventually(t, func() error {
		if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "database") || !strings.Contains(err.Error(), "127.0.0.1") {
			return fmt.Errorf("got %w, want that the database cannot be reached, and where", err)
		}
		return nil
	})
	testkit.NoError(t, server.Start(t.Context()))
	d.app.Reset()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	p.expectReady(t)
}

func TestStartup_WaitsForTheTable(t *testing.T) {
	t.Parallel()
	url, to := testserver.Postgres(t), redisAt(t, testserver.SharedRedis(t))
	p := start(t, bufferAt(t, url, "relay"), to, nil)
	testserver.Eventually(t, func() error {
		if err := p.Ready(); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "relay migrate") {
			return fmt.Errorf("got %w, want the table's name and the command that makes it", err)
		}
		return nil
	})
	d := databaseAt(t, url)
	ids := d.insert(t, "orders", 500)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// The table is dropped while the relay runs, and made again, as by a restore.
func TestDatabase_TableDropped(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	p := start(t, d.buffer(t, "relay"), to, nil)
	ids := d.insert(t, "orders", 500)
	d.expectDrained(t)
	d.exec(t, "ALTER TABLE outbox_events RENAME TO elsewhere")
	p.expectNotReady(t)
	d.exec(t, "ALTER TABLE elsewhere RENAME TO outbox_events")
	p.expectReady(t)
	ids = append(ids, d.insert(t, "orders", 500)...)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}
