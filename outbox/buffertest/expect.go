package buffertest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// lease is longer than any case runs: a lease ends only by Fixture.ExpireLease, never because
// the machine is slow.
const lease = time.Hour

// deadline ends a case that makes no progress. It is generous, because only a case that fails waits
// for it.
const deadline = 3 * time.Minute

// orders makes n different events.
func orders(n int) []outbox.Event {
	events := make([]outbox.Event, n)
	for i := range events {
		events[i] = outbox.Event{Topic: "orders.created", Payload: fmt.Appendf(nil, `{"order": %d}`, i)}
	}
	return events
}

// equal compares with go-cmp; nil and empty are the same.
func equal(t TB, what string, got, want any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return // go-cmp is slow, and the model compares thousands of times
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s: unexpected difference (-want +got):\n%s", what, d)
	}
}

func ok(t TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func fails(t TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want one that is %q", what, err, want)
	}
}

// claim claims and expects a batch.
func claim(t testing.TB, b buffer.Queue, limit int) *buffer.Lease {
	t.Helper()
	batch, err := b.Claim(t.Context(), limit, lease)
	ok(t, "Claim", err)
	if batch == nil {
		t.Fatalf("Claim: no batch, although there are unclaimed events")
	}
	return batch
}

// claimNone claims and expects no batch.
func claimNone(t testing.TB, b buffer.Queue) {
	t.Helper()
	batch, err := b.Claim(t.Context(), 1000, lease)
	ok(t, "Claim", err)
	if batch != nil {
		t.Fatalf("Claim: got a batch of events %v, want none", batch.IDs())
	}
}

// takeOverAny takes over a batch that is due, a suspect if there is no other.
func takeOverAny(ctx context.Context, b buffer.Queue) (*buffer.Lease, error) {
	batch, err := b.TakeOver(ctx, lease, buffer.DueRetry)
	if batch != nil || err != nil {
		return batch, err
	}
	return b.TakeOver(ctx, lease, buffer.DueSuspect)
}

// takeOver takes over and expects a batch.
func takeOver(t testing.TB, b buffer.Queue) *buffer.Lease {
	t.Helper()
	batch, err := takeOverAny(t.Context(), b)
	ok(t, "TakeOver", err)
	if batch == nil {
		t.Fatalf("TakeOver: no batch, although one is due")
	}
	return batch
}

// takeOverNone takes over and expects that nothing is due.
func takeOverNone(t testing.TB, b buffer.Queue) {
	t.Helper()
	batch, err := takeOverAny(t.Context(), b)
	ok(t, "TakeOver", err)
	if batch != nil {
		t.Fatalf("TakeOver: got batch %s of events %v, want none", batch.GroupID, batch.IDs())
	}
}

// lose expires the batch's lease and lets other take the batch over.
func lose(t testing.TB, f *Fixture, batch *buffer.Lease, other buffer.Queue) *buffer.Lease {
	t.Helper()
	f.ExpireLease(t, batch.GroupID, time.Second)
	taken := takeOver(t, other)
	if taken.GroupID != batch.GroupID {
		t.Fatalf("TakeOver: got batch %s, want %s", taken.GroupID, batch.GroupID)
	}
	return taken
}

func settle(t testing.TB, b buffer.Queue, batch *buffer.Lease, outcomes ...buffer.Outcome) {
	t.Helper()
	ok(t, "Settle", b.Settle(t.Context(), batch, outcomes))
}

// delivered is the outcome of a delivered batch, or of the events ids of it.
func delivered(ids ...int64) buffer.Outcome {
	return buffer.Outcome{Verdict: buffer.Delivered, IDs: ids}
}

// empty expects that the buffer table and the ledger are empty.
func empty(t testing.TB, f *Fixture) {
	t.Helper()
	equal(t, "rows left in the buffer", f.Rows(t), []Row(nil))
	equal(t, "rows left in the ledger", f.Ledger(t), []LedgerRow(nil))
}

// ledgerOf returns the batch's ledger row.
func ledgerOf(t TB, f *Fixture, groupID uuid.UUID) LedgerRow {
	t.Helper()
	for _, row := range f.Ledger(t) {
		if row.GroupID == groupID {
			return row
		}
	}
	t.Fatalf("batch %s is not in the ledger", groupID)
	return LedgerRow{}
}

// retry is the outcome of a batch that is retried as a whole.
func retry(b *buffer.Lease, after time.Duration) buffer.Outcome {
	return buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, After: after}
}

// bury inserts the events, claims and buries them, and returns the batch they
// were in. No other event may be unclaimed.
func bury(t testing.TB, f *Fixture, reason string, events ...outbox.Event) *buffer.Lease {
	t.Helper()
	f.Insert(t, events...)
	b := claim(t, f.Buffer, len(events))
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 3, Error: reason})
	return b
}

// deadIDs returns the event ids of the dead letters for which is returns true, in ascending
// order.
func deadIDs(t TB, f *Fixture, is func(*DeadLetter) bool) []int64 {
	t.Helper()
	ids := []int64{}
	for _, d := range f.Dead(t) {
		if is(&d) {
			ids = append(ids, d.EventID)
		}
	}
	return ids
}

func isOpen(d *DeadLetter) bool     { return d.ClosedAt.IsZero() }
func isClosed(d *DeadLetter) bool   { return !d.ClosedAt.IsZero() }
func isNotified(d *DeadLetter) bool { return !d.NotifiedAt.IsZero() }

// rowIDs returns the ids in the buffer table.
func rowIDs(t TB, f *Fixture) []int64 {
	t.Helper()
	rows := f.Rows(t)
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.ID
	}
	return ids
}

// about expects a duration, with the tolerance that a slow machine needs.
func about(t TB, what string, got, want time.Duration) {
	t.Helper()
	const slack = 2 * time.Minute
	if got < want-slack || got > want+slack {
		t.Fatalf("%s: got %v, want about %v", what, got, want)
	}
}

// untouched runs act and expects that it changed nothing anywhere.
func untouched(t testing.TB, f *Fixture, what string, act func()) {
	t.Helper()
	type state struct {
		Rows   []Row
		Ledger []LedgerRow
		Dead   []DeadLetter
	}
	read := func() state { return state{f.Rows(t), f.Ledger(t), f.Dead(t)} }
	before := read()
	act()
	after := read()
	for i := range before.Ledger {
		before.Ledger[i].DueIn = 0 // time changes it
	}
	for i := range after.Ledger {
		after.Ledger[i].DueIn = 0
	}
	equal(t, what, after, before)
}

// eventually calls done until it returns true.
func eventually(t testing.TB, what string, done func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: it did not happen", what)
		case <-tick.C:
		}
	}
}
