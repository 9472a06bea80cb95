package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
	"github.com/outboxrelay/relay/sink/redissink"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// backlog is how many events wait when a drain begins.
const backlog = 300_000

// BenchmarkDrain drains 300,000 waiting events of 300 bytes, in batches of 1000
// with 4 workers, PostgreSQL with fsync and synchronous_commit on and everything
// on this machine. "SQLAlone" claims and settles with a sink that takes
// everything for nothing, so it bounds the others.
func BenchmarkDrain(b *testing.B) {
	db := newDatabase(b)
	b.Run("SQLAlone", func(b *testing.B) { db.drain(b, nothing{}) })
	b.Run("Redis", func(b *testing.B) { db.drain(b, redisSink(b)) })
	b.Run("JetStream", func(b *testing.B) { db.drain(b, jetStreamSink(b)) })
}

// nothing is a sink that takes everything.
type nothing struct{}

func (nothing) Send(context.Context, *outbox.Batch) error { return nil }
func (nothing) Check(context.Context) error               { return nil }
func (nothing) Close() error                              { return nil }

func redisSink(b *testing.B) sink.Sink {
	b.Helper()
	server := testserver.Redis(b)
	s, err := redissink.New(redissink.Config{URL: server.URL, Stream: "orders"})
	check(b, err)
	b.Cleanup(func() { check(b, s.Close()) })
	options, err := redis.ParseURL(server.URL)
	check(b, err)
	client := redis.NewClient(options)
	b.Cleanup(func() { check(b, client.Close()) })
	return emptied{Sink: s, empty: func(ctx context.Context) error { return client.FlushAll(ctx).Err() }}
}

func jetStreamSink(b *testing.B) sink.Sink {
	b.Helper()
	server := testserver.NATS(b)
	conn, err := nats.Connect(server.URL)
	check(b, err)
	b.Cleanup(conn.Close)
	js, err := conn.JetStream()
	check(b, err)
	// A new stream for each drain: a purged one keeps the message ids of the last.
	renew := func(ctx context.Context) error {
		if err := js.DeleteStream("ORDERS", nats.Context(ctx)); err != nil && !errors.Is(err, nats.ErrStreamNotFound) {
			return err
		}
		_, err := js.AddStream(&nats.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Storage: nats.FileStorage}, nats.Context(ctx))
		return err
	}
	check(b, renew(b.Context()))
	s, err := natssink.New(natssink.Config{URL: server.URL, Subject: "orders"})
	check(b, err)
	b.Cleanup(func() { check(b, s.Close()) })
	return emptied{Sink: s, empty: renew}
}

// emptied is a sink that can be emptied between two drains.
type emptied struct {
	sink.Sink
	empty func(context.Context) error
}

type database struct {
	url  string
	pool *pgxpool.Pool
}

func newDatabase(b *testing.B) *database {
	b.Helper()
	server := testserver.OwnPostgres(b, testserver.PostgresOptions{Durable: true, Settings: map[string]string{
		"shared_buffers": "512MB", "max_wal_size": "4GB", "shared_preload_libraries": "pg_stat_statements",
	}})
	_, err := postgres.Migrate(b.Context(), server.URL, postgres.SchemaConfig{})
	check(b, err)
	pool, err := pgxpool.New(b.Context(), server.URL)
	check(b, err)
	b.Cleanup(pool.Close)
	return &database{url: server.URL, pool: pool}
}

// payloadSQL makes JSON of 300 bytes.
const payloadSQL = `jsonb_build_object('order', i, 'pad', repeat('x', 277 - length(i::text)))`

func (db *database) fill(tb testing.TB, n int) {
	tb.Helper()
	for _, statement := range []string{
		"TRUNCATE outbox_events, outbox_batches",
		fmt.Sprintf("INSERT INTO outbox_events (topic, payload) SELECT 'orders', %s FROM generate_series(1, %d) i", payloadSQL, n),
		"VACUUM ANALYZE outbox_events",
		"CHECKPOINT",
	} {
		_, err := db.pool.Exec(tb.Context(), statement)
		check(tb, err)
	}
}

// drain measures b.N drains and reports events a second and bytes of WAL an
// event.
func (db *database) drain(b *testing.B, s sink.Sink) {
	var (
		wal, events int64
		took        time.Duration
	)
	for b.Loop() {
		if e, ok := s.(emptied); ok {
			check(b, e.empty(b.Context()))
		}
		db.fill(b, backlog)
		from := db.walPosition(b)
		took += db.run(b, s, backlog)
		wal += db.walPosition(b) - from
		events += backlog
	}
	b.ReportMetric(float64(events)/took.Seconds(), "events/s")
	b.ReportMetric(float64(wal)/float64(events), "walB/event")
	b.ReportMetric(0, "ns/op")
}

// run runs a pipeline until the buffer and its ledger are empty, and returns how
// long it took from the first claim to the last settle.
func (db *database) run(b *testing.B, s sink.Sink, events int64) time.Duration {
	b.Helper()
	buffer, err := postgres.Open(postgres.Config{URL: db.url, Pipeline: "bench", Owner: "bench", Connections: 6})
	check(b, err)
	defer func() { check(b, buffer.Close()) }()
	count := &countdown{left: events, done: make(chan struct{})}
	p, err := pipeline.New(buffer, s, pipeline.Config{
		Name: "bench", Observer: count, Log: slog.New(slog.DiscardHandler),
	})
	check(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	go func() {
		select {
		case <-count.done:
		case <-ctx.Done():
		}
		cancel()
	}()
	check(b, p.Run(ctx, b.Context()))
	var left int
	check(b, db.pool.QueryRow(b.Context(), "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)").Scan(&left))
	if left != 0 {
		b.Fatalf("%d rows are left in buffer and ledger", left)
	}
	return count.took
}

func (db *database) walPosition(b *testing.B) (position int64) {
	b.Helper()
	check(b, db.pool.QueryRow(b.Context(), "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").Scan(&position))
	return position
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
