package sqlite_test

import (
	"database/sql"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// columnsOf is what the relay's own tables have.
func columnsOf(t *testing.T, db *sql.DB) []string {
	t.Helper()
	return query(t, db, `SELECT m.name || ': ' || c.name || ' ' || c.type || ' ' || c."notnull" || ' ' || coalesce(c.dflt_value, '')
		FROM sqlite_schema AS m, pragma_table_info(m.name) AS c
		WHERE m.type = 'table' AND m.name LIKE 'outbox%' AND m.name NOT LIKE '%migrations' ORDER BY m.name, c.cid`,
		func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
}

// TestUpgrade: a file of the first release, with all that was under way in it, is
// brought up to date, and nothing of it is lost.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/first_release.sql")
	check(t, err)
	db, url := database(t)
	exec(t, db, string(script))
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Owner: "new"})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	expectNotReady(t, b.Check(t.Context()), `table "outbox_batches" has no column address: relay migrate`)
	expectNotReady(t, b.Check(t.Context()), `table "outbox_dead_letters" has no column hook_group_id: relay migrate`)

	want := []string{"00002_columns", "00003_dead_letters.sql", "00004_lanes", "00005_members", "00006_own", "00007_rates.sql"}
	if applied := migrate(t, url, sqlite.SchemaConfig{}); !slices.Equal(applied, want) {
		t.Fatalf("applied %v, want %v", applied, want)
	}
	if applied := migrate(t, url, sqlite.SchemaConfig{}); len(applied) != 0 {
		t.Fatalf("the second migrate applied %v", applied)
	}
	check(t, b.Check(t.Context()))
	fresh, freshURL := database(t)
	migrate(t, freshURL, sqlite.SchemaConfig{})
	if d := cmp.Diff(columnsOf(t, fresh), columnsOf(t, db)); d != "" {
		t.Fatalf("a new file (-) and an upgraded one (+) have different columns:\n%s", d)
	}

	told, err := b.Hook().Claim(t.Context(), 10, time.Minute)
	check(t, err)
	check(t, b.Hook().Settle(t.Context(), told, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	replayed, err := b.Replay(t.Context(), buffer.DeadFilter{Notified: true}, 10)
	check(t, err)
	var ids []int64
	for {
		batch, err := b.TakeOver(t.Context(), time.Minute)
		check(t, err)
		if batch == nil {
			batch, err = b.Claim(t.Context(), 10, time.Minute)
			check(t, err)
		}
		if batch == nil {
			break
		}
		ids = append(ids, batch.IDs()...)
		check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	if slices.Sort(ids); replayed != 1 || !slices.Equal(ids, []int64{1, 3, 4, 5, 6, 7}) {
		t.Fatalf("%d letters were replayed, events %v delivered; want 1 and events 1 and 3 to 7", replayed, ids)
	}
	left, err := b.Audit(t.Context())
	check(t, err)
	if want := (buffer.Audit{Dead: buffer.DeadCount{Closed: 2}}); left != want {
		t.Fatalf("left is %+v, want %+v", left, want)
	}
}

// TestArchiveLater: the archive may be configured when the buffer has long been
// there, and under any name but the buffer's.
func TestArchiveLater(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	const name = `arch"ive 'outbox_events'`
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Archive: name})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	expectNotReady(t, b.Check(t.Context()), `table "arch""ive 'outbox_events'" does not exist: relay migrate`)
	for _, want := range [][]string{{name}, nil} {
		if applied := migrate(t, url, sqlite.SchemaConfig{Archive: name}); !slices.Equal(applied, want) {
			t.Fatalf("applied %v, want %v", applied, want)
		}
	}
	check(t, b.Check(t.Context()))
	exec(t, db, "DROP TABLE outbox_batches; DROP TABLE "+quote(name)) // what a hand dropped is made anew, all of it
	migrate(t, url, sqlite.SchemaConfig{Archive: name})
	check(t, b.Check(t.Context()))
	exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
	batch, err := b.Claim(t.Context(), 10, time.Minute)
	check(t, err)
	check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	var archived int
	check(t, db.QueryRow("SELECT count(*) FROM "+quote(name)).Scan(&archived))
	if archived != 1 {
		t.Fatalf("%d events are in the archive, want 1", archived)
	}

	for _, archive := range []string{"Outbox_Events", "sqlite_archive"} {
		if _, err := sqlite.Migrate(t.Context(), url, sqlite.SchemaConfig{Archive: archive}); err == nil {
			t.Errorf("Migrate took the archive %q", archive)
		}
		if b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Archive: archive}); err == nil {
			t.Errorf("Open took the archive %q: %v", archive, b.Close())
		}
	}
}
