package sqlite_test

import (
	"database/sql"
	_ "embed"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// earlierSchema is what relay schema sqlite of revision 8d2c99d9 printed, the earliest version that an upgrade is tested from.
//
//go:embed testdata/schema-2026-11-27.sql
var earlierSchema string

// Migrate gives the tables of an earlier version the columns and tables that they lack, and keeps their rows.
func TestMigrate_TablesOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	fresh, freshURL := database(t)
	migrate(t, freshURL, sqlite.SchemaConfig{})
	const recorded = `CREATE TABLE outbox_events_migrations (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL, is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')));
		INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (0, 1), (1, 1);`
	for name, more := range map[string]string{"Migrated": recorded, "BySchema": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := database(t)
			exec(t, db, earlierSchema)
			exec(t, db, more)
			exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2')")
			b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
			testkit.NoError(t, err)
			defer func() { testkit.NoError(t, b.Close()) }()
			expectNotReady(t, b.Check(t.Context()), `table "outbox_batches" has no column history, which relay migrate adds: ALTER TABLE "outbox_batches" ADD COLUMN history TEXT`)

			applied := migrate(t, url, sqlite.SchemaConfig{})
			for _, what := range []string{"outbox_events.available_at", "outbox_batches.history", "outbox_dead_letters.history", "outbox_buffers.archive", "outbox_relays.probes"} {
				if !slices.Contains(applied, what) {
					t.Errorf("%q is not in %q", what, applied)
				}
			}
			if diff := cmp.Diff(columnsOf(t, fresh), columnsOf(t, db)); diff != "" {
				t.Errorf("columns (-made by this version +upgraded):\n%s", diff)
			}
			const indexed = "SELECT sql FROM sqlite_schema WHERE name = 'outbox_events_delayed'"
			var index string
			if err := db.QueryRowContext(t.Context(), indexed).Scan(&index); err != nil || !strings.Contains(index, "(available_at, group_id)") {
				t.Errorf("the index of delayed events is %q, %v", index, err)
			}
			if _, err := db.ExecContext(t.Context(), "INSERT INTO outbox_events (topic, payload, available_at) VALUES ('t', '3', 'tomorrow')"); err == nil {
				t.Error("available_at may be a text that is no time")
			}
			exec(t, db, "INSERT INTO outbox_events (topic, payload, available_at) VALUES ('t', '3', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '1 day'))")
			if applied := migrate(t, url, sqlite.SchemaConfig{}); len(applied) > 0 {
				t.Errorf("again: applied %q", applied)
			}
			testkit.NoError(t, b.Check(t.Context()))
			if batch, err := b.Claim(t.Context(), 10, time.Minute); err != nil || len(batch.Events) != 2 {
				t.Errorf("claimed %+v, %v", batch, err)
			}
		})
	}
}

// columnsOf returns the columns of all tables, with types, in any order.
func columnsOf(t *testing.T, db *sql.DB) (columns []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT t.name || '.' || c.name || ' ' || c.type || ' ' || c."notnull" || ' ' || coalesce(c.dflt_value, '')
		FROM sqlite_schema AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table' AND t.name NOT LIKE '%\_migrations' ESCAPE '\' AND t.name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY 1`)
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, rows.Close()) }()
	for rows.Next() {
		var c string
		testkit.NoError(t, rows.Scan(&c))
		columns = append(columns, c)
	}
	testkit.NoError(t, rows.Err())
	return columns
}
