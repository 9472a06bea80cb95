package sqlite_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func audit(t *testing.T, b *sqlite.Buffer) buffer.Audit {
	t.Helper()
	a, err := b.Audit(t.Context())
	testkit.NoError(t, err)
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
			testkit.NoError(t, err)
		}
		insertTopics(t, p, "contact.new", "order.new")
		_, err := b.Claim(t.Context(), 100, lease)
		testkit.NoError(t, err)
		odd := b.Sink("odd")
		batch, err := odd.TakeOver(t.Context(), lease, buffer.DueRetry)
		testkit.NoError(t, err)
		testkit.NoError(t, odd.MarkDelivered(t.Context(), batch, batch.IDs()[:2]))
		a := audit(t, b)
		if !a.Agrees() || a.Unrouted != (buffer.Count{Batches: 1, Events: 2}) || a.Unserved.Batches+a.Kept.Batches != 0 {
			t.Errorf("audit: %+v", a)
		}
		exec(t, p.db, "DELETE FROM outbox_sinks WHERE sink = 'crm'")
		exec(t, p.db, "UPDATE outbox_batches SET due_at = '9999-12-31T23:59:59.999Z', state = 'waiting' WHERE sink = '*'")
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
	p := newSinksDB(t, buffer.ClaimRange)
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	for range 2 {
		insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
		routed, err := b.Route(t.Context(), 100, lease, func(string) bool { return true })
		testkit.NoError(t, err)
		for _, l := range routed.Leases {
			testkit.NoError(t, b.Sink(l.Sink).Settle(t.Context(), l.Lease, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID, Outages: 1, Error: "away"}}))
		}
	}
	if n := number(t, p, "SELECT count(DISTINCT claim_id) FROM outbox_batches"); n != 2 {
		t.Fatalf("%d claims, want 2", n)
	}
	if a := audit(t, b); !a.Agrees() {
		t.Fatalf("audit: %+v", a)
	}
	exec(t, p.db, "UPDATE outbox_batches SET claim_id = 'f' || substr(group_id, 2) WHERE sink = 'crm'")
	exec(t, p.db, "UPDATE outbox_batches SET claim_id = NULL WHERE sink = 'odd'")
	if a := audit(t, b); a.Split == 0 || a.Agrees() || a.Miscounted+a.EmptyBatches+a.Doubled > 0 {
		t.Fatalf("audit: %+v", a)
	}
	all, crm, odd := b.Sink("all"), b.Sink("crm"), b.Sink("odd")
	leased := takeOverOf(t, all, "contact.new", "order.new", "contact.old", "order.odd")
	r, err := b.Repair(t.Context())
	testkit.NoError(t, err)
	// One of two claims is leased: its three batches stay split.
	if a := audit(t, b); r.Joined != 2 && r.Joined != 3 || a.Split == 0 {
		t.Fatalf("repaired %+v while a batch is leased; audit: %+v", r, a)
	}
	testkit.NoError(t, all.Settle(t.Context(), leased, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: leased.GroupID, Outages: 1, Error: "away"}}))
	r, err = b.Repair(t.Context())
	testkit.NoError(t, err)
	if a := audit(t, b); !a.Agrees() || r.Joined == 0 {
		t.Fatalf("repaired %+v; audit: %+v", r, a)
	}
	if n := number(t, p, "SELECT count(DISTINCT claim_id) FROM outbox_batches"); n != 2 {
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
		testkit.NoError(t, err)
		exec(t, p.db, `CREATE TEMP TABLE twice AS SELECT * FROM outbox_batches WHERE sink = 'crm';
			UPDATE twice SET group_id = '0192f0c1-2d5e-7a41-9d4e-8b1b6c1d2e3f'; INSERT INTO outbox_batches SELECT * FROM twice; DROP TABLE twice`)
		a := audit(t, b)
		if a.Doubled != 2 || a.Agrees() || a.Split > 0 {
			t.Errorf("audit: %+v", a)
		}
	})
}
