package bench

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

// payloadSQL produces JSON of 300 bytes, as payloadOf does.
const payloadSQL = `json_build_object('order', i, 'pad', repeat('x', 275 - length(i::text)))`

func payloadOf(i int) string {
	n := strconv.Itoa(i)
	return `{"order" : ` + n + `, "pad" : "` + strings.Repeat("x", 275-len(n)) + `"}`
}

// fill empties a table and inserts n events.
func (db *database) fill(tb testing.TB, table string, n int) {
	tb.Helper()
	db.truncate(tb, table)
	db.insert(tb, table, n)
}

// truncate empties a table. The checkpoint is before the events, as in real use: their pages are in the WAL since, so nobody
// writes them a second time. Nothing vacuums the table: no row has a hint bit.
func (db *database) truncate(tb testing.TB, table string) {
	tb.Helper()
	db.exec(tb, "TRUNCATE outbox_batches, "+table)
	db.exec(tb, "CHECKPOINT")
}

// insert commits n events: by COPY at once, or with -fill inserts each in a transaction of its own.
func (db *database) insert(tb testing.TB, table string, n int) {
	tb.Helper()
	if *fillBy == "copy" {
		testkit.NoError(tb, copyEvents(tb.Context(), db.pool, table, n))
		return
	}
	conn, err := db.pool.Acquire(tb.Context())
	testkit.NoError(tb, err)
	defer conn.Release()
	for _, statement := range []string{
		"SET synchronous_commit = off",
		fmt.Sprintf("DO $$ BEGIN FOR i IN 1..%d LOOP INSERT INTO %s (topic, payload) VALUES ('orders', %s); COMMIT; END LOOP; END $$", n, table, payloadSQL),
		"RESET synchronous_commit",
	} {
		_, err := conn.Exec(tb.Context(), statement)
		testkit.NoError(tb, err)
	}
}

// copier is a connection, a transaction or a pool.
type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

func copyEvents(ctx context.Context, to copier, table string, n int) error {
	_, err := to.CopyFrom(ctx, pgx.Identifier{table}, []string{"topic", "payload"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		return []any{orders, payloadOf(i + 1)}, nil
	}))
	return err
}

// prepareCommit copies n events in a transaction, which commit ends.
func (db *database) prepareCommit(b *testing.B, table string, n int) (commit func()) {
	b.Helper()
	tx, err := db.pool.Begin(b.Context())
	testkit.NoError(b, err)
	testkit.NoError(b, copyEvents(b.Context(), tx, table, n))
	return func() { testkit.NoError(b, tx.Commit(b.Context())) }
}

// settled reports whether no batch is left, and no event among the last. It does not walk over the dead rows of all events.
func (db *database) settled(b *testing.B, table string) bool {
	b.Helper()
	return queryValue[bool](b, db, fmt.Sprintf(`SELECT NOT EXISTS (SELECT FROM outbox_batches) AND NOT EXISTS (
		SELECT FROM %[1]s WHERE id > (SELECT last_value - 20 * %[2]d FROM %[1]s_id_seq))`, table, batchSize))
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
