package sqlite_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func TestOpen_RejectsCustomTable(t *testing.T) {
	t.Parallel()
	own := buffer.CustomTable{ID: "id", Project: byGroup}
	for says, c := range map[string]sqlite.Config{
		"order: key":  {Ordered: true, Custom: own},
		"optimistic":  {Claim: "optimistic", Custom: own},
		"range":       {Claim: buffer.ClaimRange, Custom: own},
		"cursor":      {Custom: buffer.CustomTable{ID: "id", Cursor: "seq", Project: byGroup}},
		"primary key": {Custom: buffer.CustomTable{Project: byGroup}},
	} {
		c.URL, c.Pipeline, c.Table = "sqlite:///a.db", "orders", "t"
		b, err := sqlite.Open(c)
		if err == nil {
			t.Errorf("Open took %+v: %v", c, b.Close())
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("the error does not say %q: %v", says, err)
		}
	}
}

func TestCheck_CustomTable(t *testing.T) {
	t.Parallel()
	for ddl, says := range map[string]string{
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT)":                                        "",
		"CREATE TABLE t (ID integer PRIMARY KEY, payload, Group_Id char(36))":                                    "",
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload ANY, group_id BLOB) STRICT":                             "",
		"CREATE TABLE other (id INTEGER PRIMARY KEY)":                                                            "does not exist",
		"CREATE TABLE o (id INTEGER PRIMARY KEY); CREATE VIEW t AS SELECT id, 1 AS payload FROM o":               "is not a table",
		"CREATE TABLE t (nr INTEGER PRIMARY KEY, payload, group_id TEXT)":                                        `no column "id": correct source.id`,
		"CREATE TABLE t (id INT PRIMARY KEY, payload, group_id TEXT)":                                            "INTEGER PRIMARY KEY",
		"CREATE TABLE t (id TEXT PRIMARY KEY, payload, group_id TEXT)":                                           "INTEGER PRIMARY KEY",
		"CREATE TABLE t (id INTEGER, payload, group_id TEXT)":                                                    "INTEGER PRIMARY KEY",
		"CREATE TABLE t (id INTEGER, a INTEGER, payload, group_id TEXT, PRIMARY KEY (id, a))":                    "INTEGER PRIMARY KEY",
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT) WITHOUT ROWID":                          "INTEGER PRIMARY KEY",
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload)":                                                       `ALTER TABLE "t" ADD COLUMN group_id TEXT`,
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id INTEGER)":                                     "expected TEXT or BLOB",
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT NOT NULL)":                               "NOT NULL or has a DEFAULT",
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT DEFAULT '')":                             "NOT NULL or has a DEFAULT",
		"CREATE TABLE t (id INTEGER PRIMARY KEY, payload, group_id TEXT); CREATE UNIQUE INDEX u ON t (group_id)": `DROP INDEX "u"`,
		"CREATE TABLE t (id INTEGER PRIMARY KEY, body, group_id TEXT)":                                           "no such column: payload",
	} {
		_, b := newCustom(t, ddl, sqlite.Config{Custom: buffer.CustomTable{Project: byGroup}})
		if err := b.Check(t.Context()); says != "" {
			expectNotReady(t, err, says)
		} else if err != nil {
			t.Errorf("%s: %v", ddl, err)
		}
	}
}

