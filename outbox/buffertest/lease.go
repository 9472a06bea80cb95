package buffertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var leaseCases = []testCase{
	{name: "lease/is renewed", run: leaseRenewed},
	{name: "lease/is taken over only after it ended", run: leaseTakenOver},
	{name: "lease/longest due is taken over first", run: leaseDueLongest},
	{name: "lease/expired owner settles if no take over came first", run: leaseExpired},
	{name: "lease/fences a former owner", run: leaseLost},
	{name: "lease/ends with the settle", run: leaseSettled},
	{name: "lease/counts unfinished leases, attempts and outages", run: leaseCounts},
	{name: "lease/suspects are taken over apart", run: leaseSuspects},
	{name: "lease/the newest is taken over first", run: leaseNewest},
	{name: "lease/the smallest is taken over first", run: leaseSmallest},
	{name: "lease/a single event is taken over first", run: leaseSingle},
	{name: "lease/unreadable batch is put back", relayTableOnly: true, run: leaseUnreadable},
	{name: "lease/concurrent takeovers take different batches", run: leaseTogether},
	{name: "lease/takeover skips locked batches", rowLocksOnly: true, run: leaseLocked},
}

func leaseRenewed(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 10)
	before := time.Now()
	ok(t, "Renew", f.Buffer.Renew(t.Context(), b, 3*lease))
	after := time.Now()
	if b.Ends.Before(before.Add(3*lease-time.Second)) || b.Ends.After(after.Add(3*lease)) {
		t.Fatalf("the renewed lease ends %v after the renewal, want %v", b.Ends.Sub(before), 3*lease)
	}
	row := ledgerOf(t, f, b.GroupID)
	about(t, "due_at of a renewed lease", row.DueIn, 3*lease)
	equal(t, "lease_no", []int64{row.LeaseNo, b.LeaseNo}, []int64{1, 1})

	f.ExpireLease(t, b.GroupID, time.Second)
	ok(t, "Renew of an expired lease", f.Buffer.Renew(t.Context(), b, lease))
	takeOverNone(t, f.Second(t))
}

func leaseTakenOver(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	second := f.Second(t)
	ids := f.Insert(t, orders(3)...)
	b := claim(t, f.Buffer, 10)
	owner := ledgerOf(t, f, b.GroupID).Owner
	takeOverNone(t, second)
	takeOverNone(t, f.Buffer)

	f.ExpireLease(t, b.GroupID, time.Second)
	claimNone(t, second) // a stamp stays
	before := time.Now()
	taken := takeOver(t, second)
	after := time.Now()
	equal(t, "group_id", taken.GroupID, b.GroupID)
	equal(t, "pipeline", taken.Pipeline, f.Pipeline)
	equal(t, "events", taken.Events, b.Events)
	equal(t, "lease_no and unfinished_leases", []int64{taken.LeaseNo, int64(taken.UnfinishedLeases)}, []int64{2, 2})
	equal(t, "first and last id", []int64{taken.FirstID, taken.LastID}, []int64{ids[0], ids[2]})
	equal(t, "origins", taken.Origins, []uuid.UUID(nil))
	if taken.DeliveryRecorded() {
		t.Fatalf("the batch is marked delivered, but MarkDelivered was not called")
	}
	if taken.Ends.Before(before.Add(lease-time.Second)) || taken.Ends.After(after.Add(lease)) {
		t.Fatalf("the lease ends %v after the take over, want %v", taken.Ends.Sub(before), lease)
	}
	about(t, "age of an event", taken.Age(&taken.Events[0]), 0)
	row := ledgerOf(t, f, b.GroupID)
	about(t, "due_at", row.DueIn, lease)
	if row.Owner == owner || row.Owner == "" {
		t.Fatalf("the ledger names owner %q after the take over, it was %q before", row.Owner, owner)
	}
	takeOverNone(t, f.Buffer)
	settle(t, second, taken, delivered())
	empty(t, f)
}

