package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

const plantedBuffersSQL = `CREATE TABLE public.outbox_buffers (buffer text PRIMARY KEY, claim text NOT NULL, floor bigint NOT NULL DEFAULT 0,
	numbering text NOT NULL DEFAULT '', pipeline text, owned_since timestamptz, swept_at timestamptz)`

// TestMigrate_Planted: migrate refuses what another role made under the name of a table, sequence or function of the
// relay's, and changes nothing.
func TestMigrate_Planted(t *testing.T) {
	t.Parallel()
	const returnsNull = `() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`
	for object, planted := range map[string]string{
		"public.outbox_buffers":           plantedBuffersSQL,
		"public.outbox_events":            "CREATE TABLE public.outbox_events (id bigint)",
		"public.outbox_rates":             "CREATE TABLE public.outbox_rates (name text PRIMARY KEY, next_at timestamptz)",
		"public.outbox_archive":           "CREATE TABLE public.outbox_archive (id bigint)",
		"public.outbox_events_migrations": "CREATE TABLE public.outbox_events_migrations (id bigint)",
		"public.outbox_numbers":           "CREATE SEQUENCE public.outbox_numbers",
		"public.outbox_dead_letters":      "CREATE VIEW public.outbox_dead_letters AS SELECT 1 AS a",
		"public.outbox_notify()":          "CREATE FUNCTION public.outbox_notify" + returnsNull,
		"public.outbox_truncated()":       "CREATE FUNCTION public.outbox_truncated" + returnsNull,
	} {
		t.Run(object, func(t *testing.T) {
			t.Parallel()
			p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
			shop := newTestDB(t, p.asRole(t, "shop_", "GRANT USAGE, CREATE ON SCHEMA public"), buffertest.Options{})
			_, err := shop.pool.Exec(t.Context(), planted)
			check(t, err)
			owner := p.asRole(t, "owner_", "GRANT USAGE, CREATE ON SCHEMA public")
			for who, url := range map[string]string{"superuser": p.url, "owner": owner} {
				_, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{Archive: "outbox_archive", Notify: true})
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), object+" belongs to "+shop.pool.Config().ConnConfig.User) {
					t.Errorf("%s: %v", who, err)
				}
			}
			if n := query(t, p.pool, "SELECT count(*) FROM pg_class WHERE relname = 'outbox_batches'", pgx.RowTo[int64]); n[0] != 0 {
				t.Error("migrate made tables")
			}
		})
	}
}

// TestMigrate_WrongRole: migrate as another role than the one that owns all of the relay's tables says that, once, and no other fix.
func TestMigrate_WrongRole(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	c := postgres.SchemaConfig{Archive: "outbox_archive", Notify: true}
	owner := p.asRole(t, "owner_", "GRANT USAGE, CREATE ON SCHEMA public")
	_, err := postgres.Migrate(t.Context(), owner, c)
	check(t, err)
	_, err = postgres.Migrate(t.Context(), p.asRole(t, "relay_", "GRANT USAGE, CREATE ON SCHEMA public"), c)
	if err == nil {
		t.Fatal("migrate succeeds")
	}
	name := newTestDB(t, owner, buffertest.Options{}).pool.Config().ConnConfig.User
	for _, says := range []string{"the relay's tables belong to " + name, "runs as relay_", "run it as " + name + ", which owns the relay's tables"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("no %q in %v", says, err)
		}
	}
	if says := err.Error(); strings.Contains(says, "drop") || strings.Contains(says, "OWNER TO") || strings.Contains(says, "source.table") {
		t.Error(err)
	}
}

// TestCheck_Planted: a relay does not start on tables that another role made, or that call another role's functions.
func TestCheck_Planted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ lost, planted, then, want string }{ // then: by a superuser
		"Table":    {"DROP TABLE outbox_buffers", plantedBuffersSQL, "", "public.outbox_buffers belongs to "},
		"Function": {"DROP FUNCTION outbox_truncated CASCADE", "CREATE FUNCTION outbox_truncated() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'", "", "outbox_truncated() belongs to "},
		"Trigger": {"SELECT 1", `CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER planted BEFORE INSERT ON outbox_batches FOR EACH ROW EXECUTE FUNCTION own()`, "", "trigger planted on table public.outbox_batches calls function public.own()"},
		"Condition": {
			"SELECT 1", `CREATE FUNCTION own() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
			CREATE TRIGGER planted BEFORE UPDATE ON outbox_batches FOR EACH ROW WHEN (own()) EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
			"", "trigger planted on table public.outbox_batches calls function public.own()",
		},
		"Statistics": { // the planner evaluates them
			"SELECT 1", "CREATE FUNCTION own() RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN ''; END $$",
			"CREATE STATISTICS planted ON (own()) FROM outbox_batches", "statistics object public.planted calls function public.own()",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			_, err := p.pool.Exec(t.Context(), c.lost)
			check(t, err)
			shop := newTestDB(t, p.asRole(t, "shop_", "GRANT USAGE, CREATE ON SCHEMA public", "GRANT TRIGGER ON outbox_batches"), buffertest.Options{})
			_, err = shop.pool.Exec(t.Context(), c.planted)
			check(t, err)
			_, err = p.pool.Exec(t.Context(), c.then)
			check(t, err)
			if strings.Contains(c.planted, "own()") {
				t.Cleanup(func() { // before the role is dropped
					_, err := shop.pool.Exec(context.Background(), "DROP FUNCTION own CASCADE")
					check(t, err)
				})
			}
			if err := checkError(t, p.url, ""); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
