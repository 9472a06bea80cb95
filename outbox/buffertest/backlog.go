package buffertest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var backlogCases = []testCase{
	{name: "backlog/counts unclaimed events up to the limit", run: backlogUnclaimed},
	{name: "backlog/counts batches by state", run: backlogBatches},
	{name: "backlog/counts late commits", rowLocksOnly: true, run: backlogLate},
	{name: "status/reports all numbers", run: statusNumbers},
	{name: "status/counts suspects", run: statusSuspects},
	{name: "status/reports the oldest transaction", rowLocksOnly: true, run: statusTransaction},
	{name: "check/accepts a migrated database", run: checkReady},
	{name: "check/names missing tables and columns", relayTableOnly: true, run: checkMissing},
	{name: "check/calls name a table dropped while running", run: checkWhileRunning},
}

func countBacklog(t *testing.T, b buffer.Queue, limit int, want buffer.Backlog) {
	t.Helper()
	got, err := b.CountBacklog(t.Context(), limit)
	ok(t, "CountBacklog", err)
	equal(t, fmt.Sprintf("CountBacklog(%d)", limit), got, want)
}

func backlogUnclaimed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	countBacklog(t, f.Buffer, 100, buffer.Backlog{})
	f.Insert(t, orders(30)...)
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Unclaimed: 30})
	countBacklog(t, f.Buffer, 30, buffer.Backlog{Unclaimed: 30})
	countBacklog(t, f.Buffer, 12, buffer.Backlog{Unclaimed: 12})
	countBacklog(t, f.Buffer, 0, buffer.Backlog{})
	b := claim(t, f.Buffer, 10)
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Unclaimed: 20})
	countBacklog(t, f.Second(t), 100, buffer.Backlog{Unclaimed: 20})
	settle(t, f.Buffer, b, delivered())
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Unclaimed: 20})
}

func backlogBatches(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(5)...)
	var batches []*buffer.Lease
	for range ids {
		batches = append(batches, claim(t, f.Buffer, 1))
	}
	countBacklog(t, f.Buffer, 100, buffer.Backlog{})
	f.ExpireLease(t, batches[0].GroupID, time.Second)
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Due: 1})
	for _, b := range batches[1:3] {
		settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, After: lease})
	}
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Due: 1, Waiting: 2})
	f.ExpireLease(t, batches[1].GroupID, time.Second)
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Due: 2, Waiting: 2})
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), batches[3], ids[3:4]))
	f.ExpireLease(t, batches[3].GroupID, -lease)
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Due: 2, Waiting: 2, Delivered: 1})
	f.ExpireLease(t, batches[3].GroupID, time.Second)
	countBacklog(t, f.Buffer, 0, buffer.Backlog{Due: 3, Waiting: 2, Delivered: 1})
	for range 3 {
		settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	}
	countBacklog(t, f.Buffer, 100, buffer.Backlog{Waiting: 1})
}

// backlogLate: a distributor issues no ticket for a late commit that it does not see.
func backlogLate(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	late := f.Begin(t)
	defer late.Rollback(t)
	late.Insert(t, orders(2)...)
	f.Insert(t, orders(1)...)
	claim(t, f.Buffer, 10)
	claimNone(t, f.Buffer)
	late.Commit(t)
	eventually(t, "counting events committed late", func(ctx context.Context) bool {
		got, err := f.Buffer.CountBacklog(ctx, 100)
		ok(t, "CountBacklog", err)
		return got.Unclaimed == 2
	})
}

func statusNumbers(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	status := func() buffer.Status {
		t.Helper()
		s, err := f.Second(t).Status(t.Context())
		ok(t, "Status", err)
		s.OldestTransaction = 0 // other cases have transactions open
		return s
	}
	equal(t, "status of an empty buffer", status(), buffer.Status{})

	ids := f.Insert(t, orders(8)...)
	var s buffer.Status
	eventually(t, "the oldest pending event grows older", func(context.Context) bool {
		s = status()
		return s.OldestPending > 0
	})
	about(t, "oldest pending event", s.OldestPending, 0)
	equal(t, "status", s, buffer.Status{Pending: 8, OldestPending: s.OldestPending})

	dead, waiting, marked := claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 1)
	claim(t, f.Buffer, 2)
	settle(t, f.Buffer, dead, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	settle(t, f.Buffer, waiting, buffer.Outcome{Verdict: buffer.Retry, GroupID: waiting.GroupID, After: lease})
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), marked, marked.IDs()))
	s = status()
	equal(t, "reasons to wait", len(s.Waits), 1)
	s.Waits = nil // see deferredAll
	equal(t, "status", s, buffer.Status{Pending: 5, OldestPending: s.OldestPending, Leased: 1, Waiting: 1, Delivered: 1, Dead: 2, Unnotified: 2})

	f.Exec(t, fmt.Sprintf("UPDATE outbox_dead_letters SET closed_at = died_at WHERE event_id = %d", ids[0]))
	equal(t, "open dead letters", status().Dead, int64(1))

	// A delivered event is not pending, even while it cannot be deleted.
	f.Exec(t, "DELETE FROM outbox_dead_letters")
	for _, row := range f.Ledger(t) {
		if row.GroupID != marked.GroupID {
			f.ExpireLease(t, row.GroupID, time.Minute)
			settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
		}
	}
	settle(t, f.Buffer, claim(t, f.Buffer, 10), delivered())
	equal(t, "status when only a marked batch is left", status(), buffer.Status{Delivered: 1})
}

