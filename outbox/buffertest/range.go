package buffertest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var rangeCases = []testCase{
	{name: "range/leaves events unchanged", rangeOnly: true, run: rangeUntouched},
	{name: "range/gaps between ids stay unclaimed", rangeOnly: true, run: rangeGaps},
	{name: "range/claims locked events", rangeOnly: true, rowLocksOnly: true, run: rangeLocked},
	{name: "range/spares late commits between its ids", rangeOnly: true, rowLocksOnly: true, run: rangeLate},
	{name: "range/stale cursor claims no leased event", rangeOnly: true, run: rangeBehind},
	{name: "range/accepts ids chosen by hand", rangeOnly: true, run: rangeByHand},
	{name: "range/backlog excludes leased events", rangeOnly: true, run: rangeBacklog},
}

// unstamped expects that no event carries a group_id.
func unstamped(t *testing.T, f *Fixture) {
	t.Helper()
	before := f.Rows(t)
	f.Exec(t, "UPDATE "+f.Table+" SET group_id = NULL WHERE group_id IS NOT NULL")
	equal(t, "rows, when no event carries a group_id", f.Rows(t), before)
}

func rangeUntouched(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(8)...)
	b := claim(t, f.Buffer, 10)
	equal(t, "claim of the ledger row", ledgerOf(t, f, b.GroupID).Claim, "range")
	unstamped(t, f)
	left, right := buffer.NewGroupID(), buffer.NewGroupID()
	settle(
		t, f.Buffer, b, delivered(ids[0], ids[4]), buffer.Outcome{Verdict: buffer.Dead, IDs: ids[5:6], Attempts: 1, Error: "refused"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[1], ids[6]}, GroupID: left},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[2], ids[3], ids[7]}, GroupID: right, After: lease},
	)
	unstamped(t, f)
	equal(t, "rows", f.Rows(t), []Row{{ids[1], left}, {ids[2], right}, {ids[3], right}, {ids[6], left}, {ids[7], right}})
	b = takeOver(t, f.Second(t))
	equal(t, "the part that is due", b.IDs(), []int64{ids[1], ids[6]})
	equal(t, "claim of its ledger row", ledgerOf(t, f, left).Claim, "range")
	settle(t, f.Buffer, b, delivered())
	b = lose(t, f, &buffer.Lease{Batch: buffer.Batch{GroupID: right}}, f.Buffer)
	equal(t, "the other part", b.IDs(), []int64{ids[2], ids[3], ids[7]})
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, ids[3:4]))
	b = lose(t, f, b, f.Buffer)
	settle(t, f.Buffer, b, delivered(ids[3]), buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[2], ids[7]}, GroupID: buffer.NewGroupID()})
	claimNone(t, f.Buffer)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	empty(t, f)
}

// rangeGaps inserts events into a batch's gaps by hand, where late commits would appear.
func rangeGaps(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(12)...)
	gaps := []int64{ids[1], ids[2], ids[5], ids[10]}
	for _, id := range gaps {
		f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, id))
	}
	b := claim(t, f.Buffer, 100)
	equal(t, "events claimed", b.IDs(), []int64{ids[0], ids[3], ids[4], ids[6], ids[7], ids[8], ids[9], ids[11]})
	for _, id := range gaps {
		f.Exec(t, fmt.Sprintf("INSERT INTO %s (id, topic, payload) VALUES (%d, 't', '1')", f.Table, id))
	}
	leased := b.IDs()
	b = lose(t, f, b, f.Buffer)
	equal(t, "events taken over", b.IDs(), leased)
	part := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(leased[1:7]...), buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{leased[0], leased[7]}, GroupID: part})
	b = takeOver(t, f.Buffer)
	equal(t, "events of the part", b.IDs(), []int64{leased[0], leased[7]})
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
	equal(t, "rows left", rowIDs(t, f), gaps)
	second := f.Second(t) // counts from the beginning first
	_, err := second.CountBacklog(t.Context(), 100)
	ok(t, "CountBacklog", err)
	b = claim(t, second, 100)
	equal(t, "events claimed in the gaps", b.IDs(), gaps)
	settle(t, second, b, delivered())
	empty(t, f)
}

func rangeLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id = %d", f.Table, ids[0]))
	tx.Exec(t, fmt.Sprintf("UPDATE %s SET topic = topic WHERE id = %d", f.Table, ids[2]))
	b := claim(t, f.Buffer, 10)
	equal(t, "events claimed", b.IDs(), ids)
	tx.Commit(t)
	b = lose(t, f, b, f.Buffer)
	equal(t, "events left", b.IDs(), ids[1:])
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

