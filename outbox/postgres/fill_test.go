package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// newFillDB returns a database with an archive.
func newFillDB(t *testing.T, mode buffer.ClaimMode) *testDB {
	t.Helper()
	p := newMigratedDB(t, buffertest.Options{Claim: mode})
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Archive: "outbox_archive"})
	check(t, err)
	return p
}

// openFill opens a buffer with an archive and registers its sinks.
func openFill(t *testing.T, p *testDB, mode buffer.ClaimMode, routes ...buffer.Route) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Owner: "fill", Claim: mode, Archive: "outbox_archive", Sinks: routes})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.RegisterSinks(t.Context()))
	return b
}

func fillSink(t *testing.T, b *postgres.Buffer, sink string, since time.Time, want buffer.Filled) {
	t.Helper()
	for _, dry := range []bool{true, false} {
		got, err := b.FillSink(t.Context(), sink, since, dry, nil)
		check(t, err)
		if got != want {
			t.Fatalf("filled %+v (dry: %v), want %+v", got, dry, want)
		}
	}
}

// drainSink delivers all that is due for a sink, and returns the topics in order.
func drainSink(t *testing.T, b *postgres.Buffer, sink string) string {
	t.Helper()
	var topics []string
	for {
		batch, err := b.Sink(sink).TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		if batch == nil {
			return strings.Join(topics, " ")
		}
		for i := range batch.Events {
			topics = append(topics, batch.Events[i].Topic)
		}
		deliverAll(t, b.Sink(sink), batch)
	}
}

func expectDrained(t *testing.T, b *postgres.Buffer, sink, want string) {
	t.Helper()
	if got := drainSink(t, b, sink); got != want {
		t.Fatalf("sink %s got %q, want %q", sink, got, want)
	}
}

// TestFillSink_Refused: pipelines that keep order.
func TestFillSink_Refused(t *testing.T) {
	t.Parallel()
	ordered := openFill(t, newFillDB(t, buffer.ClaimAuto), buffer.ClaimAuto, buffer.Route{Sink: "all", BatchSize: 100, Ordered: true}, buffer.Route{Sink: "new", BatchSize: 100})
	for _, name := range []string{"all", "new"} {
		if _, err := ordered.FillSink(t.Context(), name, time.Time{}, true, nil); !errors.Is(err, buffer.ErrFillOrder) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("sink %s of a pipeline with order: %v", name, err)
		}
	}
}

// TestFillSink_Plans: with the statistics of empty tables, no statement of a fill reads a table in sequence.
func TestFillSink_Plans(t *testing.T) {
	t.Parallel()
	p := newFillDB(t, buffer.ClaimRange)
	all := buffer.Route{Sink: "all", BatchSize: 100}
	b := openFill(t, p, buffer.ClaimRange, all)
	_, err := p.pool.Exec(t.Context(), "ANALYZE outbox_events, outbox_batches, outbox_archive")
	check(t, err)
	_, err = p.pool.Exec(t.Context(), `
		INSERT INTO outbox_archive (id, topic, payload, created_at, group_id)
		SELECT i + 100000, 't', '{}', now(), gen_random_uuid() FROM generate_series(1, 20000) i`)
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, 20000)")
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "SELECT setval('outbox_events_id_seq', 50000)")
	check(t, err)
	for range 200 {
		if routed, err := b.Route(t.Context(), 100, lease, keepNone); err != nil || routed == nil {
			t.Fatal(routed, err)
		}
	}
	filling, err := postgres.Open(postgres.Config{
		URL: p.url, Pipeline: "orders", Owner: "fill", Archive: "outbox_archive", Sinks: []buffer.Route{all, {Sink: "new", BatchSize: 1000}},
	})
	check(t, err)
	check(t, filling.RegisterSinks(t.Context()))
	scans := func() int64 {
		return query(t, p.pool, "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables WHERE relname IN ('outbox_events', 'outbox_archive')", pgx.RowTo[int64])[0]
	}
	before, began := scans(), time.Now()
	fillSink(t, filling, "new", time.Time{}, buffer.Filled{Waiting: 20000, Archived: 20000})
	t.Logf("filled 40,000 events in %s", time.Since(began))
	check(t, filling.Close()) // its sessions report what they read
	testserver.Eventually(t, func() error {
		if n := query(t, p.pool, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'outbox_archive'", pgx.RowTo[int64])[0]; n < 40000 {
			return fmt.Errorf("%d rows of the archive are reported", n)
		}
		return nil
	})
	if n := scans() - before; n > 0 {
		t.Errorf("read %d rows in sequence", n)
	}
}