func statusSuspects(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	suspects := func(when string, want int64) {
		t.Helper()
		s, err := f.Second(t).Status(t.Context())
		ok(t, "Status", err)
		equal(t, "suspects "+when, s.Suspects, want)
		if (s.OldestSuspect > 0) != (want > 0) {
			t.Fatalf("the oldest suspect %s was claimed %v ago", when, s.OldestSuspect)
		}
	}
	b := claim(t, f.Buffer, 1)
	claim(t, f.Buffer, 1) // its owner does not fail
	f.ExpireLease(t, b.GroupID, time.Second)
	suspects("after one unfinished lease", 0)
	b = takeOverKind(t, f.Buffer, buffer.DueRetry, b)
	suspects("during the second lease", 0)
	f.ExpireLease(t, b.GroupID, time.Second)
	suspects("after two unfinished leases", 1)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_batches SET claimed_at = '2020-01-02T03:04:05.000Z' WHERE group_id = '%s'", b.GroupID))
	b = takeOverKind(t, f.Buffer, buffer.DueSuspect, b)
	suspects("while it is sent alone", 1)
	s, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	if s.OldestSuspect < 365*24*time.Hour {
		t.Fatalf("a take-over changed when the suspect was claimed to %v ago", s.OldestSuspect)
	}
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, After: lease, UnfinishedLeases: 2})
	suspects("while its retry waits", 1)
	f.ExpireLease(t, b.GroupID, time.Second)
	settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueSuspect, b), delivered())
	suspects("when it is delivered", 0)

	bury(t, f, "refused", orders(1)...)
	b = claim(t, f.Queue(t), 1)
	f.ExpireLease(t, b.GroupID, time.Second)
	b = takeOverKind(t, f.Queue(t), buffer.DueRetry, b)
	f.ExpireLease(t, b.GroupID, time.Second)
	suspects("of the dead-letter hook", 1)
}

func statusTransaction(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Insert(t, orders(1)...)
	s, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	if s.OldestTransaction <= 0 {
		t.Fatalf("a transaction is open, and the oldest one is %v old", s.OldestTransaction)
	}
}

func checkReady(t *testing.T, h Harness) {
	for _, opt := range []Options{{}, {Bytes: true}} {
		f := h.Open(t, opt)
		ok(t, "Check", f.Buffer.Check(t.Context()))
		ok(t, "Check of the neighbour", f.Neighbour(t).Buffer.Check(t.Context()))
	}
}

func checkMissing(t *testing.T, h Harness) {
	for _, c := range []struct{ drop, names, fix string }{
		{"ALTER TABLE %s DROP COLUMN headers", "headers", ""},
		{"ALTER TABLE outbox_dead_letters DROP COLUMN died_at", "died_at", ""},
		{"ALTER TABLE outbox_batches DROP COLUMN address", "address", ""},
		{"DROP TABLE outbox_batches", "outbox_batches", "relay migrate"},
		{"DROP TABLE outbox_dead_letters", "outbox_dead_letters", "relay migrate"},
		{"DROP TABLE outbox_buffers", "outbox_buffers", "relay migrate"},
		{"DROP TABLE %s", "%s", "relay migrate"},
	} {
		f := h.Open(t, Options{})
		fill := func(s string) string { return strings.ReplaceAll(s, "%s", f.Table) }
		f.Exec(t, fill(c.drop))
		err := f.Buffer.Check(t.Context())
		fails(t, "Check after "+fill(c.drop), err, buffer.ErrNotReady)
		for _, want := range []string{fill(c.names), c.fix} {
			if !strings.Contains(err.Error(), want) {
				t.Fatalf("Check after %s: the error does not say %q: %v", fill(c.drop), want, err)
			}
		}
	}
}

// checkWhileRunning drops a table under a running relay: every method reports it.
func checkWhileRunning(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 1)
	f.Exec(t, "DROP TABLE outbox_batches")
	_, err := f.Buffer.Claim(t.Context(), 1, lease)
	fails(t, "Claim", err, buffer.ErrNotReady)
	_, err = f.Buffer.TakeOver(t.Context(), lease, buffer.DueRetry)
	fails(t, "TakeOver", err, buffer.ErrNotReady)
	fails(t, "Settle", f.Buffer.Settle(t.Context(), b, []buffer.Outcome{delivered()}), buffer.ErrNotReady)
	_, err = f.Buffer.CountBacklog(t.Context(), 10)
	fails(t, "CountBacklog", err, buffer.ErrNotReady)
	equal(t, "rows", rowIDs(t, f), append(b.IDs(), b.LastID+1))
}