func leaseDueLongest(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(4)...)
	var batches []*buffer.Lease
	for range 4 {
		batches = append(batches, claim(t, f.Buffer, 1))
	}
	for i, ago := range []time.Duration{20 * time.Second, 40 * time.Second, 10 * time.Second, 30 * time.Second} {
		f.ExpireLease(t, batches[i].GroupID, ago)
	}
	for _, i := range []int{1, 3, 0, 2} {
		equal(t, "batch taken over", takeOver(t, f.Buffer).GroupID, batches[i].GroupID)
	}
	takeOverNone(t, f.Buffer)
}

func leaseExpired(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	b := claim(t, f.Buffer, 10)
	f.ExpireLease(t, b.GroupID, time.Minute)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

// stale calls every method of an owner and expects that nothing changes.
func stale(t *testing.T, f *Fixture, owner buffer.Buffer, b *buffer.Lease) {
	t.Helper()
	ids := b.IDs()
	attempts := map[string]func() error{
		"Renew":               func() error { return owner.Renew(t.Context(), b, lease) },
		"MarkDelivered":       func() error { return owner.MarkDelivered(t.Context(), b, ids) },
		"Settle of delivered": func() error { return owner.Settle(t.Context(), b, []buffer.Outcome{delivered()}) },
		"Settle of dead": func() error {
			return owner.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}})
		},
		"Settle of retry": func() error {
			return owner.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: b.GroupID, Attempts: 9}})
		},
		"Settle of parts": func() error {
			return owner.Settle(t.Context(), b, []buffer.Outcome{
				delivered(ids[0]),
				{Verdict: buffer.Dead, IDs: ids[1:2], Attempts: 1, Error: "refused"},
				{Verdict: buffer.Retry, IDs: ids[2:], GroupID: buffer.NewGroupID()},
			})
		},
	}
	for what, act := range attempts {
		end := b.Ends
		untouched(t, f, what+" of a lost lease", func() { fails(t, what, act(), buffer.ErrLeaseLost) })
		equal(t, what+": LeaseEnd", b.Ends, end)
	}
}

func leaseLost(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	second := f.Second(t)
	f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	taken := lose(t, f, b, second)
	stale(t, f, f.Buffer, b)

	// The same process may be both the old owner and the new one.
	again := lose(t, f, taken, second)
	stale(t, f, second, taken)

	ok(t, "MarkDelivered", second.MarkDelivered(t.Context(), again, again.IDs()[:1]))
	stale(t, f, second, taken)
	settle(t, second, again, delivered())
	stale(t, f, f.Buffer, b)
	empty(t, f)
}

func leaseSettled(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, After: lease})
	stale(t, f, f.Buffer, b) // it waits and has no owner

	taken := lose(t, f, b, f.Buffer)
	ids := taken.IDs()
	part := buffer.NewGroupID()
	settle(t, f.Buffer, taken, delivered(ids[:2]...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: part})
	stale(t, f, f.Buffer, taken)
	stale(t, f, f.Buffer, b)
	settle(t, f.Buffer, takeOver(t, f.Buffer), delivered())
	empty(t, f)
}

func leaseCounts(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(2)...)
	counts := func(what string, b *buffer.Lease, starts, attempts, outages int) {
		t.Helper()
		want := []int{starts, attempts, outages}
		equal(t, what+": starts, attempts, outages", []int{b.UnfinishedLeases, b.Attempts, b.Outages}, want)
		row := ledgerOf(t, f, b.GroupID)
		equal(t, what+": starts, attempts, outages in the ledger", []int{row.UnfinishedLeases, row.Attempts, row.Outages}, want)
		equal(t, what+": lease_no in the ledger", row.LeaseNo, b.LeaseNo)
	}
	b := claim(t, f.Buffer, 10)
	counts("claimed", b, 1, 0, 0)
	b = lose(t, f, b, f.Buffer)
	counts("taken over", b, 2, 0, 0)
	b = lose(t, f, b, f.Buffer)
	counts("taken over twice", b, 3, 0, 0)

	settle(t, f.Buffer, b, buffer.Outcome{Verdict: buffer.Retry, GroupID: b.GroupID, Attempts: 2, Outages: 5, Error: "refused"})
	row := ledgerOf(t, f, b.GroupID)
	equal(t, "starts of a batch that waits", row.UnfinishedLeases, 0)
	equal(t, "error of a batch that waits", row.Error, "refused")
	b = takeOver(t, f.Buffer)
	counts("retried", b, 1, 2, 5)
	equal(t, "lease_no", b.LeaseNo, int64(4))
	b = lose(t, f, b, f.Buffer)
	counts("retried and taken over", b, 2, 2, 5)

	part := buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(ids[0]), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:], GroupID: part, Attempts: 3})
	equal(t, "lease_no and unfinished_leases of a part that waits", []int64{ledgerOf(t, f, part).LeaseNo, int64(ledgerOf(t, f, part).UnfinishedLeases)}, []int64{0, 0})
	b = takeOver(t, f.Buffer)
	counts("a part", b, 1, 3, 0)
	equal(t, "lease_no of a part", b.LeaseNo, int64(1))
}

