package postgres_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TestRange_IDsReused: the application deletes all events and sets the sequence back, without TRUNCATE, while a batch is
// live. The new events have its ids, but are younger: nothing that becomes of the batch touches them, and they are claimed
// when it is gone.
func TestRange_IDsReused(t *testing.T) {
	t.Parallel()
	all := func(v buffer.Verdict) func([]int64) []buffer.Outcome {
		return func(ids []int64) []buffer.Outcome {
			return []buffer.Outcome{{Verdict: v, IDs: ids, Error: "no", GroupID: buffer.NewGroupID()}}
		}
	}
	some := func(ids []int64) []buffer.Outcome { // the ids that are deleted have a gap
		return []buffer.Outcome{
			{Verdict: buffer.Dead, IDs: ids[1:2], Error: "no"},
			{Verdict: buffer.Retry, IDs: ids[3:4], GroupID: buffer.NewGroupID()},
			{Verdict: buffer.Delivered, IDs: slices.Concat(ids[:1], ids[2:3], ids[4:])},
		}
	}
	for name, c := range map[string]struct {
		archive bool
		settle  func(ids []int64) []buffer.Outcome // nil: the lease ends
		marked  bool
		waiting bool
	}{
		"Delivered":         {settle: all(buffer.Delivered)},
		"Archived":          {settle: all(buffer.Delivered), archive: true},
		"Buried":            {settle: all(buffer.Dead)},
		"Divided":           {settle: some},
		"DividedArchived":   {settle: some, archive: true},
		"Regrouped":         {settle: all(buffer.Retry)},
		"Waiting":           {waiting: true},
		"LeaseOver":         {},
		"Marked":            {marked: true},
		"MarkedArchived":    {marked: true, archive: true},
		"MarkedThenDivided": {marked: true, settle: some},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange, Archive: c.archive})
			f := p.fixture(t, "outbox_events", "orders")
			ctx, events := t.Context(), slices.Repeat([]outbox.Event{oneEvent}, 6)
			ids := f.Insert(t, events...)
			b, err := f.Buffer.Claim(ctx, 10, lease)
			check(t, err)
			expectIDs(t, "claimed", b.IDs(), ids)
			switch {
			case c.marked:
				check(t, f.Buffer.MarkDelivered(ctx, b, ids))
				b.Delivered = ids
			case c.waiting:
				check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: b.GroupID}}))
			}

			f.Exec(t, "DELETE FROM outbox_events; ALTER SEQUENCE outbox_events_id_seq RESTART")
			expectIDs(t, "ids used again", f.Insert(t, events...), ids)
			audit, err := f.Buffer.Audit(ctx)
			check(t, err)
			if audit.Unclaimed != int64(len(ids)) || audit.EmptyBatches != 1 {
				t.Errorf("audit: %+v; expected %d unclaimed events and an empty batch", audit, len(ids))
			}

			if c.settle != nil {
				check(t, f.Buffer.Settle(ctx, b, c.settle(ids)))
			} else {
				f.ExpireLease(t, b.GroupID, time.Second)
				b, err = testkit.TakeOver(ctx, f.Buffer, lease)
				check(t, err)
				expectIDs(t, "taken over", b.IDs(), []int64{})
				check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			}
			if ledger := f.Ledger(t); len(ledger) > 0 {
				t.Errorf("the ledger has %+v", ledger)
			}
			if dead := f.Dead(t); len(dead) > 0 {
				t.Errorf("buried, although never sent: %+v", dead)
			}
			if c.archive {
				if archived := f.Archived(t); len(archived) > 0 {
					t.Errorf("archived, although never sent: %+v", archived)
				}
			}

			// A new process looks at all ids.
			b, err = f.Second(t).Claim(ctx, 10, lease)
			check(t, err)
			if b == nil {
				t.Fatal("nothing was claimed")
			}
			expectIDs(t, "claimed then", b.IDs(), ids)
			check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Delivered}}))
			if rows := f.Rows(t); len(rows) > 0 {
				t.Errorf("left: %v", rows)
			}
		})
	}
}

