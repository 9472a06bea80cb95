package sqlite_test

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func urlOf(file string) string { return (&url.URL{Scheme: "sqlite", Path: file}).String() }

// applicationDSN is how an application opens the file.
func applicationDSN(file string) string {
	return (&url.URL{Scheme: "file", Path: file, RawQuery: "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(OFF)"}).String()
}

// database is a file that holds nothing yet.
func database(t *testing.T) (db *sql.DB, url string) {
	t.Helper()
	p := newTestDB(t, buffertest.Options{})
	return p.db, p.url
}

func migrate(t *testing.T, url string, c sqlite.SchemaConfig) []string {
	t.Helper()
	applied, err := sqlite.Migrate(t.Context(), url, c)
	testkit.NoError(t, err)
	return applied
}

// schemaOf is every table and index there is, but goose's own.
func schemaOf(t *testing.T, db *sql.DB) []string {
	t.Helper()
	return query(t, db, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE '%migrations' AND name NOT LIKE 'sqlite_%' ORDER BY name",
		func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
}

// TestSchema_EqualsMigrate: `relay schema` prints what Migrate creates.
func TestSchema_EqualsMigrate(t *testing.T) {
	t.Parallel()
	for _, c := range []sqlite.SchemaConfig{{}, {Bytes: true}, {Table: `odd "name'; --`}} {
		printed, printedURL := database(t)
		ddl, err := sqlite.Schema(c)
		testkit.NoError(t, err)
		if strings.Contains(ddl, "goose") || strings.Contains(strings.ToUpper(ddl), "DROP ") {
			t.Fatalf("the DDL is not fit to be printed:\n%s", ddl)
		}
		for range 2 { // it may be run again
			_, err = printed.Exec(ddl)
			testkit.NoError(t, err)
		}
		migrated, migratedURL := database(t)
		migrate(t, migratedURL, c)
		if d := cmp.Diff(schemaOf(t, migrated), schemaOf(t, printed)); d != "" {
			t.Fatalf("migrate (-) and schema (+) make different tables:\n%s", d)
		}
		var mode string
		testkit.NoError(t, printed.QueryRow("PRAGMA journal_mode").Scan(&mode))
		if mode != "wal" {
			t.Fatalf("journal_mode is %q, want wal", mode)
		}
		migrate(t, printedURL, c) // on top of the printed DDL
		b, err := sqlite.Open(sqlite.Config{URL: printedURL, Table: c.Table, Pipeline: "orders"})
		testkit.NoError(t, err)
		testkit.NoError(t, b.Check(t.Context()))
		testkit.NoError(t, b.Close())
	}
}

// TestSchema_PrimaryKeyOnly: the buffer has no index but its primary key that an event which is not delayed would update.
func TestSchema_PrimaryKeyOnly(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	var indexes int
	testkit.NoError(t, db.QueryRow("SELECT count(*) FROM pragma_index_list('outbox_events') WHERE name <> 'outbox_events_delayed' OR NOT partial").Scan(&indexes))
	if indexes != 0 {
		t.Fatalf("the buffer has %d indexes in addition to its primary key", indexes)
	}
}

func TestMigrate_Again(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	if applied := migrate(t, url, sqlite.SchemaConfig{}); len(applied) == 0 {
		t.Fatal("the first migrate applied nothing")
	}
	_, err := db.Exec("INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
	testkit.NoError(t, err)
	if applied := migrate(t, url, sqlite.SchemaConfig{}); len(applied) != 0 {
		t.Fatalf("the second migrate applied %v", applied)
	}
	if applied := migrate(t, url, sqlite.SchemaConfig{Table: "other_events"}); len(applied) == 0 {
		t.Fatal("the migrate of a second buffer applied nothing")
	}
	for _, drop := range []string{"DROP TABLE outbox_batches", "DROP TABLE other_events", "DELETE FROM outbox_buffers"} {
		_, err = db.Exec(drop)
		testkit.NoError(t, err)
	}
	for _, table := range []string{"outbox_events", "other_events"} {
		migrate(t, url, sqlite.SchemaConfig{Table: table})
		b, err := sqlite.Open(sqlite.Config{URL: url, Table: table, Pipeline: "orders"})
		testkit.NoError(t, err)
		testkit.NoError(t, b.Check(t.Context()))
		testkit.NoError(t, b.Close())
	}
	var events int
	testkit.NoError(t, db.QueryRow("SELECT count(*) FROM outbox_events").Scan(&events))
	if events != 1 {
		t.Fatalf("%d events are left, want 1", events)
	}
}

func TestMigrate_Concurrently(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	g, ctx := errgroup.WithContext(t.Context())
	for range 4 {
		g.Go(func() error {
			_, err := sqlite.Migrate(ctx, url, sqlite.SchemaConfig{})
			return err
		})
	}
	testkit.NoError(t, g.Wait())
	var versions, distinct int
	testkit.NoError(t, db.QueryRow("SELECT count(version_id), count(DISTINCT version_id) FROM outbox_events_migrations").Scan(&versions, &distinct))
	if versions != distinct || versions < 2 {
		t.Fatalf("%d migrations were applied, %d different ones", versions, distinct)
	}
}

func TestSchema_RejectsNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sqlite_events", "SQLite_x", "nul\x00", "outbox_events dead letters"} {
		if _, err := sqlite.Schema(sqlite.SchemaConfig{Table: name}); err == nil {
			t.Errorf("Schema took the table name %q", name)
		}
		if _, err := sqlite.Open(sqlite.Config{URL: "sqlite:///x.db", Pipeline: "p", Table: name}); err == nil {
			t.Errorf("Open took the table name %q", name)
		}
	}
}

