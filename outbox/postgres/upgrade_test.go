package postgres_test

import (
	_ "embed"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// earlierSchema is schema.sql of revision 8d2c99d9, the earliest version that an upgrade is tested from.
//
//go:embed testdata/schema-2026-11-27.sql
var earlierSchema string

// columnsAndIndexesSQL describes all columns and indexes of the relay's tables, in any order of the columns.
const columnsAndIndexesSQL = `
SELECT format('%s.%s %s%s %s', table_name, column_name, udt_name, CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END, column_default)
FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE '%\_migrations'
UNION ALL
SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename NOT LIKE '%\_migrations' ORDER BY 1`

// Migrate gives tables of an earlier version the columns and indexes that they lack, and keeps their rows. A relay waits for it, and then
// delivers what the earlier version left.
func TestMigrate_TablesOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	fresh := newMigratedDB(t, buffertest.Options{})
	want := query(t, fresh.pool, columnsAndIndexesSQL, pgx.RowTo[string])
	const recorded = `CREATE TABLE outbox_events_migrations (id serial PRIMARY KEY, version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now());
		INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (0, true), (1, true);`
	for name, c := range map[string]struct {
		more    string
		applied []string // some of it
	}{
		"Migrated": {recorded, []string{"outbox_batches.history", "outbox_dead_letters.history", "outbox_relays.answers"}},
		"BySchema": {"", []string{"outbox_batches.history", "outbox_sinks.match_at"}},
		// What came in several versions.
		"Older": {
			recorded + `ALTER TABLE outbox_events DROP available_at; ALTER TABLE outbox_batches DROP seq, DROP claim_id, DROP newest_at;
				ALTER TABLE outbox_sinks DROP routed; ALTER TABLE outbox_dead_letters DROP closed_reason; ALTER TABLE outbox_buffers DROP pipeline`,
			[]string{"outbox_events.available_at", "index outbox_events_delayed", "index outbox_batches_seq", "outbox_sinks.routed", "outbox_buffers.pipeline"},
		},
		"Pooler":    {recorded + `ALTER TABLE outbox_events DROP available_at`, []string{"outbox_events.available_at", "index outbox_events_delayed"}},
		"LostTable": {recorded + "DROP TABLE outbox_relays; ALTER TABLE outbox_batches DROP seq", []string{"outbox_batches.seq"}},
		"InterruptedIndex": {
			recorded + `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_events_delayed'::regclass`,
			[]string{"index outbox_events_delayed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
			exec := func(sql string) {
				t.Helper()
				_, err := p.pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
				check(t, err)
			}
			exec(earlierSchema)
			exec(`INSERT INTO outbox_sinks (buffer, sink, batch_size) VALUES ('other.events', 'a', 10);
				INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2');
				INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, members)
				VALUES (gen_random_uuid(), 'public.outbox_events', 'range', 'waiting', 1, clock_timestamp(), 'host/1/orders', 1, 2, 0, 1, 1, 1, clock_timestamp(), '{[1,2)}')`)
			exec(c.more)
			b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders"})
			check(t, err)
			defer func() { check(t, b.Close()) }()
			if _, err := b.Claim(t.Context(), 10, lease); !errors.Is(err, buffer.ErrNotReady) {
				t.Fatalf("claim: got %v", err)
			}

			url := p.url
			if name == "Pooler" {
				url = testserver.PgBouncer(t, url)
			}
			applied, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{})
			check(t, err)
			for _, what := range c.applied {
				if !slices.Contains(applied, what) {
					t.Errorf("%q is not in %q", what, applied)
				}
			}
			if diff := cmp.Diff(want, query(t, p.pool, columnsAndIndexesSQL, pgx.RowTo[string])); diff != "" {
				t.Errorf("tables (-made by this version +upgraded):\n%s", diff)
			}
			if applied, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{}); err != nil || len(applied) > 0 {
				t.Errorf("again: applied %q, %v", applied, err)
			}
			routed := query(t, p.pool, "SELECT routed::text FROM outbox_sinks", pgx.RowTo[string])
			if name == "Older" && !slices.Equal(routed, []string{"{[0,)}"}) { // it got everything
				t.Errorf("the sink is recorded with %q", routed)
			}

			check(t, b.Check(t.Context()))
			taken, err := testkit.TakeOver(t.Context(), b, lease)
			check(t, err)
			fresh, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			expectIDs(t, "taken over", taken.IDs(), []int64{1})
			expectIDs(t, "claimed", fresh.IDs(), []int64{2})
		})
	}
}

// Migrate changes no table of the application: one that has the first columns of the relay's own is its only if a relay made it.
func TestMigrate_AddsNothingToForeignTables(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), `CREATE TABLE outbox_events (id bigint PRIMARY KEY, topic text, key text, payload json, headers json, created_at timestamptz, group_id uuid);
		CREATE TABLE outbox_relays (id bigint PRIMARY KEY)`, pgx.QueryExecModeSimpleProtocol)
	check(t, err)
	before := query(t, p.pool, columnsAndIndexesSQL, pgx.RowTo[string])
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	for _, says := range []string{"table public.outbox_events has no column available_at, and migrate does not add it", "outbox_relays has no column buffer"} {
		if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), says) {
			t.Errorf("expected %q in: %v", says, err)
		}
	}
	if diff := cmp.Diff(before, query(t, p.pool, columnsAndIndexesSQL, pgx.RowTo[string])); diff != "" {
		t.Errorf("tables changed (-before +after):\n%s", diff)
	}
}

// An archive of an earlier version gets the column that it lacks; a table that is no archive stays as it is, and Check says what it lacks.
func TestMigrate_ArchiveOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	for damage, want := range map[string][]string{
		"DROP routes_no":                        {"outbox_archive.routes_no"},
		"DROP routes_no, DROP group_id CASCADE": nil,
	} {
		p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
		c := postgres.SchemaConfig{Archive: "outbox_archive"}
		_, err := postgres.Migrate(t.Context(), p.url, c)
		check(t, err)
		_, err = p.pool.Exec(t.Context(), "ALTER TABLE outbox_archive "+damage)
		check(t, err)
		applied, err := postgres.Migrate(t.Context(), p.url, c)
		check(t, err)
		if diff := cmp.Diff(want, applied); diff != "" {
			t.Errorf("%s: applied (-want +got):\n%s", damage, diff)
		}
	}
}
