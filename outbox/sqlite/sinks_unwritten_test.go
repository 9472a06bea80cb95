package sqlite_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

const (
	unroutedState = "SELECT concat_ws(' ', sink, state, events, unfinished_leases, due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) FROM outbox_batches"
	makeAllDue    = "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
)

func expectState(t *testing.T, p *testDB, want string) {
	t.Helper()
	if got := strings.Join(texts(t, p, unroutedState), ", "); got != want {
		t.Fatalf("the ledger has %q, want %q", got, want)
	}
}

// claimAndDrop leaves a claimed batch of three events unrouted, and drops all sinks.
func claimAndDrop(t *testing.T, p *testDB, b *sqlite.Buffer) {
	t.Helper()
	testkit.NoError(t, b.RegisterSinks(t.Context()))
	insertTopics(t, p, "a.1", "a.2", "a.3")
	_, err := b.Claim(t.Context(), 10, lease) // and ends before it is routed
	testkit.NoError(t, err)
	for _, r := range dropSinks {
		testkit.NoError(t, b.DropSink(t.Context(), r.Sink, buffer.DroppedDiscarded))
	}
}

// TestDropSink_AllUnrouted: with all sinks dropped a batch that was claimed waits, however often it is tried, and no try counts as a death of its
// owner. It is routed as soon as a sink is restored.
func TestDropSink_AllUnrouted(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, dropSinks...)
		claimAndDrop(t, p, b)
		for range 12 {
			exec(t, p.db, makeAllDue)
			if _, err := b.RouteDue(t.Context(), lease); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "relay sinks restore") {
				t.Fatalf("with all sinks dropped: %v", err)
			}
			expectState(t, p, "* waiting 3 1 1")
		}
		testkit.NoError(t, b.RestoreSink(t.Context(), "all"))
		routed, err := b.RouteDue(t.Context(), lease)
		testkit.NoError(t, err)
		if routed == nil || fmt.Sprint(routed.Sinks) != "[all]" {
			t.Fatalf("routed %+v", routed)
		}
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.1", "a.2", "a.3"))
		expectEmpty(t, p)
		if n := countRows(t, p, "outbox_dead_letters"); n != 0 {
			t.Errorf("%d events were buried", n)
		}
	})
}

// TestSeveralToSingle_Unfinished: what relays did not finish of a batch that was never sent does not count against its events at the single sink.
func TestSeveralToSingle_Unfinished(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		claimAndDrop(t, p, openSinks(t, p, "several", mode, dropSinks...))
		exec(t, p.db, "UPDATE outbox_batches SET unfinished_leases = 8, outages = 20, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")
		single := openSingle(t, p, "single", mode)
		_, err := single.Claim(t.Context(), 10, lease)
		testkit.NoError(t, err)
		batch := takeOverOf(t, single, "a.1", "a.2", "a.3")
		if batch.UnfinishedLeases != 1 || batch.Outages != 0 {
			t.Errorf("%d unfinished leases and %d outages of a batch that was never sent", batch.UnfinishedLeases, batch.Outages)
		}
		deliverAll(t, single, batch)
		expectEmpty(t, p)
	})
}

// TestRoute_Unwritten: while a route cannot be written its batch waits, and no try counts as a death of its owner.
func TestRoute_Unwritten(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, dropSinks...)
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		insertTopics(t, p, "a.1", "a.2")
		exec(t, p.db, `CREATE TRIGGER refuse BEFORE INSERT ON outbox_batches WHEN NEW.sink = 'crm' BEGIN SELECT RAISE(ABORT, 'not now'); END`)
		if _, err := b.Route(t.Context(), 10, lease, keepNone); err == nil || !strings.Contains(err.Error(), "not now") {
			t.Fatalf("routed: %v", err)
		}
		expectState(t, p, "* waiting 2 0 1")
		for range 12 {
			exec(t, p.db, makeAllDue)
			if _, err := b.RouteDue(t.Context(), lease); err == nil || !strings.Contains(err.Error(), "not now") {
				t.Fatalf("routed: %v", err)
			}
			expectState(t, p, "* waiting 2 0 1")
		}
		exec(t, p.db, "DROP TRIGGER refuse")
		exec(t, p.db, makeAllDue)
		_, err := b.RouteDue(t.Context(), lease)
		testkit.NoError(t, err)
		for _, r := range dropSinks {
			deliverAll(t, b.Sink(r.Sink), takeOverOf(t, b.Sink(r.Sink), "a.1", "a.2"))
		}
		expectEmpty(t, p)
	})
}

// TestRoute_BadValue: a route that fails for a value of one event is tried without it: its neighbours are routed. The event is a dead letter of no sink
// once another one was routed since it first failed alone.
func TestRoute_BadValue(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, dropSinks...)
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		for _, on := range []string{"INSERT", "UPDATE"} {
			exec(t, p.db, `
				CREATE TRIGGER refuse_`+on+` BEFORE `+on+` ON outbox_batches WHEN NEW.sink <> '*' AND EXISTS (
				  SELECT 1 FROM json_each(NEW.members) WHERE 3 BETWEEN json_extract(value, '$[0]') AND json_extract(value, '$[1]'))
				BEGIN SELECT zeroblob(2000000000); END`)
		}
		insertTopics(t, p, "1", "2", "3", "4", "5")
		if _, err := b.Route(t.Context(), 10, lease, keepNone); err == nil {
			t.Fatal("routed")
		}
		due := func() {
			for range 10 {
				exec(t, p.db, makeAllDue)
				_, _ = b.RouteDue(t.Context(), lease) // its error is that of the bad one
			}
		}
		const sent = "SELECT coalesce(sum(events) FILTER (WHERE sink = 'crm'), 0) || ' ' || count(*) FILTER (WHERE sink = '*') FROM outbox_batches"
		due()
		if got := strings.Join(texts(t, p, sent), ""); got != "4 1" {
			t.Fatalf("%s events were routed and wait; want 4 1", got)
		}
		insertTopics(t, p, "6")
		_, err := b.Route(t.Context(), 10, lease, keepNone)
		testkit.NoError(t, err)
		due()
		if got := strings.Join(texts(t, p, sent), ""); got != "5 0" {
			t.Fatalf("%s events were routed and wait; want 5 0", got)
		}
		if dead := texts(t, p, "SELECT sink || ' ' || topic || ' ' || (error <> '') FROM outbox_dead_letters"); fmt.Sprint(dead) != "[* 3 1]" {
			t.Errorf("the dead letters are %v", dead)
		}
	})
}
