package buffertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var discardCases = []testCase{
	{name: "discard/closes dead letters", deletesOnly: true, run: discardClosed},
	{name: "discard/stops at the limit", run: discardLimit},
	{name: "discard/concurrent calls count nothing twice", run: discardTogether},
	{name: "discard/takes open matching dead letters only", run: discardFiltered},
}

func discard(t *testing.T, b buffer.Buffer, f buffer.DeadFilter, limit, want int) {
	t.Helper()
	n, err := b.Discard(t.Context(), f, limit)
	ok(t, "Discard", err)
	equal(t, "dead letters discarded", n, want)
}

func discardClosed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(3)...).IDs()
	f.Exec(t, fmt.Sprintf("INSERT INTO %s (id, topic, payload) VALUES (%d, 'restored', '1')", f.Table, ids[0]))
	before := f.Dead(t)
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[:2], ClosedBy: "größe@host", ClosedReason: "gründe"}, 10, 2)
	for i, d := range f.Dead(t) {
		if (i < 2) == d.ClosedAt.IsZero() {
			t.Fatalf("the dead letter of event %d is closed at %v", d.EventID, d.ClosedAt)
		}
		if i < 2 {
			about(t, "closed_at", time.Since(d.ClosedAt), 0)
			before[i].ClosedAs, before[i].ClosedBy, before[i].ClosedReason = "discarded", "größe@host", "gründe"
		}
		before[i].ClosedAt = d.ClosedAt
		equal(t, "dead letter", d, before[i])
	}
	equal(t, "rows", f.Rows(t), []Row{{ID: ids[0]}})
	equal(t, "ledger", f.Ledger(t), []LedgerRow(nil))
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[:2]}, 10, 0)
	replay(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2]}, 10, 0)
	equal(t, "dead letters left", dead(t, f.Buffer, buffer.DeadFilter{}), ids[2:])
}

func discardLimit(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "refused", orders(5)...)
	for i, n := range []int{2, 2, 1, 0} {
		discard(t, f.Buffer, buffer.DeadFilter{}, 2, n)
		equal(t, "dead letters left", len(deadIDs(t, f, isOpen)), []int{3, 1, 0, 0}[i])
	}
}

func discardTogether(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "refused", orders(60)...)
	n := together(t, f, func(ctx context.Context, b buffer.Buffer) (int, error) {
		return b.Discard(ctx, buffer.DeadFilter{}, 7)
	})
	equal(t, "dead letters discarded", n, 60)
	equal(t, "dead letters open", deadIDs(t, f, isOpen), []int64(nil))
	empty(t, f)
}

func discardFiltered(t *testing.T, h Harness) {
	f, ids := mixed(t, h)
	discard(t, f.Buffer, buffer.DeadFilter{Topic: "orders"}, 10, 0)
	discard(t, f.Buffer, buffer.DeadFilter{IDs: ids[1:2], Closed: true}, 10, 0)
	discard(t, f.Buffer, buffer.DeadFilter{Notified: true}, 10, 1)
	equal(t, "dead letters left", dead(t, f.Buffer, buffer.DeadFilter{}), ids[2:])
	discard(t, f.Buffer, buffer.DeadFilter{Error: "REFUSED"}, 10, 2)
	neighbourOpen(t, f)
}