// TestSchema_Constraints: the table rejects invalid events of any application at once.
func TestSchema_Constraints(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	migrate(t, url, sqlite.SchemaConfig{Table: "opaque", Bytes: true})
	for _, values := range []string{
		"outbox_events (topic, payload) VALUES ('', '{}')",
		"outbox_events (topic, payload) VALUES (NULL, '{}')",
		"outbox_events (topic, payload) VALUES ('t', NULL)",
		"outbox_events (topic, payload) VALUES ('t', '')",
		"outbox_events (topic, payload) VALUES ('t', '{')",
		"outbox_events (topic, payload) VALUES ('t', x'7b7d')",
		"outbox_events (topic, payload, headers) VALUES ('t', '{}', '[]')",
		"outbox_events (topic, payload, headers) VALUES ('t', '{}', 'x')",
		"outbox_events (topic, payload, created_at) VALUES ('t', '{}', '2026-01-02 03:04:05')",
		"opaque (topic, payload) VALUES ('t', 'text')",
	} {
		if _, err := db.Exec("INSERT INTO " + values); err == nil {
			t.Errorf("the table took %s", values)
		}
	}
	_, err := db.Exec("INSERT INTO outbox_events (topic, key, payload, headers) VALUES ('t', 7, 1, '{}'), ('t', NULL, 'null', NULL)")
	testkit.NoError(t, err)
}

// TestMigrate_CreatesFile: Migrate creates files in folders with odd names.
func TestMigrate_CreatesFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a%20b #1?.db")
	migrate(t, urlOf(file), sqlite.SchemaConfig{})
	if found, err := filepath.Glob(filepath.Join(filepath.Dir(file), "a%20b #1[?].db")); err != nil || len(found) != 1 {
		t.Fatalf("the file %s was not made: %v %v", file, found, err)
	}
	_, err := sqlite.Migrate(t.Context(), urlOf(filepath.Join(filepath.Dir(file), "none", "a.db")), sqlite.SchemaConfig{})
	expectNotReady(t, err, "none of source.url does not exist")
	_, err = sqlite.Migrate(t.Context(), "postgres://host/db", sqlite.SchemaConfig{})
	if err == nil {
		t.Fatal("Migrate took a URL of another database")
	}
}

func expectNotReady(t *testing.T, err error, says string) {
	t.Helper()
	if !isNotReady(err) || !strings.Contains(err.Error(), says) {
		t.Fatalf("got error %v, want one that is %q and says %q", err, buffer.ErrNotReady, says)
	}
}
