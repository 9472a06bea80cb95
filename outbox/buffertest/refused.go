package buffertest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// DroppedDeadLetter checks that an event stays if it gets no dead letter. drop makes a trigger that drops each new row of
// outbox_dead_letters without an error; allow removes it.
func DroppedDeadLetter(t *testing.T, f *Fixture, drop, allow string) {
	t.Helper()
	event := outbox.Event{Topic: "t", Payload: []byte("1")}
	ids := f.Insert(t, event, event, event)
	b := claim(t, f.Buffer, 10)
	rows := f.Rows(t)
	f.Exec(t, drop)
	outcomes := []buffer.Outcome{{Verdict: buffer.Dead, IDs: ids[1:2], Error: "refused"}, {Verdict: buffer.Delivered, IDs: []int64{ids[0], ids[2]}}}
	err := f.Buffer.Settle(t.Context(), b, outcomes)
	refusedBy(t, err)
	if !strings.Contains(err.Error(), "dead letter") {
		t.Fatalf("settled: %v; want an error that names the dead letter", err)
	}
	equal(t, "rows", f.Rows(t), rows)
	f.Exec(t, allow)
	settle(t, f.Buffer, b, outcomes...)
	equal(t, "rows", len(f.Rows(t)), 0)
	equal(t, "dead letters", len(f.Dead(t)), 1)
}

// RefusedSettle checks that a batch waits, and nothing else, whose delete the database refuses. refuse makes it refuse the delete of
// the event whose id is %[2]d from table %[1]s; allow ends that.
func RefusedSettle(t *testing.T, f *Fixture, refuse, allow string) {
	t.Helper()
	key := "a"
	event := outbox.Event{Topic: "t", Key: &key, Payload: []byte("1")}
	ids := f.Insert(t, event, event, event, event)
	b := claim(t, f.Buffer, 10)
	rows, before := f.Rows(t), ledgerOf(t, f, b.GroupID)
	f.Exec(t, fmt.Sprintf(refuse, f.Table, ids[0]))
	refusedBy(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: ids[:2]},
		{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID()},
	}))
	equal(t, "rows", f.Rows(t), rows)
	after := ledgerOf(t, f, b.GroupID)
	before.DueIn = after.DueIn
	equal(t, "ledger row", after, before)

	// The rest is freed ahead of the delete.
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[:3]))
	b = lose(t, f, b, f.Buffer)
	part := buffer.NewGroupID()
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, IDs: ids[3:], GroupID: part})
	row := ledgerOf(t, f, b.GroupID)
	equal(t, "state", row.State, "delivered")
	equal(t, "delivered", row.Delivered, ids[:3])
	equal(t, "events", row.Events, 3)
	rest := takeOver(t, f.Buffer)
	equal(t, "group_id of the rest", rest.GroupID, part)
	equal(t, "the rest", rest.IDs(), ids[3:])

	b = lose(t, f, b, f.Buffer)
	equal(t, "events", b.IDs(), ids[:3])
	settle(t, f.Buffer, rest, delivered())
	refusedBy(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{delivered()}))
	row = ledgerOf(t, f, b.GroupID)
	equal(t, "state", row.State, "delivered")
	about(t, "due_at", row.DueIn, buffer.KeptRetry(b.LeaseNo))
	status, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	if len(status.Waits) != 1 || status.Waits[0].Events != 3 || !strings.Contains(status.Waits[0].Error, "refuses to settle") {
		t.Fatalf("waits: %+v", status.Waits)
	}
	audit, err := f.Buffer.Audit(t.Context())
	ok(t, "Audit", err)
	if !audit.Agrees() {
		t.Fatalf("audit: %+v", audit)
	}

	// It holds no key.
	more := f.Insert(t, event)
	next := claim(t, f.Buffer, 10)
	equal(t, "the next batch", next.IDs(), more)
	settle(t, f.Buffer, next, delivered())

	f.Exec(t, fmt.Sprintf(allow, f.Table))
	b = lose(t, f, b, f.Buffer)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func refusedBy(t *testing.T, err error) {
	t.Helper()
	if refused, is := errors.AsType[*buffer.SettleError](err); !is || refused.RetryIn <= 0 {
		t.Fatalf("got %v; want a *buffer.SettleError", err)
	}
}
