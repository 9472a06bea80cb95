package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func openUnmatched(t *testing.T, p *testDB, mode buffer.ClaimMode, unmatched buffer.Unmatched, routes ...buffer.Route) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(p.ofCustom(postgres.Config{URL: p.url, Pipeline: "orders", Owner: string(unmatched), Claim: mode, Sinks: routes, Unmatched: unmatched}))
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

// TestUnmatched_Delete: an event that no sink takes is deleted, without a dead letter.
func TestUnmatched_Delete(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openUnmatched(t, p, mode, buffer.UnmatchedDelete, dropSinks[0])
		insertTopics(t, p, "x", "a.x", "y")
		routeAll(t, b, "[all]")
		if routed, err := b.RouteDue(t.Context(), lease); err != nil || routed == nil || routed.Events != 2 {
			t.Fatalf("deleted %+v, %v; want 2 events", routed, err)
		}
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.x"))
		expectEmpty(t, p)
		if n := countRows(t, p, "outbox_dead_letters"); n != 0 {
			t.Errorf("there are %d dead letters", n)
		}
	})
}

// TestUnmatched_Keep: events that no sink takes wait, do not stop claims, and are routed when the sinks change; those that still match none wait on.
func TestUnmatched_Keep(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		for _, change := range []string{"added", "restored", "error"} {
			t.Run(change, func(t *testing.T) {
				t.Parallel()
				p := newSinksDB(t, mode)
				b := openUnmatched(t, p, mode, buffer.UnmatchedKeep, dropSinks[0])
				added := buffer.Route{Sink: "added", Match: []string{"b.#", "a.b"}, BatchSize: 10}
				if change == "restored" {
					other := openUnmatched(t, p, mode, buffer.UnmatchedKeep, added)
					check(t, other.RegisterSinks(t.Context()))
					check(t, b.DropSink(t.Context(), "added", buffer.DroppedDiscarded))
				}
				insertTopics(t, p, "b.1", "a.1", "x")
				routeAll(t, b, "[all]")
				insertTopics(t, p, "b.2", "x")
				routeAll(t, b, "[]")
				again := openUnmatched(t, p, mode, buffer.UnmatchedKeep, dropSinks[0])
				check(t, again.RegisterSinks(t.Context())) // changes nothing
				backlog, err := again.CountBacklog(t.Context(), 100)
				check(t, err)
				if backlog != (buffer.Backlog{}) {
					t.Errorf("the backlog is %+v, want none: kept events wait for no retry", backlog)
				}
				if routed, err := b.RouteDue(t.Context(), lease); routed != nil || err != nil {
					t.Fatalf("routed %+v, %v", routed, err)
				}
				deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "a.1"))
				if n := countRows(t, p, "outbox_events"); n != 4 {
					t.Fatalf("%d events are left, want 4", n)
				}
				switch change {
				case "added":
					b = openUnmatched(t, p, mode, buffer.UnmatchedKeep, dropSinks[0], added)
					check(t, b.RegisterSinks(t.Context()))
				case "restored":
					check(t, b.RestoreSink(t.Context(), "added"))
				case "error":
					b = openUnmatched(t, p, mode, buffer.UnmatchedError, dropSinks[0])
					check(t, b.RegisterSinks(t.Context()))
				}
				for {
					routed, err := b.RouteDue(t.Context(), lease)
					check(t, err)
					if routed == nil {
						break
					}
				}
				if change == "error" {
					dead := query(t, p.pool, "SELECT sink || ' ' || topic FROM outbox_dead_letters ORDER BY event_id", pgx.RowTo[string])
					if fmt.Sprint(dead) != "[* b.1 * x * b.2 * x]" {
						t.Errorf("dead letters: %q", dead)
					}
					expectEmpty(t, p)
					return
				}
				for left := 2; left > 0; {
					batch, err := b.Sink("added").TakeOver(t.Context(), lease, buffer.DueRetry)
					check(t, err)
					if batch == nil {
						t.Fatalf("%d events did not get to the sink", left)
					}
					left -= batch.Len()
					deliverAll(t, b.Sink("added"), batch)
				}
				if topics := query(t, p.pool, "SELECT topic FROM outbox_events", pgx.RowTo[string]); fmt.Sprint(topics) != "[x x]" {
					t.Errorf("%v are left, want those that no sink takes", topics)
				}
				if n := query(t, p.pool, "SELECT coalesce(sum(events), 0) FROM outbox_batches WHERE sink = '*' AND due_at = 'infinity'", pgx.RowTo[int64])[0]; n != 2 {
					t.Errorf("%d events wait, want 2", n)
				}
				// A sink that takes every event ends the wait, and a stamp that is not that of the row holds them together.
				b = openUnmatched(t, p, mode, buffer.UnmatchedKeep, dropSinks...)
				check(t, b.RegisterSinks(t.Context()))
				for {
					routed, err := b.RouteDue(t.Context(), lease)
					check(t, err)
					if routed == nil {
						break
					}
				}
				for {
					batch, err := b.Sink("crm").TakeOver(t.Context(), lease, buffer.DueRetry)
					check(t, err)
					if batch == nil {
						break
					}
					deliverAll(t, b.Sink("crm"), batch)
				}
				expectEmpty(t, p)
			})
		}
	})
}

