package postgres_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestArchive_Fails: the batch stays delivered, is not sent again, and is in the
// archive when that is back.
func TestArchive_Fails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ damage, repair string }{
		"dropped": {"DROP TABLE outbox_archive", ""},
		"full": {`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'could not extend file';
			END $$;
			CREATE TRIGGER full_disk BEFORE INSERT ON outbox_archive FOR EACH ROW EXECUTE FUNCTION full_disk()`, "DROP TRIGGER full_disk ON outbox_archive"},
		"locked": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Archive: true})
			f := p.fixture(t, "outbox_events", "orders")
			event := outbox.Event{Topic: "t", Payload: []byte("1")}
			ids := f.Insert(t, event, event, event)
			b, err := f.Buffer.Claim(t.Context(), 10, lease)
			check(t, err)
			tx, err := p.pool.Begin(t.Context())
			check(t, err)
			if c.damage != "" {
				_, err = tx.Exec(t.Context(), c.damage)
				check(t, err)
				check(t, tx.Commit(t.Context()))
			} else {
				postgres.SetStatementTimeout(f.Buffer.(*postgres.Buffer), time.Second)
				_, err = tx.Exec(t.Context(), "LOCK TABLE outbox_archive IN ACCESS EXCLUSIVE MODE")
				check(t, err)
			}

			outcomes := []buffer.Outcome{{Verdict: buffer.Delivered}}
			if err := f.Buffer.Settle(t.Context(), b, outcomes); err == nil {
				t.Fatal("settled without the archive")
			}
			check(t, f.Buffer.MarkDelivered(t.Context(), b, ids))
			for range 2 { // the delete is tried again
				f.ExpireLease(t, b.GroupID, time.Second)
				b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
				check(t, err)
				if diff := cmp.Diff(ids, b.Delivered); diff != "" {
					t.Fatalf("marked delivered (-want +got):\n%s", diff)
				}
				if err := f.Buffer.Settle(t.Context(), b, outcomes); err == nil {
					t.Fatal("settled without the archive")
				}
			}
			if rows, ledger := f.Rows(t), f.Ledger(t); len(rows) != 3 || len(ledger) != 1 || ledger[0].State != "delivered" {
				t.Fatalf("%v and %+v, expected three events of a delivered batch", rows, ledger)
			}

			if c.damage == "" {
				check(t, tx.Commit(t.Context()))
			}
			if c.repair != "" {
				f.Exec(t, c.repair)
			}
			_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Archive: "outbox_archive"})
			check(t, err)
			f.ExpireLease(t, b.GroupID, time.Second)
			b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
			check(t, err)
			check(t, f.Buffer.Settle(t.Context(), b, outcomes))
			var archived []int64
			for _, a := range f.Archived(t) {
				archived = append(archived, a.ID)
			}
			if diff := cmp.Diff(ids, archived); diff != "" {
				t.Errorf("archived (-want +got):\n%s", diff)
			}
			if rows, ledger := f.Rows(t), f.Ledger(t); len(rows)+len(ledger) != 0 {
				t.Errorf("left: %v %v", rows, ledger)
			}
		})
	}
}

// Migrate makes the archive in the configured schema, with the buffer's payload type, also if it is
// configured later.
func TestMigrate_Archive(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), `CREATE SCHEMA own; CREATE SCHEMA "old events"`)
	check(t, err)
	c := postgres.SchemaConfig{Table: "shop_events", Schema: "own", Payload: postgres.PayloadBytes}
	_, err = postgres.Migrate(t.Context(), p.url, c)
	check(t, err)
	types := func(schema string) []string {
		return query(t, p.pool, "SELECT data_type::text FROM information_schema.columns WHERE table_schema = '"+schema+
			"' AND table_name IN ('archive', 'shop archive') AND column_name = 'payload'", pgx.RowTo[string])
	}
	if got := types("own"); len(got) != 0 {
		t.Errorf("an archive without a configured one: %v", got)
	}
	c.Payload = "" // a command that only knows the table
	for archive, schema := range map[string]string{"archive": "own", "old events.shop archive": "old events"} {
		c.Archive = archive
		for _, want := range [][]string{{"archive " + archive}, nil} {
			applied, err := postgres.Migrate(t.Context(), p.url, c)
			check(t, err)
			if diff := cmp.Diff(want, applied); diff != "" {
				t.Errorf("applied (-want +got):\n%s", diff)
			}
		}
		if diff := cmp.Diff([]string{"bytea"}, types(schema)); diff != "" {
			t.Errorf("payload of %s (-want +got):\n%s", archive, diff)
		}
		b, err := postgres.Open(postgres.Config{URL: p.url, Table: c.Table, Schema: c.Schema, Archive: archive, Pipeline: "orders"})
		check(t, err)
		check(t, b.Check(t.Context()))
		check(t, b.Close())
	}

	c.Archive = "old events.more"
	poor := p.asRole(t, "poor_", "GRANT USAGE ON SCHEMA public", "GRANT USAGE ON SCHEMA own", "GRANT SELECT ON own.shop_events_migrations")
	_, err = postgres.Migrate(t.Context(), poor, c)
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), `CREATE ON SCHEMA "old events"`) {
		t.Errorf("a role that may not make it: got %v", err)
	}
}

