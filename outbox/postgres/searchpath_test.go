package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// plantedSQL makes functions and operators in public that fail when they are called. An argument type that
// matches exactly wins over a polymorphic function of pg_catalog, wherever public is in the search path.
const plantedSQL = `
CREATE FUNCTION planted() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN RAISE 'planted function called'; END $$;
CREATE FUNCTION unnest(int8multirange) RETURNS SETOF int8range LANGUAGE sql VOLATILE AS 'SELECT NULL::int8range WHERE public.planted()';
CREATE FUNCTION unnest(integer[]) RETURNS SETOF integer LANGUAGE sql VOLATILE AS 'SELECT NULL::integer WHERE public.planted()';
CREATE FUNCTION unnest(bigint[]) RETURNS SETOF bigint LANGUAGE sql VOLATILE AS 'SELECT NULL::bigint WHERE public.planted()';
CREATE FUNCTION unnest(text[]) RETURNS SETOF text LANGUAGE sql VOLATILE AS 'SELECT NULL::text WHERE public.planted()';
CREATE FUNCTION sfunc(int8multirange, int8range) RETURNS int8multirange LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE AGGREGATE range_agg(int8range) (SFUNC = sfunc, STYPE = int8multirange);
CREATE FUNCTION sfunc(bigint[], bigint) RETURNS bigint[] LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE AGGREGATE array_agg(bigint) (SFUNC = sfunc, STYPE = bigint[]);
CREATE FUNCTION sfunc(text[], text) RETURNS text[] LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE AGGREGATE array_agg(text) (SFUNC = sfunc, STYPE = text[]);
CREATE FUNCTION sfunc(integer[], integer) RETURNS integer[] LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE AGGREGATE array_agg(integer) (SFUNC = sfunc, STYPE = integer[]);
CREATE FUNCTION planted(bigint, int8multirange) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT public.planted()';
CREATE OPERATOR <@ (LEFTARG = bigint, RIGHTARG = int8multirange, FUNCTION = planted);
CREATE FUNCTION planted(int8multirange, int8multirange) RETURNS int8multirange LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE OPERATOR + (LEFTARG = int8multirange, RIGHTARG = int8multirange, FUNCTION = planted);
CREATE FUNCTION planted(integer[], integer[]) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT public.planted()';
CREATE OPERATOR && (LEFTARG = integer[], RIGHTARG = integer[], FUNCTION = planted);
CREATE FUNCTION cardinality(bigint[]) RETURNS integer LANGUAGE sql VOLATILE AS 'SELECT 1 WHERE public.planted()';
CREATE FUNCTION array_position(uuid[], uuid) RETURNS integer LANGUAGE sql VOLATILE AS 'SELECT 1 WHERE public.planted()';
CREATE FUNCTION concat_ws(text, text, text) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE FUNCTION format(text, name, name) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()'`

// firstSQL puts public before pg_catalog, so that an equal signature wins too.
const firstSQL = `
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT pg_catalog.now() WHERE public.planted()';
CREATE FUNCTION public.set_config(text, text, boolean) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()';
CREATE FUNCTION public.to_regclass(text) RETURNS regclass LANGUAGE sql VOLATILE AS 'SELECT NULL::regclass WHERE public.planted()';
CREATE FUNCTION public.pg_backend_pid() RETURNS integer LANGUAGE sql VOLATILE AS 'SELECT 1 WHERE public.planted()';
CREATE FUNCTION public.pg_sequence_last_value(regclass) RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 1::bigint WHERE public.planted()';
CREATE FUNCTION public.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT $2 WHERE public.planted()';
CREATE FUNCTION public.planted(text, text) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT public.planted()';
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.planted)`

// TestSearchPath: the relay calls no function that another role created in a schema of the search path.
func TestSearchPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opt     buffertest.Options
		custom  *customShape
		planted string
	}{
		"Range":         {opt: buffertest.Options{Claim: buffer.ClaimRange}, planted: plantedSQL},
		"Stamp":         {opt: buffertest.Options{Claim: buffer.ClaimStamp}, planted: plantedSQL},
		"Ordered":       {opt: buffertest.Options{Ordered: true}, planted: plantedSQL},
		"CustomTable":   {custom: integerKeys, planted: plantedSQL},
		"CustomUUID":    {custom: uuidKeys, planted: plantedSQL},
		"CatalogSecond": {opt: buffertest.Options{Claim: buffer.ClaimRange}, planted: plantedSQL + ";" + firstSQL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := "outbox_events"
			var p *testDB
			if c.custom == nil {
				p = newMigratedDB(t, c.opt)
			} else {
				p = newTestDB(t, newMigratedDB(t, c.opt).url, c.opt)
				p.custom, table = c.custom, customName
			}
			prepared := p.fixture(t, table, "orders")
			p.migrated = schemaOfFixture(p, table)
			var events []outbox.Event
			for range 20 {
				events = append(events, outbox.Event{Topic: "t", Key: new("k"), Payload: []byte("{}")})
			}
			prepared.Insert(t, events...)
			if c.custom == nil {
				prepared.Exec(t, "DELETE FROM outbox_events WHERE id IN (3, 7)") // batches with gaps
			}
			prepared.Exec(t, c.planted)
			useEverything(t, p, p.fixture(t, table, "orders"), table)
		})
	}
}

