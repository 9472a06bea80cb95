package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// TestProjection_Pooler: behind PgBouncer a projection is not blamed for what another client prepared on the server's connection, and no statement
// around it calls an operator that the search path prefers.
func TestProjection_Pooler(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), `
		CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, group_id uuid);
		INSERT INTO parents (name) SELECT 'a' FROM generate_series(1, 20);
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;
		CREATE SEQUENCE calls;
		CREATE FUNCTION public.planted(text, text) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN PERFORM pg_catalog.nextval('public.calls'); RETURN false; END $f$;
		CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.planted)`)
	check(t, err)
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	through := testserver.PgBouncer(t, p.url)
	b, err := postgres.Open(postgres.Config{URL: through, Table: "parents", Pipeline: "parents", Custom: buffer.CustomTable{ID: "id", Project: "SELECT e.id, 't' AS topic, '{}' AS payload FROM {events} e"}})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.Check(t.Context()))
	other, err := pgx.Connect(t.Context(), through)
	check(t, err)
	_, err = other.Exec(t.Context(), "PREPARE of_another_client(pg_catalog.oid) AS SELECT 1", pgx.QueryExecModeSimpleProtocol)
	check(t, err)
	check(t, other.Close(t.Context()))
	for range 5 {
		_, err := b.Peek(t.Context(), 5)
		check(t, err)
		l, err := b.Claim(t.Context(), 2, lease)
		check(t, err)
		if l == nil || l.ProjectErr != nil || len(l.Events) != 2 {
			t.Fatalf("claimed %+v", l)
		}
	}
	check(t, b.Check(t.Context()))
	if called := query(t, p.pool, "SELECT is_called FROM public.calls", pgx.RowTo[bool]); called[0] {
		t.Error("an operator of the search path was called")
	}
}