// TestMigrate_CustomTable: migrate creates the relay's tables and leaves the custom table
// unchanged.
func TestMigrate_CustomTable(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	c := sqlite.SchemaConfig{Table: "activities", Archive: "outbox_archive", Custom: true}
	tables := func() []string {
		return query(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
			func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
	}
	migrate(t, url, c) // before the user's table is there
	want := []string{"activities_migrations", "outbox_archive", "outbox_batches", "outbox_buffers", "outbox_dead_letters", "outbox_rates", "outbox_relays", "outbox_sinks", "outbox_versions"}
	if d := cmp.Diff(want, tables()); d != "" {
		t.Fatalf("unexpected tables (-want +got):\n%s", d)
	}
	run(t, db, "CREATE TABLE activities (id INTEGER PRIMARY KEY, payload)")
	before := schemaOf(t, db)
	if applied := migrate(t, url, c); len(applied) != 0 {
		t.Fatalf("the second migrate applied %v", applied)
	}
	run(t, db, "DROP TABLE outbox_batches")
	migrate(t, url, c)
	run(t, db, "DELETE FROM outbox_buffers")
	migrate(t, url, c)
	if d := cmp.Diff(before, schemaOf(t, db)); d != "" {
		t.Fatalf("schema before (-) and after (+):\n%s", d)
	}
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Table: "activities", Archive: "outbox_archive", Custom: buffer.CustomTable{ID: "id", Project: "SELECT id, payload FROM activities WHERE group_id = ?"}})
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, b.Close()) }()
	expectNotReady(t, b.Check(t.Context()), "ADD COLUMN group_id TEXT")
	run(t, db, `ALTER TABLE "activities" ADD COLUMN group_id TEXT`)
	testkit.NoError(t, b.Check(t.Context()))

	ddl, err := sqlite.Schema(c)
	testkit.NoError(t, err)
	if strings.Contains(ddl, `"activities"`) || !strings.Contains(ddl, "outbox_batches") {
		t.Fatalf("the DDL for a custom table:\n%s", ddl)
	}
}

func TestDiagnose_CustomTable(t *testing.T) {
	t.Parallel()
	const joined = "SELECT e.id, p.name AS payload FROM {events} AS e JOIN p ON p.id = e.p"
	const tables = "CREATE TABLE p (id INTEGER PRIMARY KEY, name); CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, p, created_at TEXT, group_id TEXT)"
	for project, fix := range map[string]string{
		strings.Replace(joined, "{events}", "t", 1) + " WHERE e.group_id = ?":              "{events}",
		strings.Replace(joined, "p.name", "(SELECT count(*) FROM t o WHERE o.p = e.p)", 1): "create an index",
	} {
		_, b := newCustom(t, tables, sqlite.Config{Custom: buffer.CustomTable{Project: project}})
		found := b.Diagnose(t.Context())
		if f := find(found, buffer.LevelWarning, "projection plan", "SCAN"); f == nil || len(bad(found)) != 1 || !strings.Contains(f.Fix, fix) {
			t.Errorf("%s: found %+v; expected the fix %q", project, bad(found), fix)
		}
	}
	db, b := newCustom(t, tables, sqlite.Config{Custom: buffer.CustomTable{Project: joined}})
	if found := b.Diagnose(t.Context()); len(bad(found)) != 0 {
		t.Fatalf("got %+v", bad(found))
	}
	run(t, db, "ALTER TABLE p RENAME TO other")
	run(t, db, "CREATE TABLE p (id INTEGER, name)")
	found := b.Diagnose(t.Context())
	if f := find(found, buffer.LevelWarning, "projection plan", " p USING AUTOMATIC"); f == nil || !strings.Contains(f.Fix, "joined") {
		t.Fatalf("without an index on the parent's key it finds %+v", bad(found))
	}
	run(t, db, "CREATE INDEX parents ON p (id)")
	found = b.Diagnose(t.Context())
	for _, about := range []string{"tables", "claim", "ids", "projection plan", "claim plan", "integrity"} {
		if find(found, buffer.LevelOK, about, "") == nil {
			t.Errorf("no finding about %s: %+v", about, found)
		}
	}

	_, b = newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, payload, created_at TEXT, group_id TEXT); CREATE INDEX i ON t (group_id)", sqlite.Config{Custom: buffer.CustomTable{Project: byGroup}})
	found = b.Diagnose(t.Context())
	if find(found, buffer.LevelWarning, "ids", "no AUTOINCREMENT") == nil || len(bad(found)) != 1 {
		t.Fatalf("without AUTOINCREMENT it finds %+v", bad(found))
	}

	_, b = newCustom(t, "CREATE TABLE t (id INTEGER PRIMARY KEY, body)", sqlite.Config{Custom: buffer.CustomTable{Project: byGroup}})
	found = b.Diagnose(t.Context())
	if i := slices.IndexFunc(found, func(f buffer.Finding) bool { return f.Fix == `ALTER TABLE "t" ADD COLUMN group_id TEXT` }); i < 0 || found[i].Level != buffer.LevelError {
		t.Fatalf("without group_id it finds %+v", bad(found))
	}
}