// TestMigrate_ArchiveUnderStrictIsolation: the first migrate makes everything, whatever isolation level the database has by default.
func TestMigrate_ArchiveUnderStrictIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
		_, err := p.pool.Exec(t.Context(), "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '"+level+"'); END $$")
		check(t, err)
		applied, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Archive: "outbox_archive", Notify: true})
		check(t, err)
		for _, want := range []string{"archive outbox_archive", "trigger outbox_notify"} {
			if !slices.Contains(applied, want) {
				t.Errorf("%s: applied %q, expected %q among them", level, applied, want)
			}
		}
	}
}

func TestCheck_Archive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage string
		says   []string
	}{
		"not there":   {"DROP TABLE outbox_archive", []string{"table public.outbox_archive does not exist", "relay migrate -c relay.yaml"}},
		"two columns": {"ALTER TABLE outbox_archive DROP COLUMN key, DROP COLUMN headers", []string{"table public.outbox_archive has no column key: ALTER TABLE public.outbox_archive ADD COLUMN IF NOT EXISTS key text", "no column headers"}},
		"no key":      {"ALTER TABLE outbox_archive DROP CONSTRAINT outbox_archive_pkey", []string{"ALTER TABLE public.outbox_archive ADD PRIMARY KEY (id, group_id)"}},
		"not ours":    {"", []string{"may not INSERT on table public.outbox_archive: GRANT INSERT ON public.outbox_archive TO"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Archive: true})
			f := p.fixture(t, "outbox_events", "orders")
			url := p.url
			if c.damage == "" {
				url = p.asRole(t, "relay_",
					"GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events, outbox_batches, outbox_dead_letters, outbox_buffers",
					"GRANT SELECT ON outbox_archive", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public")
			} else {
				f.Exec(t, c.damage)
			}
			b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Archive: "outbox_archive"})
			check(t, err)
			defer func() { check(t, b.Close()) }()
			err = b.Check(t.Context())
			if !errors.Is(err, buffer.ErrNotReady) {
				t.Fatalf("got %v", err)
			}
			for _, says := range c.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("no %q in %v", says, err)
				}
			}
		})
	}
}

// TestCheck_ArchiveInForbiddenSchema: without USAGE of the schema, what is missing is that.
func TestCheck_ArchiveInForbiddenSchema(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), "CREATE SCHEMA app; CREATE TABLE app.orders (id bigint)")
	check(t, err)
	b, err := postgres.Open(postgres.Config{URL: p.asRole(t, "relay_"), Pipeline: "orders", Table: "app.orders", Archive: "outbox_archive"})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	err = b.Check(t.Context())
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), `may not use schema app: GRANT USAGE ON SCHEMA app TO "relay_`) {
		t.Error(err)
	}
}

// TestArchive_ReplayAfterRestart: an id that the sequence hands out again is not put back, because the application's INSERT would fail.
func TestArchive_ReplayAfterRestart(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Archive: true})
	f := p.fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	f.Insert(t, event, event, event, event)
	b, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	f.Exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
	replay := func(want buffer.Replayed) {
		t.Helper()
		got, err := f.Buffer.(buffer.Archiver).ReplayArchived(t.Context(), buffer.ArchiveFilter{BatchSize: 10}, false, nil)
		check(t, err)
		if got.Until = (time.Time{}); got != want {
			t.Errorf("replayed %+v, want %+v", got, want)
		}
	}
	replay(buffer.Replayed{Ahead: 4})
	f.Insert(t, event)
	replay(buffer.Replayed{Waiting: 1, Ahead: 3})
	f.Insert(t, event)
	f.Exec(t, "SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 10)")
	replay(buffer.Replayed{Waiting: 2, Events: 2})
	f.Insert(t, event)
}