// TestUnmatched_KeepMissesNoChange: a route that keeps events waits for a change of the sinks that is under way, and sees it.
func TestUnmatched_KeepMissesNoChange(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	b := openUnmatched(t, p, buffer.ClaimRange, buffer.UnmatchedKeep, dropSinks[0])
	check(t, b.RegisterSinks(t.Context()))
	insertTopics(t, p, "b.1")
	batch, err := b.Claim(t.Context(), 10, lease)
	check(t, err)
	tx, err := p.pool.Begin(t.Context())
	check(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }() // a test that has failed
	for _, sql := range []string{
		"SELECT FROM outbox_buffers FOR UPDATE",
		"INSERT INTO outbox_sinks (buffer, sink, batch_size) SELECT buffer, 'new', 10 FROM outbox_buffers",
		"UPDATE outbox_buffers SET routes_no = routes_no + 1",
	} {
		_, err := tx.Exec(t.Context(), sql)
		check(t, err)
	}
	done := make(chan *buffer.Routed, 1)
	go func() {
		routed, err := postgres.RouteLease(t.Context(), b, batch)
		if err != nil {
			t.Error(err)
		}
		done <- routed
	}()
	testserver.Eventually(t, func() error {
		waits := query(t, p.pool, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()", pgx.RowTo[int64])[0]
		if waits == 0 {
			return errors.New("the route does not wait")
		}
		return nil
	})
	check(t, tx.Commit(t.Context()))
	if routed := <-done; routed == nil || fmt.Sprint(routed.Sinks) != "[new]" {
		t.Errorf("routed %+v, want to the sink that was added meanwhile", routed)
	}
}

// TestUnmatched_KeepDeleted: the application may delete kept events. Their ledger rows are no disagreement, and a repair corrects them.
func TestUnmatched_KeepDeleted(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openUnmatched(t, p, mode, buffer.UnmatchedKeep, dropSinks[0])
		insertTopics(t, p, "x.1", "x.2")
		routeAll(t, b, "[]")
		expect := func(deleted int64, kept buffer.Count) {
			t.Helper()
			if a, err := b.Audit(t.Context()); err != nil || !a.Agrees() || a.KeptDeleted != deleted || deleted == 0 && a.Kept != kept {
				t.Errorf("the audit is %+v, %v; want agreement, %d rows with deleted events, %+v kept", a, err, deleted, kept)
			}
		}
		expect(0, buffer.Count{Batches: 1, Events: 2})
		for left := range 2 {
			if _, err := p.pool.Exec(t.Context(), "DELETE FROM outbox_events WHERE id = (SELECT min(id) FROM outbox_events)"); err != nil {
				t.Fatal(err)
			}
			expect(1, buffer.Count{})
			if _, err := b.Repair(t.Context()); err != nil {
				t.Fatal(err)
			}
			expect(0, buffer.Count{Batches: int64(1 - left), Events: int64(1 - left)})
		}
		expectEmpty(t, p)
	})
}
