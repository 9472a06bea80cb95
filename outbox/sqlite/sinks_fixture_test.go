package sqlite_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// lease is longer than any test.
const lease = time.Minute

// openSinks opens a buffer with several sinks.
func openSinks(t *testing.T, p *testDB, owner string, mode buffer.ClaimMode, routes ...buffer.Route) *sqlite.Buffer {
	t.Helper()
	return openBuffer(t, p, sqlite.Config{Owner: owner, Claim: mode, Sinks: routes})
}

// openBuffer opens a buffer on the table of newSinksDB.
func openBuffer(t *testing.T, p *testDB, c sqlite.Config) *sqlite.Buffer {
	t.Helper()
	c.URL, c.Pipeline = p.url, "orders"
	if p.group != "" {
		c.Claim, c.Custom = buffer.ClaimStamp, buffer.CustomTable{ID: "id", Project: "SELECT id, topic, payload FROM {events}"}
	}
	b, err := sqlite.Open(c)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return b
}

var threeSinks = []buffer.Route{
	{Sink: "all", BatchSize: 100},
	{Sink: "crm", Match: []string{"contact.*"}, BatchSize: 3},
	{Sink: "odd", Match: []string{"*.odd", "contact.new"}, BatchSize: 100},
}

func insertTopics(t *testing.T, p *testDB, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		_, err := p.db.Exec("INSERT INTO outbox_events (topic, payload) VALUES (?, '{}')", topic)
		testkit.NoError(t, err)
	}
}

func countRows(t *testing.T, p *testDB, table string) int64 {
	t.Helper()
	return number(t, p, "SELECT count(*) FROM "+table)
}

func texts(t *testing.T, p *testDB, statement string) []string {
	t.Helper()
	return query(t, p.db, statement, func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
}

func number(t *testing.T, p *testDB, statement string) int64 {
	t.Helper()
	return query(t, p.db, statement, func(rows *sql.Rows) (n int64, err error) { return n, rows.Scan(&n) })[0]
}

func forEachMode(t *testing.T, f func(t *testing.T, mode buffer.ClaimMode)) {
	t.Helper()
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp, "TEXT", "BLOB"} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f(t, mode)
		})
	}
}

// newSinksDB returns a file with the relay's own table, or a custom one under the same name whose group_id has that type.
func newSinksDB(t *testing.T, mode buffer.ClaimMode) *testDB {
	t.Helper()
	p := newTestDB(t, buffertest.Options{Claim: mode})
	if mode == "TEXT" || mode == "BLOB" {
		p.group = string(mode)
		p.makeCustom(t, "outbox_events")
		migrate(t, p.url, sqlite.SchemaConfig{Archive: "outbox_archive", Custom: true})
		return p
	}
	migrate(t, p.url, sqlite.SchemaConfig{Archive: "outbox_archive"})
	return p
}
