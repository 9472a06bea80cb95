package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func audit(t *testing.T, b *postgres.Buffer) buffer.Audit {
	t.Helper()
	a, err := b.Audit(t.Context())
	check(t, err)
	return a
}

// TestAudit_Sinks: what is routed agrees; an audit counts what is not routed yet, and what no relay serves.
func TestAudit_Sinks(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		for range 5 {
			insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd", "contact.odd")
			_, err := b.Route(t.Context(), 100, lease, keepNone)
			check(t, err)
		}
		insertTopics(t, p, "contact.new", "order.new")
		_, err := b.Claim(t.Context(), 100, lease)
		check(t, err)
		odd := b.Sink("odd")
		batch, err := odd.TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		check(t, odd.MarkDelivered(t.Context(), batch, batch.IDs()[:2]))
		a := audit(t, b)
		if !a.Agrees() || a.Unrouted != (buffer.Count{Batches: 1, Events: 2}) || a.Unserved.Batches+a.Kept.Batches != 0 {
			t.Errorf("audit: %+v", a)
		}
		_, err = p.pool.Exec(t.Context(), "DELETE FROM outbox_sinks WHERE sink = 'crm'")
		check(t, err)
		_, err = p.pool.Exec(t.Context(), "UPDATE outbox_batches SET due_at = 'infinity', state = 'waiting' WHERE sink = '*'")
		check(t, err)
		a = audit(t, b)
		if a.Unserved.Events != 15 || a.Kept != (buffer.Count{Batches: 1, Events: 2}) || a.Unrouted.Batches != 0 {
			t.Errorf("audit: %+v", a)
		}
	})
}

// TestRepair_Split: batches of different claims that hold the same events get one claim_id, unless one of them is leased. Otherwise the settle of
// one deletes what the other has not sent.
func TestRepair_Split(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	for range 2 {
		insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
		routed, err := b.Route(t.Context(), 100, lease, func(string) bool { return true })
		check(t, err)
		for _, l := range routed.Leases {
			check(t, b.Sink(l.Sink).Settle(t.Context(), l.Lease, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID, Outages: 1, Error: "away"}}))
		}
	}
	if n := query(t, p.pool, "SELECT count(DISTINCT claim_id) FROM outbox_batches", pgx.RowTo[int64])[0]; n != 2 {
		t.Fatalf("%d claims, want 2", n)
	}
	if a := audit(t, b); !a.Agrees() {
		t.Fatalf("audit: %+v", a)
	}
	_, err := p.pool.Exec(t.Context(), "UPDATE outbox_batches SET claim_id = gen_random_uuid() WHERE sink = 'crm'")
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "UPDATE outbox_batches SET claim_id = NULL WHERE sink = 'odd'")
	check(t, err)
	if a := audit(t, b); a.Split == 0 || a.Agrees() || a.Miscounted+a.EmptyBatches+a.Doubled > 0 {
		t.Fatalf("audit: %+v", a)
	}
	all, crm, odd := b.Sink("all"), b.Sink("crm"), b.Sink("odd")
	leased := takeOverOf(t, all, "contact.new", "order.new", "contact.old", "order.odd")
	r, err := b.Repair(t.Context())
	check(t, err)
	// One of two claims is leased: its three batches stay split.
	if a := audit(t, b); r.Joined != 2 && r.Joined != 3 || a.Split == 0 {
		t.Fatalf("repaired %+v while a batch is leased; audit: %+v", r, a)
	}
	check(t, all.Settle(t.Context(), leased, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: leased.GroupID, Outages: 1, Error: "away"}}))
	r, err = b.Repair(t.Context())
	check(t, err)
	if a := audit(t, b); !a.Agrees() || r.Joined == 0 {
		t.Fatalf("repaired %+v; audit: %+v", r, a)
	}
	if n := query(t, p.pool, "SELECT count(DISTINCT claim_id) FROM outbox_batches", pgx.RowTo[int64])[0]; n != 2 {
		t.Fatalf("%d claims, want 2", n)
	}
	for range 2 {
		deliverAll(t, all, takeOverOf(t, all, "contact.new", "order.new", "contact.old", "order.odd"))
		deliverAll(t, odd, takeOverOf(t, odd, "contact.new", "order.odd"))
		deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.old"))
	}
	if n := countRows(t, p, "outbox_events"); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

// TestAudit_Doubled: two batches of one sink hold the same events.
func TestAudit_Doubled(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		_, err = p.pool.Exec(t.Context(), `INSERT INTO outbox_batches
			SELECT (jsonb_populate_record(b, jsonb_build_object('group_id', gen_random_uuid()))).* FROM outbox_batches b WHERE sink = 'crm'`)
		check(t, err)
		a := audit(t, b)
		if a.Doubled != 2 || a.Agrees() || a.Split > 0 {
			t.Errorf("audit: %+v", a)
		}
	})
}

// TestRepair_RouteAdds: events that a route adds to a batch while a repair runs stay in it.
func TestRepair_RouteAdds(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	insertTopics(t, p, "contact.new")
	_, err := b.Route(t.Context(), 100, lease, keepNone)
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "DELETE FROM outbox_events") // so that the batches are empty
	check(t, err)
	tx, err := p.pool.Begin(t.Context())
	check(t, err)
	insertTopics(t, p, "contact.added")
	_, err = tx.Exec(t.Context(), `UPDATE outbox_batches SET events = events + 1, newest_at = clock_timestamp(),
		last_id = (SELECT max(id) FROM outbox_events), members = members + (SELECT int8multirange(int8range(max(id), max(id), '[]')) FROM outbox_events) WHERE sink = 'crm'`)
	check(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := b.Repair(t.Context())
		done <- err
	}()
	for query(t, p.pool, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()", pgx.RowTo[int64])[0] == 0 {
		select {
		case err := <-done:
			t.Fatalf("the repair does not wait: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	check(t, tx.Commit(t.Context()))
	check(t, <-done)
	if n := query(t, p.pool, "SELECT count(*) FROM outbox_batches WHERE sink = 'crm'", pgx.RowTo[int64])[0]; n != 1 {
		t.Errorf("crm has %d batches, want 1", n)
	}
	takeOverOf(t, b.Sink("crm"), "contact.added")
}
