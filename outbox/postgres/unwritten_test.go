package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func execDB(t *testing.T, p *testDB, statement string) {
	t.Helper()
	_, err := p.pool.Exec(t.Context(), statement)
	check(t, err)
}

const (
	unroutedState = "SELECT coalesce(string_agg(concat_ws(' ', sink, state, events, unfinished_leases, due_at > clock_timestamp()), ', '), '') FROM outbox_batches"
	makeAllDue    = "UPDATE outbox_batches SET due_at = clock_timestamp()"
)

func expectState(t *testing.T, p *testDB, want string) {
	t.Helper()
	if got := query(t, p.pool, unroutedState, pgx.RowTo[string])[0]; got != want {
		t.Fatalf("the ledger has %q, want %q", got, want)
	}
}

// claimAndDrop leaves a claimed batch of three events unrouted, and drops all sinks.
func claimAndDrop(t *testing.T, p *testDB, b *postgres.Buffer) {
	t.Helper()
	check(t, b.RegisterSinks(t.Context()))
	insertTopics(t, p, "a.1", "a.2", "a.3")
	_, err := b.Claim(t.Context(), 10, lease) // and ends before it is routed
	check(t, err)
	for _, r := range dropSinks {
		check(t, b.DropSink(t.Context(), r.Sink, buffer.DroppedDiscarded))
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
			execDB(t, p, makeAllDue)
			if _, err := b.RouteDue(t.Context(), lease); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "relay sinks restore") {
				t.Fatalf("with all sinks dropped: %v", err)
			}
			expectState(t, p, "* waiting 3 1 t")
		}
		check(t, b.RestoreSink(t.Context(), "all"))
		routed, err := b.RouteDue(t.Context(), lease)
		check(t, err)
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
		execDB(t, p, "UPDATE outbox_batches SET unfinished_leases = 8, outages = 20, due_at = clock_timestamp()")
		single := openSingle(t, p, "single", mode)
		_, err := single.Claim(t.Context(), 10, lease)
		check(t, err)
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
		check(t, b.RegisterSinks(t.Context()))
		insertTopics(t, p, "a.1", "a.2")
		execDB(t, p, `
			CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
			CREATE TRIGGER refuse BEFORE INSERT ON outbox_batches FOR EACH ROW WHEN (NEW.sink = 'crm') EXECUTE FUNCTION refuse()`)
		if _, err := b.Route(t.Context(), 10, lease, keepNone); err == nil || !strings.Contains(err.Error(), "not now") {
			t.Fatalf("routed: %v", err)
		}
		expectState(t, p, "* waiting 2 0 t")
		for range 12 {
			execDB(t, p, makeAllDue)
			if _, err := b.RouteDue(t.Context(), lease); err == nil || !strings.Contains(err.Error(), "not now") {
				t.Fatalf("routed: %v", err)
			}
			expectState(t, p, "* waiting 2 0 t")
		}
		execDB(t, p, "DROP TRIGGER refuse ON outbox_batches")
		execDB(t, p, makeAllDue)
		_, err := b.RouteDue(t.Context(), lease)
		check(t, err)
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
		check(t, b.RegisterSinks(t.Context()))
		execDB(t, p, `
			CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'bad value' USING ERRCODE = '22023'; END $$;
			CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON outbox_batches FOR EACH ROW WHEN (NEW.sink <> '*' AND NEW.members @> 3::bigint) EXECUTE FUNCTION refuse()`)
		insertTopics(t, p, "1", "2", "3", "4", "5")
		if _, err := b.Route(t.Context(), 10, lease, keepNone); err == nil {
			t.Fatal("routed")
		}
		due := func() {
			for range 10 {
				execDB(t, p, makeAllDue)
				_, _ = b.RouteDue(t.Context(), lease) // its error is that of the bad one
			}
		}
		const sent = "SELECT coalesce(sum(events) FILTER (WHERE sink = 'crm'), 0) || ' ' || count(*) FILTER (WHERE sink = '*') FROM outbox_batches"
		due()
		if got := query(t, p.pool, sent, pgx.RowTo[string])[0]; got != "4 1" {
			t.Fatalf("%s events were routed and wait; want 4 1", got)
		}
		insertTopics(t, p, "6")
		_, err := b.Route(t.Context(), 10, lease, keepNone)
		check(t, err)
		due()
		if got := query(t, p.pool, sent, pgx.RowTo[string])[0]; got != "5 0" {
			t.Fatalf("%s events were routed and wait; want 5 0", got)
		}
		if dead := query(t, p.pool, "SELECT sink || ' ' || topic || ' ' || (error <> '') FROM outbox_dead_letters", pgx.RowTo[string]); fmt.Sprint(dead) != "[* 3 true]" {
			t.Errorf("the dead letters are %v", dead)
		}
	})
}
