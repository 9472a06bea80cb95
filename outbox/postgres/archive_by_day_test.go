package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestArchive_ByDay: an archive with partitions takes every event, has partitions ahead, loses whole old ones, and can be replayed. The relay's role owns none of it.
func TestArchive_ByDay(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{Archive: true})
	c := postgres.SchemaConfig{Table: "outbox_events", Archive: "outbox_archive", ArchiveByDay: true}
	applied, err := postgres.Migrate(t.Context(), p.url, c)
	check(t, err)
	if !strings.Contains(strings.Join(applied, " "), "archive outbox_archive") {
		t.Errorf("applied %q", applied)
	}
	applied, err = postgres.Migrate(t.Context(), p.url, c)
	check(t, err)
	if len(applied) != 0 {
		t.Errorf("applied again: %q", applied)
	}
	p.migrated = schemaOf(p.opt, "outbox_events")
	f := p.fixture(t, "outbox_events", "orders")
	partitions := func() int {
		return query(t, p.pool, "SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'outbox_archive'::regclass", pgx.RowTo[int])[0]
	}
	count := func(table string) int {
		t.Helper()
		return query(t, p.pool, "SELECT count(*)::int FROM "+table, pgx.RowTo[int])[0]
	}
	today := "outbox_archive_p" + time.Now().UTC().Format("20060102")
	if n := partitions(); n != 9 {
		t.Fatalf("%d partitions, want 8 days and the default", n)
	}
	role := p.asRole(t, "relay_", "GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers, outbox_relays",
		"GRANT SELECT, INSERT, DELETE ON outbox_archive", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public")
	b, err := postgres.Open(postgres.Config{URL: role, Pipeline: "orders", Archive: "outbox_archive"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	check(t, b.Check(t.Context()))
	deliver := func(n int) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '1' FROM generate_series(1, $1::int)", n)
		check(t, err)
		lease, err := b.Claim(t.Context(), n, lease)
		check(t, err)
		check(t, b.Settle(t.Context(), lease, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	deliver(5)
	if n := count(today); n != 5 {
		t.Fatalf("%d events are in the partition of today, want 5", n)
	}

	_, err = b.DeleteArchived(t.Context(), 24*time.Hour, time.Time{}, 0)
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "GRANT EXECUTE ON FUNCTION public.outbox_archive_maintain() TO") {
		t.Fatalf("without the right to call the function: %v", err)
	}
	f.Exec(t, "DO $$ BEGIN EXECUTE (SELECT format('GRANT EXECUTE ON FUNCTION outbox_archive_maintain() TO %I', rolname) FROM pg_roles WHERE rolname LIKE 'relay\\_%' AND has_table_privilege(rolname, 'outbox_archive', 'INSERT') AND NOT rolsuper); END $$")
	old := func(daysAgo, rows int) {
		t.Helper()
		day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -daysAgo)
		f.Exec(t, fmt.Sprintf("CREATE TABLE outbox_archive_p%s PARTITION OF outbox_archive FOR VALUES FROM ('%s+00') TO ('%s+00')", day.Format("20060102"), day.Format("2006-01-02"), day.AddDate(0, 0, 1).Format("2006-01-02")))
		f.Exec(t, fmt.Sprintf("INSERT INTO outbox_archive (id, topic, payload, created_at, group_id, archived_at) SELECT -i, 'old', '1', now(), gen_random_uuid(), '%s+00' FROM generate_series(1, %d) i", day.Add(time.Hour).Format("2006-01-02 15:04"), rows))
	}
	old(2, 7)
	old(10, 3)
	old(11, 3)
	f.Exec(t, "INSERT INTO outbox_archive (id, topic, payload, created_at, group_id, archived_at) SELECT -i, 'older', '1', now(), gen_random_uuid(), now() - interval '40 days' FROM generate_series(1, 4) i")
	size, err := b.ArchiveSize(t.Context())
	check(t, err)
	if size.Partitions != 11 || size.DefaultBytes == 0 || size.OldestAge() < 39*24*time.Hour || size.Bytes == 0 {
		t.Errorf("size: %+v", size)
	}
	all := buffer.DeletedArchived{}
	for more := true; more; {
		done, err := b.DeleteArchived(t.Context(), 5*24*time.Hour, time.Time{}, 1000)
		check(t, err)
		all.Events, all.Partitions, more = all.Events+done.Events, all.Partitions+done.Partitions, done.More
	}
	if all.Events != 4 || all.Partitions != 2 || count("outbox_archive") != 12 || partitions() != 10 {
		t.Fatalf("deleted %+v, %d events in %d partitions are left", all, count("outbox_archive"), partitions())
	}

	replayed, err := b.ReplayArchived(t.Context(), buffer.ArchiveFilter{Since: time.Now().Add(-time.Hour), BatchSize: 10}, false, nil)
	check(t, err)
	if replayed.Events != 5 {
		t.Fatalf("replayed %+v, want 5", replayed)
	}
	batch, err := b.TakeOver(t.Context(), lease, buffer.DueRetry)
	check(t, err)
	check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))

	// Without its partition, today's events are in the default one; nothing waits, and nothing is lost.
	f.Exec(t, "DROP TABLE "+today)
	deliver(6)
	if n := count("outbox_archive_default"); n != 6 {
		t.Fatalf("%d events are in the default partition, want 6", n)
	}
	done, err := b.DeleteArchived(t.Context(), 5*24*time.Hour, time.Time{}, 1000)
	check(t, err)
	if done != (buffer.DeletedArchived{}) || partitions() != 9 {
		t.Errorf("a day whose events are in the default partition: %+v, %d partitions", done, partitions())
	}
	deliver(1)

	// Somebody who reads the archive holds up the DROP, and no settle for long.
	old(20, 1)
	tx, err := p.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), "SELECT count(*) FROM outbox_archive")
	check(t, err)
	done, err = b.DeleteArchived(t.Context(), 5*24*time.Hour, time.Time{}, 1000)
	check(t, err)
	if done.Partitions != 0 || done.More {
		t.Errorf("while the archive is read: %+v", done)
	}
	deliver(1)
	check(t, tx.Rollback(t.Context()))
	done, err = b.DeleteArchived(t.Context(), 5*24*time.Hour, time.Time{}, 1000)
	check(t, err)
	if done.Partitions != 1 {
		t.Errorf("afterwards: %+v", done)
	}
}

// TestMigrate_ArchiveStays: an archive without partitions stays as it is.
func TestMigrate_ArchiveStays(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Archive: true})
	applied, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "outbox_events", Archive: "outbox_archive", ArchiveByDay: true})
	check(t, err)
	kinds := query(t, p.pool, "SELECT relkind::text FROM pg_class WHERE oid = 'outbox_archive'::regclass", pgx.RowTo[string])
	if len(applied) != 0 || kinds[0] != "r" {
		t.Errorf("applied %q, the archive is a %v", applied, kinds)
	}
}
