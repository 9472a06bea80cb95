package sqlite_test

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRoute_Joins: what a sink that is behind gets is added to the row that waits for it, until a process leases that.
func TestRoute_Joins(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	route := func(all string, topics ...string) {
		t.Helper()
		insertTopics(t, p, topics...)
		routed, err := b.Route(t.Context(), 100, lease, func(sink string) bool { return sink == "all" })
		testkit.NoError(t, err)
		if len(routed.Leases) != 1 || fmt.Sprint(routed.Sinks) != all {
			t.Fatalf("leased %+v, and new rows for %v; want one of all, and %s", routed.Leases, routed.Sinks, all)
		}
		deliverAll(t, b.Sink("all"), routed.Leases[0].Lease)
	}
	crm, odd := b.Sink("crm"), b.Sink("odd")
	route("[crm odd]", "contact.new")
	route("[]", "contact.new", "order.new")
	route("[]", "contact.old")
	route("[crm]", "contact.new", "order.odd") // crm has its batch size, and odd is added to
	if n := countRows(t, p, "outbox_events"); n != 5 {
		t.Fatalf("%d events are left, want those of crm and odd: 5", n)
	}
	batch := takeOverOf(t, odd, "contact.new", "contact.new", "contact.new", "order.odd")
	route("[odd]", "contact.new") // nothing is added to a leased row
	deliverAll(t, odd, batch)
	if n := countRows(t, p, "outbox_events"); n != 5 {
		t.Fatalf("%d events are left, want those of crm: 5", n)
	}
	deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.new", "contact.old"))
	deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.new"))
	deliverAll(t, odd, takeOverOf(t, odd, "contact.new"))
	for _, table := range []string{"outbox_events", "outbox_batches"} {
		if n := countRows(t, p, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

// TestRoute_JoinsNone: under a stamp, and behind rows of a claim that is not shared, each route writes rows of its own.
func TestRoute_JoinsNone(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, buffer.Route{Sink: "one", Match: []string{"a"}, BatchSize: 100}, buffer.Route{Sink: "two", Match: []string{"a", "b"}, BatchSize: 100})
		for _, topics := range [][]string{{"b"}, {"a"}, {"a"}} {
			insertTopics(t, p, topics...)
			_, err := b.Route(t.Context(), 100, lease, keepNone)
			testkit.NoError(t, err)
		}
		two := b.Sink("two")
		want := [][]string{{"b"}, {"a"}, {"a"}}
		if mode == buffer.ClaimRange {
			want = [][]string{{"b"}, {"a", "a"}}
		}
		for _, topics := range want {
			deliverAll(t, two, takeOverOf(t, two, topics...))
		}
		takeOverOf(t, two)
		if n := countRows(t, p, "outbox_events"); n != 2 {
			t.Errorf("%d events are left, want those of one: 2", n)
		}
	})
}

// TestRoute_JoinsRenamed: a row that waited for a sink of this name belongs to a renamed one now.
func TestRoute_JoinsRenamed(t *testing.T) {
	t.Parallel()
	p := newSinksDB(t, buffer.ClaimRange)
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	for range 2 {
		insertTopics(t, p, "contact.old")
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		testkit.NoError(t, err)
		exec(t, p.db, "UPDATE outbox_batches SET sink = 'sales' WHERE sink = 'crm' AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE sink = 'sales')")
	}
	takeOverOf(t, b.Sink("crm"), "contact.old")
	takeOverOf(t, b.Sink("sales"), "contact.old")
}
