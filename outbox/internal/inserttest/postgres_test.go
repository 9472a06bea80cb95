package inserttest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// open connects to a database and opens the buffer of a table in it.
func open(t *testing.T, url, table string) (*pgxpool.Pool, *postgres.Buffer) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	testkit.NoError(t, err)
	t.Cleanup(pool.Close)
	b, err := postgres.Open(postgres.Config{URL: url, Table: table, Pipeline: "p", Owner: t.Name()})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return pool, b
}

const lease = time.Minute

func someEvents() []outbox.Event {
	return []outbox.Event{
		{Topic: "orders.created", Payload: []byte(`{"id": 1}`)},
		{Topic: "orders.created", Key: new("customer-7"), Payload: []byte(`{"id": 2}`), Headers: outbox.NewHeaders(map[string]string{"trace": "é\"1"})},
		{Topic: "orders.created", Key: new(""), Payload: []byte(`null`), Headers: outbox.NewHeaders(map[string]string{})},
	}
}

// Delayed events are inserted with others, and not claimed before their time, whatever the zones of application and session.
func TestPostgres_Delayed(t *testing.T) {
	t.Parallel()
	pool, buffer := open(t, testdb.Postgres(t, postgres.SchemaConfig{}), "")
	ctx := t.Context()
	at := time.Now().Add(36 * time.Hour).In(time.FixedZone("", 5*3600)).Truncate(time.Microsecond)
	events := someEvents()
	events[0].AvailableAt, events[2].AvailableAt = at, time.Now().Add(-time.Hour)
	for _, insert := range []func() error{
		func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "SET LOCAL TimeZone = 'America/New_York'"); err != nil {
					return err
				}
				return pgoutbox.Insert(ctx, tx, events...)
			})
		},
		func() error {
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			return errors.Join(pgoutbox.InsertSQL(ctx, tx, events...), tx.Commit())
		},
	} {
		testkit.NoError(t, insert())
		b, err := buffer.Claim(ctx, 100, lease)
		testkit.NoError(t, err)
		if b == nil || b.Len() != 2 || string(b.Events[0].Payload) != `{"id": 2}` || string(b.Events[1].Payload) != "null" {
			t.Fatalf("claimed %+v, want the second and the third event", b)
		}
		s, err := buffer.Status(ctx)
		testkit.NoError(t, err)
		if wait := time.Until(at); s.NextDelayed < wait-time.Minute || s.NextDelayed > wait+time.Minute {
			t.Errorf("the next is available in %v, want %v", s.NextDelayed, wait)
		}
	}
}

