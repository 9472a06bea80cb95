package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TestSettle_LockedDelivered: locked events stay in the
// ledger row as delivered, and are deleted later.
func TestSettle_LockedDelivered(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event, event)
	b, err := f.Buffer.Claim(t.Context(), 10, lease)
	check(t, err)
	check(t, f.Buffer.MarkDelivered(t.Context(), b, ids[:2]))
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	tx := f.Begin(t)
	tx.Exec(t, fmt.Sprintf("UPDATE outbox_events SET topic = topic WHERE id IN (%d, %d)", ids[1], ids[2]))
	err = f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:2]},
		{Verdict: buffer.Dead, IDs: ids[2:3], Error: "no"},
		{Verdict: buffer.Retry, IDs: ids[3:], GroupID: buffer.NewGroupID(), After: lease},
	})
	if !errors.Is(err, buffer.ErrLocked) {
		t.Fatalf("got %v", err)
	}
	audit, err := f.Buffer.Audit(t.Context())
	check(t, err)
	want := buffer.Audit{
		Delivered: buffer.Count{Batches: 1, Events: 2}, DeliveredEvents: 2, Waiting: buffer.Count{Batches: 1, Events: 1},
		Dead: buffer.DeadCount{Open: 1, Unnotified: 1},
	}
	if diff := cmp.Diff(want, audit); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	status, err := f.Buffer.Status(t.Context())
	check(t, err)
	if status.Pending != 1 {
		t.Errorf("%d pending, want the one that waits", status.Pending)
	}
	tx.Rollback(t)
	f.ExpireLease(t, b.GroupID, lease)
	b, err = testkit.TakeOver(t.Context(), f.Buffer, lease)
	check(t, err)
	expectIDs(t, "to be deleted", b.Delivered, ids[1:3]) // including the buried event
	check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	if rows := f.Rows(t); len(rows) != 1 {
		t.Errorf("left: %v", rows)
	}
}
