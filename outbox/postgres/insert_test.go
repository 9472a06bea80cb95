package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func someEvents() []outbox.Event {
	return []outbox.Event{
		{Topic: "orders.created", Payload: []byte(`{"id": 1}`)},
		{Topic: "orders.created", Key: new("customer-7"), Payload: []byte(`{"id": 2}`), Headers: outbox.NewHeaders(map[string]string{"trace": "é\"1"})},
		{Topic: "orders.created", Key: new(""), Payload: []byte(`null`), Headers: outbox.NewHeaders(map[string]string{})},
	}
}

// A claim returns each event as the application inserted it, through pgx and through
// database/sql.
func TestInsert(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()

	tx, err := p.pool.Begin(ctx)
	check(t, err)
	check(t, postgres.Insert(ctx, tx, someEvents()...))
	check(t, tx.Commit(ctx))

	db := stdlib.OpenDBFromPool(p.pool)
	defer db.Close()
	sqlTx, err := db.BeginTx(ctx, nil)
	check(t, err)
	check(t, postgres.InsertSQL(ctx, sqlTx, someEvents()...))
	check(t, sqlTx.Commit())

	rolledBack, err := p.pool.Begin(ctx)
	check(t, err)
	check(t, postgres.Insert(ctx, rolledBack, someEvents()...))
	check(t, rolledBack.Rollback(ctx))

	b, err := f.Buffer.Claim(ctx, 100, lease)
	check(t, err)
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
		check(t, err)
		wantHeaders, err := want[i].Headers.Map()
		check(t, err)
		if diff := cmp.Diff(wantHeaders, gotHeaders); diff != "" {
			t.Errorf("headers of event %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestInsert_Many is more than one statement takes.
func TestInsert_Many(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{Bytes: true})
	f := p.fixture(t, "billing", "billing")
	events := make([]outbox.Event, 20_001)
	for i := range events {
		events[i] = outbox.Event{Topic: "t", Payload: []byte{0, 255, byte(i)}}
	}
	check(t, pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
		return postgres.Table{Name: "billing", Bytes: true}.Insert(t.Context(), tx, events...)
	}))
	if n := len(f.Rows(t)); n != len(events) {
		t.Fatalf("%d rows, want %d", n, len(events))
	}
	b, err := f.Buffer.Claim(t.Context(), 2, lease)
	check(t, err)
	if string(b.Events[1].Payload) != "\x00\xff\x01" || b.PayloadIsJSON {
		t.Fatalf("payload %q, JSON %v", b.Events[1].Payload, b.PayloadIsJSON)
	}
}

// TestInsert_Invalid: a bad event is named, and nothing of the call is inserted.
func TestInsert_Invalid(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
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
		err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
			return postgres.Insert(t.Context(), tx, good, bad)
		})
		if !errors.Is(err, outbox.ErrInvalidEvent) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "event 2 of 2") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if rows := f.Rows(t); len(rows) != 0 {
		t.Errorf("%d events were inserted", len(rows))
	}
}

// TestInsert_MissingTable names the command that fixes it.
func TestInsert_MissingTable(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
		return postgres.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("{}")})
	})
	if err == nil || !strings.Contains(err.Error(), "relay migrate") {
		t.Errorf("got %v", err)
	}
}