// A claim returns each event as the application inserted it, through pgx and through
// database/sql.
func TestPostgres(t *testing.T) {
	t.Parallel()
	pool, buffer := open(t, testdb.Postgres(t, postgres.SchemaConfig{}), "")
	ctx := t.Context()

	tx, err := pool.Begin(ctx)
	testkit.NoError(t, err)
	testkit.NoError(t, pgoutbox.Insert(ctx, tx, someEvents()...))
	testkit.NoError(t, tx.Commit(ctx))

	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	sqlTx, err := db.BeginTx(ctx, nil)
	testkit.NoError(t, err)
	testkit.NoError(t, pgoutbox.InsertSQL(ctx, sqlTx, someEvents()...))
	testkit.NoError(t, sqlTx.Commit())

	rolledBack, err := pool.Begin(ctx)
	testkit.NoError(t, err)
	testkit.NoError(t, pgoutbox.Insert(ctx, rolledBack, someEvents()...))
	testkit.NoError(t, rolledBack.Rollback(ctx))

	b, err := buffer.Claim(ctx, 100, lease)
	testkit.NoError(t, err)
	want := append(someEvents(), someEvents()...)
	if len(b.Events) != len(want) {
		t.Fatalf("%d events arrived, want %d", len(b.Events), len(want))
	}
	for i := range want {
		got := b.Events[i]
		if diff := cmp.Diff([]any{want[i].Topic, want[i].Key, string(want[i].Payload)}, []any{got.Topic, got.Key, string(got.Payload)}); diff != "" {
			t.Errorf("event %d (-want +got):\n%s", i, diff)
		}
		gotHeaders, err := got.Headers.Map()
		testkit.NoError(t, err)
		wantHeaders, err := want[i].Headers.Map()
		testkit.NoError(t, err)
		if diff := cmp.Diff(wantHeaders, gotHeaders); diff != "" {
			t.Errorf("headers of event %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestPostgres_Many is more than one statement takes.
func TestPostgres_Many(t *testing.T) {
	t.Parallel()
	const table = `"odd ""schema".Billing`
	url := testserver.Postgres(t)
	owner, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	_, err = owner.Exec(t.Context(), `CREATE SCHEMA "odd ""schema"`)
	testkit.NoError(t, errors.Join(err, owner.Close(t.Context())))
	_, err = postgres.Migrate(t.Context(), url, postgres.SchemaConfig{Table: table, Payload: postgres.PayloadBytes})
	testkit.NoError(t, err)
	pool, buffer := open(t, url, table)
	events := make([]outbox.Event, 20_001)
	for i := range events {
		events[i] = outbox.Event{Topic: "t", Payload: []byte{0, 255, byte(i)}}
	}
	testkit.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return pgoutbox.Table{Name: table, Bytes: true}.Insert(t.Context(), tx, events...)
	}))
	testkit.Equal(t, "rows", rows(t, pool, `"odd ""schema"."Billing"`), len(events))
	b, err := buffer.Claim(t.Context(), 2, lease)
	testkit.NoError(t, err)
	if string(b.Events[1].Payload) != "\x00\xff\x01" || b.PayloadIsJSON {
		t.Fatalf("payload %q, JSON %v", b.Events[1].Payload, b.PayloadIsJSON)
	}
}

// TestPostgres_Invalid: a bad event is named, and nothing of the call is inserted.
func TestPostgres_Invalid(t *testing.T) {
	t.Parallel()
	pool, _ := open(t, testdb.Postgres(t, postgres.SchemaConfig{}), "")
	good := outbox.Event{Topic: "t", Payload: []byte("{}")}
	for name, bad := range map[string]outbox.Event{
		"topic is empty":               {Payload: []byte("{}")},
		"payload is not JSON":          {Topic: "t", Payload: []byte("{")},
		"payload is empty":             {Topic: "t"},
		"headers are not a JSON":       {Topic: "t", Payload: []byte("{}"), Headers: outbox.Headers(`["a"]`)},
		"key contains a NUL byte":      {Topic: "t", Payload: []byte("{}"), Key: new("a\x00b")},
		"topic is not valid UTF-8":     {Topic: "\xff", Payload: []byte("{}")},
		"topic is 1025 bytes long":     {Topic: strings.Repeat("x", 1025), Payload: []byte("{}")},
		"after top-level value":        {Topic: "t", Payload: []byte("{} {}")},
		"headers are 65542 bytes long": {Topic: "t", Payload: []byte("{}"), Headers: outbox.NewHeaders(map[string]string{"a": strings.Repeat("x", 65534)})},
	} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return pgoutbox.Insert(t.Context(), tx, good, bad)
		})
		if !errors.Is(err, outbox.ErrInvalidEvent) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "event 2 of 2") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	testkit.Equal(t, "rows", rows(t, pool, "outbox_events"), 0)
}

// TestPostgres_MissingTable names the command that fixes it.
func TestPostgres_MissingTable(t *testing.T) {
	t.Parallel()
	pool, _ := open(t, testserver.Postgres(t), "")
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return pgoutbox.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("{}")})
	})
	if err == nil || !strings.Contains(err.Error(), "relay migrate") {
		t.Errorf("got %v", err)
	}
}

func rows(t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	testkit.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}
