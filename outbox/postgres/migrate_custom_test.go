package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// shapeSQL lists the parts of the application's tables that a migration could change.
const shapeSQL = `
SELECT format('%s.%s %s %s', table_name, column_name, data_type, column_default) AS line
FROM information_schema.columns WHERE table_schema = 'app'
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'app'
UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace = 'app'::regnamespace AND NOT tgisinternal
UNION ALL SELECT relname || coalesce(array_to_string(reloptions, ','), '') FROM pg_class WHERE relnamespace = 'app'::regnamespace
ORDER BY line`

// A role that does not own the custom table makes the relay's tables, and makes lost ones again. The custom table stays
// as it is.
func TestMigrate_CustomTable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config  postgres.SchemaConfig
		schema  string
		applied []string
	}{
		"in a schema of its own": {
			postgres.SchemaConfig{Table: `app."Activity Events"`, Schema: "the relay's", Custom: true},
			"the relay's",
			[]string{"schema the relay's"},
		},
		"in the table's schema":    {postgres.SchemaConfig{Table: `"app"."Activity Events"`, Custom: true}, "app", nil},
		"found by the search path": {postgres.SchemaConfig{Table: `"Activity Events"`, Custom: true}, "app", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
			exec := func(statement string) {
				t.Helper()
				_, err := p.pool.Exec(t.Context(), statement)
				check(t, err)
			}
			exec("CREATE SCHEMA app")
			exec(`CREATE TABLE app."Activity Events" (id bigint PRIMARY KEY, group_id uuid)`)
			migrator := p.asRole(t, "migrator_", "GRANT USAGE, CREATE ON SCHEMA app, public", `GRANT CREATE ON DATABASE "`+p.pool.Config().ConnConfig.Database+`"`) +
				"?search_path=public,app"
			shape := func() []string { return query(t, p.pool, shapeSQL, pgx.RowTo[string]) }
			before := shape()
			applied, err := postgres.Migrate(t.Context(), migrator, c.config)
			check(t, err)
			want := append(c.applied, "0001_outbox.sql")
			if diff := cmp.Diff(want, applied); diff != "" {
				t.Errorf("applied (-want +got):\n%s", diff)
			}
			tables := func() []string {
				return query(t, p.pool, "SELECT relname::text FROM pg_class WHERE relnamespace = '"+pgx.Identifier{strings.ReplaceAll(c.schema, "'", "''")}.Sanitize()+
					"'::regnamespace AND relkind IN ('r', 'S') AND relname LIKE 'outbox\\_%' AND relname NOT LIKE '%id\\_seq' ORDER BY 1", pgx.RowTo[string])
			}
			relayTables := []string{"outbox_batches", "outbox_buffers", "outbox_dead_letters", "outbox_numbers", "outbox_rates", "outbox_relays", "outbox_sinks"}
			if diff := cmp.Diff(relayTables, tables()); diff != "" {
				t.Errorf("tables (-want +got):\n%s", diff)
			}
			if c.schema != "app" {
				if diff := cmp.Diff(before, shape()); diff != "" {
					t.Errorf("the application's schema (-before +after):\n%s", diff)
				}
			}
			for _, again := range []struct{ lost, kind string }{{"outbox_rates", "TABLE"}, {"outbox_numbers", "SEQUENCE"}, {"outbox_batches", "TABLE"}, {"", ""}} {
				if again.lost != "" {
					exec("DROP " + again.kind + " " + pgx.Identifier{c.schema, again.lost}.Sanitize())
				}
				applied, err = postgres.Migrate(t.Context(), migrator, c.config)
				check(t, err)
				if diff := cmp.Diff(relayTables, tables()); diff != "" || len(applied) > 0 {
					t.Errorf("again, without %s: applied %v, tables (-want +got):\n%s", again.lost, applied, diff)
				}
			}
			triggers := query(t, p.pool, "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal", pgx.RowTo[int])[0]
			events := query(t, p.pool, "SELECT to_regclass('outbox_events') IS NOT NULL OR to_regclass('app.outbox_events') IS NOT NULL", pgx.RowTo[bool])[0]
			if triggers != 0 || events {
				t.Errorf("%d triggers were made, and a buffer table: %v", triggers, events)
			}
		})
	}
}

// A role that may not make the schema gets the statement for an administrator.
func TestMigrate_CustomTableNeedsSchema(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), "CREATE TABLE activity_events (id bigint PRIMARY KEY, group_id uuid)")
	check(t, err)
	poor := p.asRole(t, "poor_")
	config := postgres.SchemaConfig{Table: "activity_events", Schema: "the relay", Custom: true}
	_, err = postgres.Migrate(t.Context(), poor, config)
	const says = `CREATE SCHEMA "the relay" AUTHORIZATION "poor_`
	if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), says) {
		t.Fatalf("expected %q in: %v", says, err)
	}
	_, statement, _ := strings.Cut(err.Error(), "CREATE SCHEMA ")
	statement, _, _ = strings.Cut(statement, ": ")
	_, err = p.pool.Exec(t.Context(), "CREATE SCHEMA "+statement)
	check(t, err)
	applied, err := postgres.Migrate(t.Context(), poor, config)
	check(t, err)
	if len(applied) != 1 {
		t.Errorf("applied %v", applied)
	}
}
