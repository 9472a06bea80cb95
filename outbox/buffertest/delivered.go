package buffertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var deliveredCases = []testCase{
	{name: "delivered/marking changes the ledger row only", run: deliveredLedger},
	{name: "delivered/owner can still settle", run: deliveredSettled},
	{name: "delivered/takeover deletes first and regroups the rest", run: deliveredTakenOver},
	{name: "delivered/mark stays until the settle", run: deliveredStays},
	{name: "delivered/events deleted meanwhile are ignored", run: deliveredVanished},
	{name: "delivered/locked events are deleted later", rowLocksOnly: true, run: deliveredLocked},
}

func deliveredLedger(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	rows, before := f.Rows(t), ledgerOf(t, f, b.GroupID)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[1:3]))
	equal(t, "rows", f.Rows(t), rows)
	after := ledgerOf(t, f, b.GroupID)
	if after.DueIn > time.Minute {
		t.Fatalf("a marked batch is due in %v, it was to be soon", after.DueIn)
	}
	want := before
	want.State, want.Delivered, want.DueIn = "delivered", ids[1:3], after.DueIn
	equal(t, "ledger row", after, want)
	claimNone(t, f.Buffer)
}

func deliveredSettled(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[:3]))
	part := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(ids[:3]...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[3:], GroupID: part, After: lease})
	equal(t, "rows left", f.Rows(t), []Row{{ids[3], part}})
	equal(t, "state of the rest", ledgerOf(t, f, part).State, "waiting")
	takeOverNone(t, f.Buffer)
}

func deliveredTakenOver(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	second := f.Second(t)
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, []int64{ids[0], ids[2]}))
	taken := lose(t, f, b, second)
	if !taken.DeliveryRecorded() {
		t.Fatalf("the batch was marked before it was taken over, and is not after")
	}
	equal(t, "events", taken.IDs(), ids)
	equal(t, "delivered", taken.Delivered, []int64{ids[0], ids[2]})
	stale(t, f, f.Buffer, b)

	rest := buffer.NewGroupID()
	settle(t, second, taken, delivered(taken.Delivered...),
		buffer.Outcome{Verdict: buffer.Dead, IDs: ids[1:2], Attempts: 1, Error: "refused"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[3:], GroupID: rest})
	equal(t, "rows left", f.Rows(t), []Row{{ids[3], rest}})
	equal(t, "dead letters", len(f.Dead(t)), 1)
	b = takeOver(t, second)
	equal(t, "group_id of the rest", b.GroupID, rest)
	equal(t, "origins of the rest", b.Origins, []uuid.UUID{taken.GroupID})
	if b.DeliveryRecorded() {
		t.Fatalf("the rest is marked delivered: %v", b.Delivered)
	}
	settle(t, second, b, delivered())
	empty(t, f)
}

func deliveredStays(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids))
	for range 3 {
		b = lose(t, f, b, f.Buffer)
		equal(t, "delivered", b.Delivered, ids)
		row := ledgerOf(t, f, b.GroupID)
		equal(t, "state", row.State, "delivered")
		about(t, "due_at", row.DueIn, lease)
		takeOverNone(t, f.Buffer)
	}
	ok(t, "Renew of a marked batch", f.Buffer.Renew(t.Context(), b, 2*lease))
	equal(t, "state", ledgerOf(t, f, b.GroupID).State, "delivered")
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func deliveredVanished(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[:2]))
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[0]))
	b = lose(t, f, b, f.Buffer)
	equal(t, "events left", b.IDs(), ids[1:])
	rest := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(ids[:2]...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: rest})
	equal(t, "rows left", f.Rows(t), []Row{{ids[2], rest}})
}

func deliveredLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[:3]))
	b = lose(t, f, b, f.Buffer)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id = %d", f.Table, ids[1]))

	rest := buffer.NewGroupID()
	outcomes := []buffer.Outcome{delivered(ids[:3]...), {Verdict: buffer.Retry, IDs: ids[3:], GroupID: rest}}
	fails(t, "Settle in front of a lock", f.Buffer.Settle(t.Context(), b, outcomes), buffer.ErrLocked)
	row := ledgerOf(t, f, b.GroupID)
	equal(t, "state", row.State, "delivered")
	equal(t, "rows left: the rest is not held up", f.Rows(t), []Row{{ids[1], b.GroupID}, {ids[3], rest}})
	if row.DueIn > time.Minute {
		t.Fatalf("the batch is due in %v, it was to be soon", row.DueIn)
	}
	claimNone(t, f.Buffer)

	tx.Rollback(t)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered()) // the rest
	b = lose(t, f, b, f.Buffer)
	equal(t, "events left", b.IDs(), ids[1:2])
	settle(t, f.Buffer, b, delivered(b.Delivered...))
	empty(t, f)
}