// useEverything calls every method of a buffer.
func useEverything(t *testing.T, p *testDB, f *buffertest.Fixture, table string) {
	ctx, b := t.Context(), f.Buffer
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	do("check", b.Check(ctx))
	claim := func(limit int) *buffer.Lease {
		t.Helper()
		batch, err := b.Claim(ctx, limit, lease)
		do("claim", err)
		if batch == nil {
			t.Fatal("nothing was claimed")
		}
		return batch
	}
	delivered := claim(4)
	do("renew", b.Renew(ctx, delivered, lease))
	do("settle", b.Settle(ctx, delivered, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	refused := claim(4)
	if refused.LastID-refused.FirstID < int64(refused.Len()) && p.custom == nil && !p.opt.Ordered {
		t.Errorf("batch %v has no gap", refused.IDs())
	}
	ids := refused.IDs()
	do("settle a part", b.Settle(ctx, refused, []buffer.Outcome{
		{Verdict: buffer.Dead, IDs: ids[:1], Error: "bad", Attempts: 1},
		{Verdict: buffer.Retry, IDs: ids[1:2], GroupID: buffer.NewGroupID(), Attempts: 1},
		{Verdict: buffer.Delivered, IDs: ids[2:]},
	}))
	_, err := b.CountBacklog(ctx, 100)
	do("count", err)
	taken, err := testkit.TakeOver(ctx, b, lease)
	do("take over", err)
	if taken == nil {
		t.Fatal("nothing was taken over")
	}
	do("mark", b.MarkDelivered(ctx, taken, taken.IDs()))
	do("settle a marked batch", b.Settle(ctx, taken, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	live := claim(4)
	_, err = b.Status(ctx)
	do("status", err)
	_, err = b.Peek(ctx, 10)
	do("peek", err)
	_, err = b.Audit(ctx)
	do("audit", err)
	_, err = b.Repair(ctx)
	do("repair", err)
	_, err = b.DeferredAddresses(ctx)
	do("deferred addresses", err)
	_, err = b.RetryNow(ctx, "", 0)
	do("retry now", err)
	_, err = b.ListDead(ctx, buffer.DeadFilter{Error: "BAD"}, nil, 10)
	do("dead list", err)
	q := f.Queue(t)
	_, err = q.CountBacklog(ctx, 10)
	do("count dead letters", err)
	letters, err := q.Claim(ctx, 10, lease)
	do("claim dead letters", err)
	if letters == nil {
		t.Fatal("no dead letter was claimed")
	}
	do("settle dead letters", q.Settle(ctx, letters, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	replayed, err := b.Replay(ctx, buffer.DeadFilter{}, 10)
	do("replay", err)
	if replayed != 1 {
		t.Errorf("%d replayed, want 1", replayed)
	}
	_, err = b.Discard(ctx, buffer.DeadFilter{}, 10)
	do("discard", err)
	do("settle", b.Settle(ctx, live, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	for _, finding := range b.Diagnose(ctx) {
		if finding.Level == buffer.LevelError || strings.Contains(finding.Text, "planted") {
			t.Errorf("doctor: %+v", finding)
		}
	}
	_, err = postgres.Migrate(ctx, p.url, schemaOfFixture(p, table))
	do("migrate", err)
}

func schemaOfFixture(p *testDB, table string) postgres.SchemaConfig {
	c := schemaOf(p.opt, table)
	c.Custom = p.custom != nil
	return c
}

// TestSearchPath_Projection: a projection finds what the role's own search path finds.
func TestSearchPath_Projection(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, newMigratedDB(t, buffertest.Options{}).url, buffertest.Options{Project: "SELECT e.id, name_of(e.id) AS topic, e.payload FROM {events} e"})
	p.custom = integerKeys
	_, err := p.pool.Exec(t.Context(), `
		CREATE SCHEMA app;
		CREATE FUNCTION app.name_of(bigint) RETURNS text LANGUAGE sql AS $$ SELECT 'event ' || $1 $$;
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, app', current_database()); END $$`)
	check(t, err)
	p.pool.Reset()
	f := p.fixture(t, "events", "orders")
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
	peeked, err := f.Buffer.Peek(t.Context(), 10)
	check(t, err)
	claimed, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	f.ExpireLease(t, claimed.GroupID, lease)
	taken, err := testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	for what, batch := range map[string]*buffer.Lease{"peek": peeked, "claim": claimed, "take-over": taken} {
		if batch == nil || len(batch.Events) != 1 || batch.Events[0].Topic != "event 1" {
			t.Errorf("%s: %+v", what, batch)
		}
	}
}

// TestProjection_Planted: a function of the search path that belongs to the owner of the table is called by the projection, and by no statement of the
// relay. What it sets for the session is gone after the projection.
func TestProjection_Planted(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	_, err := p.pool.Exec(t.Context(), `
		CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, group_id uuid);
		CREATE TABLE called (n int);
		INSERT INTO parents (name) VALUES ('a'), ('b');
		CREATE FUNCTION public.to_jsonb(parents) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
			PERFORM set_config('search_path', 'public, pg_catalog', false), set_config('synchronous_commit', 'off', false);
			SET ROLE pg_monitor;
			RETURN '{}'; END $$;
		CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ INSERT INTO public.called VALUES (3) RETURNING pg_catalog.now() $$`)
	check(t, err)
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	b, err := postgres.Open(postgres.Config{URL: p.url, Table: "parents", Pipeline: "parents", Custom: buffer.CustomTable{
		ID: "id", Project: "SELECT e.id, 't' AS topic, to_jsonb(e) AS payload FROM parents e WHERE e.group_id = $1; -- last",
	}})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.Check(t.Context()))
	for range 2 {
		batch, err := b.Claim(t.Context(), 1, lease)
		check(t, err)
		if batch == nil || batch.ProjectErr != nil || string(batch.Events[0].Payload) != "{}" {
			t.Fatalf("claimed %+v", batch)
		}
		check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	if n := countRows(t, p, "called"); n > 0 {
		t.Errorf("a function of public was called %d times by statements of the relay", n)
	}
}

// TestProjection_SharedOperator: the relay's own text in a projection calls no operator of another role, with a search path that prefers it.
func TestProjection_SharedOperator(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"Integer", "UUID"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			o := newActivitySinks(t, key, "")
			o.exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog, relay', current_database()); END $$`)
			o.pool.Reset()
			o.exec(t, plantedSQL)
			o.exec(t, `
				CREATE FUNCTION public.planted(uuid, uuid) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT public.planted()';
				CREATE OPERATOR public.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = public.planted);
				CREATE FUNCTION public.planted(bigint, bigint) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT public.planted()';
				CREATE OPERATOR public.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.planted);
				CREATE OPERATOR public.<= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.planted);
				CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT $1 WHERE public.planted()'`)
			o.config.Custom.Project = "SELECT e.id, 'x.odd' AS topic, pg_catalog.to_jsonb(e.id) AS payload FROM {events} e"
			o.Buffer = o.open(t, o.config)
			o.exec(t, "INSERT INTO things (activity) SELECT 1 FROM pg_catalog.generate_series(1, 3)")
			_, err := o.CountBacklog(t.Context(), 1)
			check(t, err)
			_, err = o.Route(t.Context(), 10, time.Hour, keepNone)
			check(t, err)
			for _, sink := range []string{"all", "odd"} {
				b, err := o.Sink(sink).TakeOver(t.Context(), time.Hour, buffer.DueRetry)
				check(t, err)
				if b == nil || b.ProjectErr != nil || len(b.Events) != 3 {
					t.Errorf("sink %s has %+v", sink, b)
				}
			}
		})
	}
}

// TestProjection_Prepares: a function that a projection calls prepares statements under the names of the relay's. The connection is given up, and the
// relay's own statements run.
func TestProjection_Prepares(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	exec := func(sql string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql)
		check(t, err)
	}
	exec(`
		CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, group_id uuid);
		CREATE TABLE called (n int);
		INSERT INTO parents (name) SELECT 'x' FROM generate_series(1, 20)`)
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	b, err := postgres.Open(postgres.Config{URL: p.url, Table: "parents", Pipeline: "parents", Custom: buffer.CustomTable{
		Project: "SELECT e.id, 't' AS topic, to_jsonb(e) AS payload FROM parents e WHERE e.group_id = $1", ID: "id",
	}})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	work := func() (projected error) {
		t.Helper()
		batch, err := b.Claim(t.Context(), 1, lease)
		check(t, err)
		check(t, b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		return batch.ProjectErr
	}
	check(t, work())
	exec(`
		CREATE FUNCTION public.to_jsonb(parents) RETURNS jsonb LANGUAGE plpgsql AS $f$
		DECLARE r record; BEGIN
		  FOR r IN SELECT name, array_to_string(parameter_types, ',') AS types FROM pg_prepared_statements WHERE name LIKE 'relay_%' LOOP
		    EXECUTE format('DEALLOCATE %I', r.name);
		    EXECUTE format('PREPARE %I%s AS INSERT INTO public.called VALUES (7)', r.name, CASE WHEN r.types <> '' THEN '(' || r.types || ')' ELSE '' END);
		  END LOOP;
		  RETURN '{}'; END $f$`)
	for range 4 {
		if err := work(); !errors.Is(err, buffer.ErrDatabaseUnavailable) || !strings.Contains(err.Error(), "PREPARE") {
			t.Errorf("the projection: %v", err)
		}
	}
	if n := countRows(t, p, "called"); n > 0 {
		t.Errorf("statements of the function ran %d times in the place of the relay's", n)
	}
}
