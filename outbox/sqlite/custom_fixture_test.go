package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestBuffer_CustomTable: a custom table passes the suite.
func TestBuffer_CustomTable(t *testing.T) {
	t.Parallel()
	buffertest.Run(t, customHarness("contact_activity_events", "TEXT"))
}

// TestBuffer_CustomTableBytes: group_id holds the 16 bytes of the uuid.
func TestBuffer_CustomTableBytes(t *testing.T) {
	t.Parallel()
	buffertest.Run(t, customHarness("contact_activity_events", "BLOB"))
}

// TestBuffer_MarkedTable: rows that stay and are marked are to the relay as rows that are deleted.
func TestBuffer_MarkedTable(t *testing.T) {
	t.Parallel()
	buffertest.Run(t, marked(customHarness("contact_activity_events", "TEXT")))
}

func marked(h buffertest.Harness) buffertest.Harness {
	open := h.Open
	h.Marked, h.Open = true, func(t testing.TB, opt buffertest.Options) *buffertest.Fixture {
		opt.Marked = true
		return open(t, opt)
	}
	return h
}

func customHarness(table, group string) buffertest.Harness {
	return buffertest.Harness{Claim: buffer.ClaimStamp, Custom: true, Delays: true, Open: func(t testing.TB, opt buffertest.Options) *buffertest.Fixture {
		p := newTestDB(t, opt)
		p.group = group
		return p.fixture(t, table, "orders")
	}}
}

// makeCustom makes the tables that buffertest.Harness describes, and says how to get at
// them.
func (p *testDB) makeCustom(t testing.TB, table string) buffer.CustomTable {
	t.Helper()
	_, err := p.db.Exec(`
		CREATE TABLE IF NOT EXISTS parents (id INTEGER PRIMARY KEY, name TEXT);
		CREATE TABLE ` + quote(table) + ` (
			id INTEGER PRIMARY KEY AUTOINCREMENT,
			topic, key TEXT, payload, headers TEXT,
			created_at DATETIME NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
			group_id ` + p.group + `,
			parent_id INTEGER, seal TEXT UNIQUE, raw BLOB, processed_at TEXT, available_at DATETIME,
			upper_topic AS (upper(topic)), length_of_it AS (length(topic)) STORED
		)`)
	testkit.NoError(t, err)
	project := p.opt.Project
	if project == "" {
		project = "SELECT id, topic, key, payload, headers, created_at FROM {table} WHERE group_id = {group}"
	}
	where, mark := p.opt.Marking("strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
	return buffer.CustomTable{ID: "id", Where: where, Mark: mark, Project: strings.NewReplacer("{table}", quote(table), "{group}", "?", "{id}", "id", "{other}", "1000000").Replace(project)}
}

// makeDelayedIndex makes the index that Check asks for.
func (p *testDB) makeDelayedIndex(t testing.TB, b *sqlite.Buffer) {
	t.Helper()
	missing, ok := errors.AsType[*notready.Error](b.Check(t.Context()))
	if !ok || len(missing.Missing) != 1 || !strings.HasPrefix(missing.Missing[0].Fix, "CREATE INDEX") {
		t.Fatalf("without an index on available_at Check says %v", missing)
	}
	_, err := p.db.Exec(missing.Missing[0].Fix)
	testkit.NoError(t, err)
	testkit.NoError(t, b.Check(t.Context()))
}

var uuidText = regexp.MustCompile(`'([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})'`)

// groupAsBytes replaces the text of each uuid in a statement of the suite, for a table that has
// the 16 bytes.
func (p *testDB) groupAsBytes(statement, table string) string {
	if p.group == "BLOB" && (strings.HasPrefix(statement, "UPDATE "+table) || strings.HasPrefix(statement, "INSERT INTO "+table)) {
		return uuidText.ReplaceAllString(statement, "X'$1$2$3$4$5'")
	}
	return statement
}

func (p *testDB) row(t buffertest.TB, table string, id int64) string {
	t.Helper()
	return query(t, p.db, fmt.Sprintf(`
		SELECT concat_ws(' ', quote(id), quote(topic), quote(key), quote(payload), quote(headers), quote(created_at), quote(parent_id), quote(seal), quote(raw))
		FROM %s WHERE id = %d`, quote(table), id), func(rows *sql.Rows) (row string, err error) { return row, rows.Scan(&row) })[0]
}
