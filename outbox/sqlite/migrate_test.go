package sqlite_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// Tables that an unreleased version made are rejected by name, by Check and by Migrate, and not changed. Migrate
// succeeds once the steps that the error names are done.
func TestMigrate_RejectsObsoleteTables(t *testing.T) {
	t.Parallel()
	const (
		batches = `table "outbox_batches" has column starts`
		dead    = `table "outbox_dead_letters" has column told_at`
		fix     = "when outbox_batches and outbox_dead_letters are empty: "

		oldBatches = "ALTER TABLE outbox_batches RENAME COLUMN unfinished_leases TO starts;"
		oldDead    = "ALTER TABLE outbox_dead_letters RENAME COLUMN notified_at TO told_at;"
		versions   = "INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (2, TRUE), (7, TRUE);"
	)
	for name, c := range map[string]struct {
		damage string
		says   []string
		check  bool // Check looks at tables only
	}{
		"Ledger":      {oldBatches, []string{batches}, true},
		"DeadLetters": {oldDead, []string{dead}, true},
		"Both":        {oldBatches + oldDead + versions, []string{batches, dead}, true},
		"NoVersions":  {oldBatches + "DROP TABLE outbox_events_migrations;", []string{batches}, true},
		"Versions":    {versions, []string{`table "outbox_events_migrations" records version 7; expected 1`}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := database(t)
			migrate(t, url, sqlite.SchemaConfig{})
			exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
			exec(t, db, c.damage)
			before := schemaOf(t, db)
			b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
			testkit.NoError(t, err)
			defer func() { testkit.NoError(t, b.Close()) }()
			_, err = sqlite.Migrate(t.Context(), url, sqlite.SchemaConfig{Archive: "outbox_archive"})
			for _, says := range append(c.says, fix) {
				expectNotReady(t, err, says)
				if c.check {
					expectNotReady(t, b.Check(t.Context()), says)
				}
			}
			if d := cmp.Diff(before, schemaOf(t, db)); d != "" {
				t.Errorf("migrate changed the schema (-before +after):\n%s", d)
			}
			_, drop, _ := strings.Cut(err.Error(), fix)
			drop, _, ok := strings.Cut(drop, ", then run relay migrate -c relay.yaml")
			if !ok {
				t.Fatalf("got %v", err)
			}
			exec(t, db, drop)
			migrate(t, url, sqlite.SchemaConfig{})
			testkit.NoError(t, b.Check(t.Context()))
			if batch, err := b.Claim(t.Context(), 10, time.Minute); err != nil || len(batch.Events) != 1 {
				t.Errorf("claimed %+v, %v", batch, err)
			}
		})
	}
}

func TestMigrate_RejectsTablesWithoutOwner(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	exec(t, db, "ALTER TABLE outbox_buffers DROP COLUMN pipeline; ALTER TABLE outbox_buffers DROP COLUMN owned_since")
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, b.Close()) }()
	_, err = sqlite.Migrate(t.Context(), url, sqlite.SchemaConfig{})
	for _, column := range []string{"pipeline", "owned_since"} {
		fix := `ALTER TABLE "outbox_buffers" ADD COLUMN ` + column + " TEXT"
		expectNotReady(t, err, `table "outbox_buffers" has no column `+column)
		expectNotReady(t, err, fix)
		expectNotReady(t, b.Check(t.Context()), fix)
		exec(t, db, fix)
	}
	migrate(t, url, sqlite.SchemaConfig{})
	testkit.NoError(t, b.Check(t.Context()))
}

// TestMigrate_AddsArchiveLater: the archive can be configured long after the buffer was created.
func TestMigrate_AddsArchiveLater(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	const name = `arch"ive 'outbox_events'`
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Archive: name})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	expectNotReady(t, b.Check(t.Context()), `table "arch""ive 'outbox_events'" does not exist: relay migrate`)
	for _, want := range [][]string{{name}, nil} {
		if applied := migrate(t, url, sqlite.SchemaConfig{Archive: name}); !slices.Equal(applied, want) {
			t.Fatalf("applied %v, want %v", applied, want)
		}
	}
	testkit.NoError(t, b.Check(t.Context()))
	exec(t, db, "DROP TABLE outbox_batches; DROP TABLE "+quote(name)) // migrate makes all dropped tables again
	migrate(t, url, sqlite.SchemaConfig{Archive: name})
	testkit.NoError(t, b.Check(t.Context()))
	exec(t, db, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1')")
	batch, err := b.Claim(t.Context(), 10, time.Minute)
	testkit.NoError(t, err)
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	var archived int
	testkit.NoError(t, db.QueryRow("SELECT count(*) FROM "+quote(name)).Scan(&archived))
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
