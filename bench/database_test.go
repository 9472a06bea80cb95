package bench

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// batchSize is used by all contenders.
const batchSize = 1000

// eventsTable is the relay's buffer.
const eventsTable = "outbox_events"

// database is a separate PostgreSQL server with fsync and synchronous_commit on, and
// with the tables of the relay and of the loop.
type database struct {
	url  string
	pool *pgxpool.Pool
	pid  int // of the postmaster
}

func newDatabase(b *testing.B, more ...map[string]string) *database {
	b.Helper()
	settings := map[string]string{"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min"}
	for _, m := range more {
		maps.Copy(settings, m)
	}
	server := testserver.OwnPostgres(b, testserver.PostgresOptions{Durable: true, Settings: settings})
	_, err := postgres.Migrate(b.Context(), server.URL, postgres.SchemaConfig{})
	testkit.NoError(b, err)
	pool, err := pgxpool.New(b.Context(), server.URL)
	testkit.NoError(b, err)
	b.Cleanup(pool.Close)
	db := &database{url: server.URL, pool: pool}
	db.exec(b, loopSchemaSQL)
	backend, err := stat(queryValue[int](b, db, "SELECT pg_backend_pid()"))
	testkit.NoError(b, err)
	_, err = fmt.Sscan(backend[1], &db.pid) // its parent
	testkit.NoError(b, err)
	return db
}

func (db *database) exec(tb testing.TB, statement string, args ...any) {
	tb.Helper()
	_, err := db.pool.Exec(tb.Context(), statement, args...)
	testkit.NoError(tb, err)
}

// queryValue returns the single value of a query.
func queryValue[T any](tb testing.TB, db *database, query string, args ...any) (answer T) {
	tb.Helper()
	testkit.NoError(tb, db.pool.QueryRow(tb.Context(), query, args...).Scan(&answer))
	return answer
}

// payloadSQL produces JSON of 300 bytes.
const payloadSQL = `jsonb_build_object('order', i, 'pad', repeat('x', 277 - length(i::text)))`

// fill empties a table and inserts n events.
func (db *database) fill(tb testing.TB, table string, n int) {
	tb.Helper()
	db.fillWith(tb, table, func() { db.insert(tb, table, n) })
}

func (db *database) fillWith(tb testing.TB, table string, insert func()) {
	tb.Helper()
	db.exec(tb, "TRUNCATE outbox_batches, "+table)
	insert()
	db.exec(tb, "VACUUM ANALYZE "+table)
	db.exec(tb, "CHECKPOINT")
}

// insert commits n events at once.
func (db *database) insert(tb testing.TB, table string, n int) {
	tb.Helper()
	db.exec(tb, fmt.Sprintf("INSERT INTO %s (topic, payload) SELECT 'orders', %s FROM generate_series(1, %d) i", table, payloadSQL, n))
}

// mustBeEmpty fails if events or batches remain.
func (db *database) mustBeEmpty(tb testing.TB, table string) {
	tb.Helper()
	if left := queryValue[int](tb, db, "SELECT (SELECT count(*) FROM "+table+") + (SELECT count(*) FROM outbox_batches)"); left != 0 {
		tb.Fatalf("%d rows are left in %s and the ledger", left, table)
	}
}

func (db *database) untilEmpty(b *testing.B) {
	b.Helper()
	until(b, time.Minute, func() bool {
		return queryValue[bool](b, db, "SELECT NOT EXISTS (SELECT FROM outbox_events) AND NOT EXISTS (SELECT FROM outbox_batches)")
	})
}

// walBytes returns the size of the WAL written so far.
func (db *database) walBytes(tb testing.TB) int64 {
	tb.Helper()
	return queryValue[int64](tb, db, "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint")
}