func takeOverKind(t *testing.T, b buffer.Queue, due buffer.Due, want *buffer.Lease) *buffer.Lease {
	t.Helper()
	got, err := b.TakeOver(t.Context(), lease, due)
	ok(t, "TakeOver", err)
	if want == nil && got == nil {
		return nil
	}
	if want == nil || got == nil || got.GroupID != want.GroupID {
		t.Fatalf("TakeOver(%v): got %+v, want %+v", due, got, want)
	}
	return got
}

// Of the batches that are due, those that were refused least often come first, and of them the newest.
func leaseNewest(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(8)...)
	first, second, third, fourth := claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2)
	for _, l := range []*buffer.Lease{fourth, first, third, second} {
		settle(t, f.Buffer, l, buffer.Outcome{Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: map[*buffer.Lease]int{fourth: 1}[l]})
	}
	for _, want := range []*buffer.Lease{third, second, first, fourth} {
		settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueNewest, want), delivered())
	}
	takeOverKind(t, f.Buffer, buffer.DueNewest, nil)
}

// Of the batches that are due, the smallest comes first, and of several such the earliest.
func leaseSmallest(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(9)...)
	large, first, second, single := claim(t, f.Buffer, 4), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 1)
	for _, l := range []*buffer.Lease{large, second, single, first} {
		settle(t, f.Buffer, l, buffer.Outcome{Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: map[*buffer.Lease]int{single: 2}[l]})
	}
	for _, want := range []*buffer.Lease{single, first, second} {
		settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueSmallest, want), delivered())
	}
	settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueSmallest, large), delivered())
	takeOverKind(t, f.Buffer, buffer.DueSmallest, nil)
}

// Of the batches that are due, those that were refused least often come first, of them single events, and of these the newest.
func leaseSingle(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(7)...)
	first, second, refused, large := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1), claim(t, f.Buffer, 1), claim(t, f.Buffer, 4)
	for _, l := range []*buffer.Lease{first, large, refused, second} {
		settle(t, f.Buffer, l, buffer.Outcome{Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: map[*buffer.Lease]int{refused: 1}[l]})
	}
	for _, want := range []*buffer.Lease{second, first, large, refused} {
		settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueSingle, want), delivered())
	}
	takeOverKind(t, f.Buffer, buffer.DueSingle, nil)
}

func leaseSuspects(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(8)...)
	unfinished, retried, marked, halved := claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2)
	f.ExpireLease(t, unfinished.GroupID, time.Hour)
	// One unfinished lease makes no suspect: whatever ends a process does that to all that it had in flight.
	f.ExpireLease(t, takeOverKind(t, f.Buffer, buffer.DueRetry, unfinished).GroupID, time.Hour)
	settle(t, f.Buffer, retried, retry(retried, 0))
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), marked, ids[4:6]))
	f.ExpireLease(t, marked.GroupID, time.Second)
	countBacklog(t, f.Buffer, 0, buffer.Backlog{Due: 2, Suspects: 1, Waiting: 1, Delivered: 1})

	// A batch marked delivered is no suspect, however often its delete failed.
	f.ExpireLease(t, takeOverKind(t, f.Buffer, buffer.DueRetry, marked).GroupID, 2*time.Second)
	settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueRetry, marked), delivered())
	settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueRetry, retried), delivered())
	takeOverKind(t, f.Buffer, buffer.DueRetry, nil)

	// A retry keeps the count that its outcome names.
	again := takeOverKind(t, f.Second(t), buffer.DueSuspect, unfinished)
	equal(t, "unfinished leases", again.UnfinishedLeases, 3)
	kept := retry(again, 0)
	kept.UnfinishedLeases = 2
	settle(t, f.Second(t), again, kept)
	takeOverKind(t, f.Buffer, buffer.DueRetry, nil)
	again = takeOverKind(t, f.Buffer, buffer.DueSuspect, unfinished)
	equal(t, "unfinished leases that were kept", again.UnfinishedLeases, 3)
	settle(t, f.Buffer, again, retry(again, 0))
	settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueRetry, unfinished), delivered())

	half := func(ids []int64, unfinished int) *buffer.Lease {
		o := buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID(), UnfinishedLeases: unfinished}
		settle(t, f.Buffer, halved, delivered(halved.IDs()[0]), o)
		return &buffer.Lease{Batch: buffer.Batch{GroupID: o.GroupID}}
	}
	suspect := half(ids[7:], 2)
	takeOverKind(t, f.Buffer, buffer.DueRetry, nil)
	settle(t, f.Buffer, takeOverKind(t, f.Buffer, buffer.DueSuspect, suspect), delivered())
	empty(t, f)
}