// rangeLate commits late between the ids of batches that end in every possible way.
func rangeLate(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ends := map[string]func(*buffer.Lease){
		"delivered": func(b *buffer.Lease) { settle(t, f.Buffer, b, delivered()) },
		"buried": func(b *buffer.Lease) {
			settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Dead, Attempts: 1, Error: "refused"})
		},
		"marked": func(b *buffer.Lease) {
			ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), b, b.IDs()))
			settle(t, f.Buffer, lose(t, f, b, f.Buffer), delivered())
		},
		"retried": func(b *buffer.Lease) {
			settle(t, f.Buffer, b, retry(b, 0))
			settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
		},
		"split": func(b *buffer.Lease) {
			settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, IDs: b.IDs(), GroupID: buffer.NewGroupID()})
			settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
		},
	}
	for end, endIt := range ends {
		late := f.Begin(t)
		defer late.Rollback(t)
		first := f.Insert(t, orders(1)...)
		lateIDs := late.Insert(t, orders(2)...)
		last := f.Insert(t, orders(1)...)
		b := claim(t, f.Buffer, 10)
		equal(t, end+": events claimed", b.IDs(), []int64{first[0], last[0]})
		late.Commit(t)
		endIt(b)
		equal(t, end+": rows left", f.Rows(t), []Row{{ID: lateIDs[0]}, {ID: lateIDs[1]}})
		var got []int64
		eventually(t, end+": claim of those that were late", func(ctx context.Context) bool {
			_, err := f.Buffer.CountBacklog(ctx, 10)
			ok(t, "CountBacklog", err)
			b, err := f.Buffer.Claim(ctx, 10, lease)
			ok(t, "Claim", err)
			if b != nil {
				got = append(got, b.IDs()...)
				settle(t, f.Buffer, b, delivered())
			}
			return len(got) >= len(lateIDs)
		})
		equal(t, end+": events claimed late", got, lateIDs)
		empty(t, f)
	}
}

func rangeBehind(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	second := f.Second(t)
	ids := f.Insert(t, orders(100)...)
	b := claim(t, second, 1) // its cursor stays here
	for at := 1; at < 61; at += 20 {
		equal(t, "events claimed", claim(t, f.Buffer, 20).IDs(), ids[at:at+20])
	}
	settle(t, second, b, delivered())
	first := lose(t, f, &buffer.Lease{Batch: buffer.Batch{GroupID: f.Rows(t)[0].GroupID}}, f.Buffer) // a gap in the leased ids
	settle(t, f.Buffer, first, delivered())
	equal(t, "events claimed from far behind", claim(t, second, 20).IDs(), ids[61:81])
	equal(t, "events claimed", claim(t, f.Buffer, 100).IDs(), ids[81:])
	claimNone(t, second)
	claimNone(t, f.Buffer)
	var leased []int64
	for _, r := range f.Ledger(t) {
		b := lose(t, f, &buffer.Lease{Batch: buffer.Batch{GroupID: r.GroupID}}, second)
		leased = append(leased, b.IDs()...)
		settle(t, second, b, delivered())
	}
	slices.Sort(leased)
	equal(t, "events of all batches", leased, ids[21:])
	empty(t, f)
}

func rangeByHand(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(3)...)
	byHand := func(id int64) {
		f.Exec(t, fmt.Sprintf("INSERT INTO %s (id, topic, payload) VALUES (%d, 'by hand', '1')", f.Table, id))
	}
	beyond := ids[2] + 500 // not enough to make range ineligible
	byHand(beyond)
	first := claim(t, f.Buffer, 10)
	equal(t, "events claimed", first.IDs(), append(ids, beyond))
	second := f.Second(t)
	more := f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 1)
	equal(t, "events claimed after an id far beyond", b.IDs(), more[:1])
	b2 := claim(t, second, 10)
	equal(t, "events claimed from the beginning", b2.IDs(), more[1:])
	claimNone(t, f.Buffer)
	claimNone(t, second)
	settle(t, f.Buffer, first, delivered())
	settle(t, f.Buffer, b, delivered())

	byHand(ids[1]) // below the floor
	third := f.Second(t)
	eventually(t, "claim of the one below", func(ctx context.Context) bool {
		_, err := third.CountBacklog(ctx, 10)
		ok(t, "CountBacklog", err)
		b, err = third.Claim(ctx, 10, lease)
		ok(t, "Claim", err)
		return b != nil
	})
	equal(t, "events claimed below", b.IDs(), ids[1:2])
	settle(t, third, b, delivered())
	settle(t, second, b2, delivered())
	empty(t, f)
}

func rangeBacklog(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	second := f.Second(t)
	f.Insert(t, orders(10)...)
	b := claim(t, f.Buffer, 4)
	settle(t, f.Buffer, b, retry(b, lease))
	claim(t, f.Buffer, 3)
	for range 3 { // the first one counts from the beginning, the others from the watermarks
		for _, each := range []buffer.Buffer{f.Buffer, second} {
			backlog, err := each.CountBacklog(t.Context(), 100)
			ok(t, "CountBacklog", err)
			equal(t, "backlog", backlog, buffer.Backlog{Unclaimed: 3, Waiting: 1})
			s, err := each.Status(t.Context())
			ok(t, "Status", err)
			equal(t, "pending", s.Pending, int64(10))
		}
	}
	f.ExpireLease(t, b.GroupID, time.Second)
	backlog, err := second.CountBacklog(t.Context(), 0)
	ok(t, "CountBacklog", err)
	equal(t, "backlog", backlog, buffer.Backlog{Waiting: 1, Due: 1})
	audit(t, second, buffer.Audit{
		Unclaimed: 3, Leased: buffer.Count{Batches: 1, Events: 3}, Waiting: buffer.Count{Batches: 1, Events: 4},
	})
}