// TestRange_GroupIDSet: while a batch is live, somebody else sets the group_id of one of its events, as a restore does.
// Nothing that becomes of the batch touches that event. It is adopted and sent.
func TestRange_GroupIDSet(t *testing.T) {
	t.Parallel()
	settle := func(v buffer.Verdict) func(*testing.T, *buffertest.Fixture, *buffer.Lease) {
		return func(t *testing.T, f *buffertest.Fixture, b *buffer.Lease) {
			t.Helper()
			check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: v, IDs: b.IDs(), Error: "no", GroupID: buffer.NewGroupID()}}))
		}
	}
	takeOver := func(t *testing.T, f *buffertest.Fixture, b *buffer.Lease) *buffer.Lease {
		t.Helper()
		f.ExpireLease(t, b.GroupID, time.Second)
		over, err := testkit.TakeOver(t.Context(), f.Buffer, lease)
		check(t, err)
		return over
	}
	for name, c := range map[string]struct {
		archive bool
		end     func(*testing.T, *buffertest.Fixture, *buffer.Lease)
		rest    []int // the places of the events that are left, besides the one
	}{
		"Delivered": {end: settle(buffer.Delivered)},
		"Archived":  {end: settle(buffer.Delivered), archive: true},
		"Buried":    {end: settle(buffer.Dead)},
		"Regrouped": {end: settle(buffer.Retry), rest: []int{0, 2, 3}},
		"Gap": {rest: []int{3}, end: func(t *testing.T, f *buffertest.Fixture, b *buffer.Lease) {
			ids := b.IDs()
			check(t, f.Buffer.Settle(t.Context(), b, []buffer.Outcome{
				{Verdict: buffer.Delivered, IDs: []int64{ids[0], ids[1]}},
				{Verdict: buffer.Dead, IDs: ids[2:3], Error: "no"},
				{Verdict: buffer.Retry, IDs: ids[3:], GroupID: buffer.NewGroupID()},
			}))
		}},
		"TakenOver": {end: func(t *testing.T, f *buffertest.Fixture, b *buffer.Lease) {
			over := takeOver(t, f, b)
			expectIDs(t, "taken over", over.IDs(), slices.Delete(b.IDs(), 1, 2))
			check(t, f.Buffer.Settle(t.Context(), over, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		}},
		"Marked": {archive: true, end: func(t *testing.T, f *buffertest.Fixture, b *buffer.Lease) {
			check(t, f.Buffer.MarkDelivered(t.Context(), b, b.IDs()))
			check(t, f.Buffer.Settle(t.Context(), takeOver(t, f, b), []buffer.Outcome{{Verdict: buffer.Delivered}}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange, Archive: c.archive})
			f := p.fixture(t, "outbox_events", "orders")
			ctx, events := t.Context(), slices.Repeat([]outbox.Event{oneEvent}, 4)
			ids := f.Insert(t, events...)
			b, err := f.Buffer.Claim(ctx, 10, lease)
			check(t, err)
			expectIDs(t, "claimed", b.IDs(), ids)
			f.Exec(t, "UPDATE outbox_events SET group_id = gen_random_uuid() WHERE id = "+strconv.FormatInt(ids[1], 10))
			c.end(t, f, b)

			left := []int64{ids[1]}
			for _, i := range c.rest {
				left = append(left, ids[i])
			}
			slices.Sort(left)
			var rows []int64
			for _, r := range f.Rows(t) {
				rows = append(rows, r.ID)
			}
			expectIDs(t, "left", rows, left)
			for _, dead := range f.Dead(t) {
				if dead.EventID == ids[1] {
					t.Errorf("buried: %+v", dead)
				}
			}
			if c.archive {
				var archived []int64
				for _, e := range f.Archived(t) {
					archived = append(archived, e.ID)
				}
				expectIDs(t, "archived", archived, slices.Delete(slices.Clone(ids), 1, 2))
			}
			repaired, err := f.Buffer.Repair(ctx)
			check(t, err)
			if diff := cmp.Diff(buffer.Repair{Adopted: buffer.Count{Batches: 1, Events: 1}}, repaired); diff != "" {
				t.Errorf("repaired (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRange_IDsReusedRepair: `verify --repair` removes the batch, which has lost its events, and adopts a new one that
// was stamped by hand.
func TestRange_IDsReusedRepair(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	f := p.fixture(t, "outbox_events", "orders")
	ctx := t.Context()
	f.Insert(t, oneEvent, oneEvent)
	b, err := f.Buffer.Claim(ctx, 10, lease)
	check(t, err)
	check(t, f.Buffer.Settle(ctx, b, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: b.GroupID, After: time.Hour}}))
	f.Exec(t, "DELETE FROM outbox_events; ALTER SEQUENCE outbox_events_id_seq RESTART")
	f.Insert(t, oneEvent, oneEvent)
	f.Exec(t, "UPDATE outbox_events SET group_id = gen_random_uuid() WHERE id = 1")
	repaired, err := f.Buffer.Repair(ctx)
	check(t, err)
	want := buffer.Repair{Adopted: buffer.Count{Batches: 1, Events: 1}, Removed: 1}
	if diff := cmp.Diff(want, repaired); diff != "" {
		t.Errorf("repaired (-want +got):\n%s", diff)
	}
}
