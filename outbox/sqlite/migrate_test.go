package sqlite_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// Tables that an unreleased version made are rejected by name, by Check and by Migrate, and not changed.
func TestMigrate_RejectsObsoleteTables(t *testing.T) {
	t.Parallel()
	for says, damage := range map[string]string{
		`table "outbox_batches" has column starts`:       "ALTER TABLE outbox_batches RENAME COLUMN unfinished_leases TO starts",
		`table "outbox_dead_letters" has column told_at`: "ALTER TABLE outbox_dead_letters RENAME COLUMN notified_at TO told_at",
	} {
		db, url := database(t)
		migrate(t, url, sqlite.SchemaConfig{})
		exec(t, db, damage)
		before := schemaOf(t, db)
		_, err := sqlite.Migrate(t.Context(), url, sqlite.SchemaConfig{Archive: "outbox_archive"})
		expectNotReady(t, err, says)
		expectNotReady(t, err, "relay migrate")
		b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
		testkit.NoError(t, err)
		expectNotReady(t, b.Check(t.Context()), says)
		testkit.NoError(t, b.Close())
		if d := cmp.Diff(before, schemaOf(t, db)); d != "" {
			t.Errorf("migrate changed the schema (-before +after):\n%s", d)
		}
	}
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