// leaseUnreadable has a batch that is taken over and cannot be read: it is returned without its events, so that it is put
// back with the count that it had. A lease that only ends would count as a death of its owner.
func leaseUnreadable(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	first := claim(t, f.Buffer, 10)
	f.ExpireLease(t, first.GroupID, time.Minute)
	f.Exec(t, "ALTER TABLE "+f.Table+" RENAME TO away")
	b := takeOverKind(t, f.Buffer, buffer.DueRetry, first)
	if b.NotRead == nil || b.UnfinishedLeases != 2 {
		t.Fatalf("took over %+v; want a batch that was not read", b)
	}
	f.Exec(t, "ALTER TABLE away RENAME TO "+f.Table)
	back := retry(b, 0)
	back.UnfinishedLeases = 1
	settle(t, f.Buffer, b, back)
	b = takeOver(t, f.Buffer)
	equal(t, "events and unfinished leases", []int{b.Len(), b.UnfinishedLeases}, []int{2, 2})
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func leaseTogether(t *testing.T, h Harness) {
	const batches = 40
	f := h.Open(t, Options{})
	buffers := []buffer.Buffer{f.Buffer, f.Second(t)}
	f.Insert(t, orders(batches)...)
	for range batches {
		f.ExpireLease(t, claim(t, f.Buffer, 1).GroupID, time.Minute)
	}
	var (
		mu    sync.Mutex
		taken = map[uuid.UUID]bool{}
	)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		g.Go(func() error {
			for {
				mu.Lock()
				all := len(taken) == batches
				mu.Unlock()
				if all {
					return nil
				}
				b, err := buffers[i%2].TakeOver(ctx, lease, buffer.DueRetry)
				if err != nil {
					return err
				}
				if b == nil {
					continue // others hold the remaining batches
				}
				mu.Lock()
				twice := taken[b.GroupID]
				taken[b.GroupID] = true
				mu.Unlock()
				if twice || b.LeaseNo != 2 || len(b.Events) != 1 {
					return fmt.Errorf("batch %s taken over twice: %t; lease_no %d, events %v", b.GroupID, twice, b.LeaseNo, b.IDs())
				}
			}
		})
	}
	ok(t, "taking over together", g.Wait())
	takeOverNone(t, f.Buffer)
}

func leaseLocked(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	first, second := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1)
	f.ExpireLease(t, first.GroupID, time.Minute)
	f.ExpireLease(t, second.GroupID, time.Second)
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Exec(t, fmt.Sprintf("UPDATE outbox_batches SET owner = owner WHERE group_id = '%s'", first.GroupID))
	equal(t, "batch taken over while the other is locked", takeOver(t, f.Buffer).GroupID, second.GroupID)
	takeOverNone(t, f.Buffer)
	tx.Rollback(t)
	eventually(t, "take over of a batch that was locked", func(ctx context.Context) bool {
		b, err := f.Buffer.TakeOver(ctx, lease, buffer.DueRetry)
		ok(t, "TakeOver", err)
		return b != nil && b.GroupID == first.GroupID
	})
}
