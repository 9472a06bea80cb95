package buffertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var delayedCases = []testCase{
	{name: "delayed/is claimed when it is available, not before", delays: true, run: delayedUntil},
	{name: "delayed/holds up no other event", delays: true, run: delayedAlone},
	{name: "delayed/is found below the cursor by every relay", delays: true, run: delayedFound},
	{name: "delayed/with a time that has passed is claimed at once", delays: true, run: delayedPast},
	{name: "delayed/commits after it is available", delays: true, rowLocksOnly: true, run: delayedLate},
	{name: "delayed/is in one batch until it is settled", delays: true, run: delayedOnce},
	{name: "delayed/can be put off, moved up and deleted", delays: true, run: delayedEdited},
	{name: "delayed/is divided, retried and buried like others", delays: true, run: delayedFails},
	{name: "delayed/ids far apart are different batches", delays: true, run: delayedScattered},
	{name: "delayed/is no backlog in status and audit", delays: true, run: delayedStatus},
	{name: "delayed/that is due and not claimed is pending", delays: true, run: delayedPending},
	{name: "delayed/holds no key", delays: true, relayTableOnly: true, run: delayedKey},
	{name: "delayed/of a blocked key hold up no other key", delays: true, relayTableOnly: true, run: delayedBlocked},
}

// never is a time that no case sees.
const never = 100 * time.Hour

// delay makes events that are available so much later.
func delay(by time.Duration, events ...outbox.Event) []outbox.Event {
	at := time.Now().Add(by) // one time, so that they are claimed together
	for i := range events {
		events[i].AvailableAt = at
	}
	return events
}

// claimAvailable counts until there is something to claim, and claims it. No event is claimed before its time.
func claimAvailable(t *testing.T, b buffer.Queue, until map[int64]time.Time) *buffer.Lease {
	t.Helper()
	var batch *buffer.Lease
	testkit.Eventually(t, func() error {
		backlog, err := b.CountBacklog(t.Context(), 1000)
		ok(t, "CountBacklog", err)
		if backlog.Unclaimed == 0 {
			return fmt.Errorf("nothing is counted; the next is available in %v", backlog.NextDelayed)
		}
		if batch, err = b.Claim(t.Context(), 1000, lease); err != nil || batch == nil {
			return fmt.Errorf("%d are counted and none is claimed: %w", backlog.Unclaimed, err)
		}
		return nil
	})
	for _, id := range batch.IDs() {
		if at := until[id]; batch.ClaimedAt.Before(at.Add(-time.Millisecond)) {
			t.Fatalf("event %d was claimed at %v, before %v", id, batch.ClaimedAt, at)
		}
	}
	return batch
}

func delayedUntil(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	events := delay(3*time.Second, orders(2)...)
	ids := f.Insert(t, events...)
	far := f.Insert(t, delay(never, orders(1)...)...)
	claimNone(t, f.Buffer)
	backlog, err := f.Buffer.CountBacklog(t.Context(), 100)
	ok(t, "CountBacklog", err)
	if backlog.Unclaimed == 0 && (backlog.NextDelayed <= 0 || backlog.NextDelayed > 3*time.Second) {
		t.Fatalf("the next is available in %v, want 3 s at most", backlog.NextDelayed)
	}
	b := claimAvailable(t, f.Buffer, map[int64]time.Time{ids[0]: events[0].AvailableAt, ids[1]: events[1].AvailableAt})
	equal(t, "events claimed", b.IDs(), ids)
	settle(t, f.Buffer, b, delivered())
	claimNone(t, f.Buffer)
	equal(t, "rows left", f.Rows(t), []Row{{ID: far[0]}})
	equal(t, "ledger", len(f.Ledger(t)), 0)
}

func delayedAlone(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	var want []int64
	for range 5 {
		f.Insert(t, delay(never, orders(7)...)...)
		want = append(want, f.Insert(t, orders(3)...)...)
	}
	f.Insert(t, delay(never, orders(7)...)...)
	countBacklogUnclaimed(t, f.Buffer, 15)
	equal(t, "first", claim(t, f.Buffer, 8).IDs(), want[:8])
	equal(t, "second", claim(t, f.Buffer, 8).IDs(), want[8:])
	claimNone(t, f.Buffer)
	countBacklogUnclaimed(t, f.Buffer, 0)
	countBacklogUnclaimed(t, f.Second(t), 0)
	peeked, err := f.Buffer.Peek(t.Context(), 10)
	ok(t, "Peek", err)
	if peeked != nil {
		t.Fatalf("peeked at %v", peeked.IDs())
	}
}

func countBacklogUnclaimed(t *testing.T, b buffer.Queue, want int) {
	t.Helper()
	got, err := b.CountBacklog(t.Context(), 1000)
	ok(t, "CountBacklog", err)
	equal(t, "events counted", got.Unclaimed, want)
}

// delayedFound: the cursor, and the floor that is stored, pass what is delayed.
func delayedFound(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	events := delay(4*time.Second, orders(3)...)
	ids := f.Insert(t, events...)
	settle(t, f.Buffer, claim(t, f.Buffer, f.more(t)), delivered())
	for range 4 {
		countBacklogUnclaimed(t, f.Buffer, 0)
	}
	second := f.Second(t)
	countBacklogUnclaimed(t, second, 0)
	until := map[int64]time.Time{}
	for i, id := range ids {
		until[id] = events[i].AvailableAt
	}
	b := claimAvailable(t, f.Buffer, until)
	equal(t, "events claimed", b.IDs(), ids)
	countBacklogUnclaimed(t, second, 0)
	claimNone(t, second)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

// more inserts events that are available, and returns how many.
func (f *Fixture) more(t testing.TB) int {
	return len(f.Insert(t, orders(20)...))
}

func delayedPast(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	for _, ago := range []time.Duration{time.Millisecond, time.Minute, 1000 * time.Hour} {
		countBacklogUnclaimed(t, f.Buffer, 0)
		ids := f.Insert(t, append(orders(1), delay(-ago, orders(2)...)...)...)
		countBacklogUnclaimed(t, f.Buffer, 3)
		b := claim(t, f.Buffer, 10)
		equal(t, "events claimed", b.IDs(), ids)
		settle(t, f.Buffer, b, delivered())
	}
	empty(t, f)
}

// delayedLate: an event may commit when it is available already, after other events have passed its id.
func delayedLate(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	late := f.Begin(t)
	defer late.Rollback(t)
	ids := late.Insert(t, delay(50*time.Millisecond, orders(2)...)...)
	settle(t, f.Buffer, claim(t, f.Buffer, f.more(t)), delivered())
	other := f.Insert(t, delay(50*time.Millisecond, orders(1)...)...)
	b := claimAvailable(t, f.Buffer, nil)
	equal(t, "events claimed", b.IDs(), other)
	settle(t, f.Buffer, b, delivered())
	late.Commit(t)
	b = claimAvailable(t, f.Buffer, nil)
	equal(t, "late events claimed", b.IDs(), ids)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

func delayedOnce(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	second := f.Second(t)
	f.Insert(t, delay(200*time.Millisecond, orders(5)...)...)
	b := claimAvailable(t, f.Buffer, nil)
	for _, other := range []buffer.Buffer{f.Buffer, second, f.Second(t)} {
		for range 3 {
			countBacklogUnclaimed(t, other, 0)
			claimNone(t, other)
		}
	}
	taken := lose(t, f, b, second)
	equal(t, "events taken over", taken.IDs(), b.IDs())
	settle(t, second, taken, delivered())
	empty(t, f)
}

func delayedEdited(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	ids := f.Insert(t, delay(never, orders(3)...)...)
	settle(t, f.Buffer, claim(t, f.Buffer, f.more(t)), delivered())
	for range 4 {
		countBacklogUnclaimed(t, f.Buffer, 0)
	}
	now := f.Insert(t, delay(0, orders(1)...)...)
	f.Exec(t, fmt.Sprintf("UPDATE %s SET available_at = (SELECT available_at FROM %[1]s WHERE id = %d) WHERE id = %d", f.Table, now[0], ids[1]))
	f.Exec(t, fmt.Sprintf("DELETE FROM %s WHERE id IN (%d, %d)", f.Table, ids[2], now[0]))
	b := claimAvailable(t, f.Buffer, nil)
	equal(t, "events claimed", b.IDs(), ids[1:2])
	settle(t, f.Buffer, b, delivered())
	claimNone(t, f.Buffer)
	equal(t, "rows left", f.Rows(t), []Row{{ID: ids[0]}})
}

func delayedFails(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	ids := f.Insert(t, delay(200*time.Millisecond, orders(6)...)...)
	f.Insert(t, delay(never, orders(1)...)...)
	b := claimAvailable(t, f.Buffer, nil)
	group := buffer.NewGroupID()
	settle(
		t, f.Buffer, b, delivered(ids[0], ids[3]), buffer.Outcome{Verdict: buffer.Dead, IDs: ids[1:2], Attempts: 1, Error: "refused"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[2], ids[4], ids[5]}, GroupID: group, Attempts: 1},
	)
	claimNone(t, f.Buffer)
	part := takeOver(t, f.Buffer)
	equal(t, "part", part.IDs(), []int64{ids[2], ids[4], ids[5]})
	settle(t, f.Buffer, part, delivered())
	equal(t, "dead letters", len(f.Dead(t)), 1)
	replayed, err := f.Buffer.Replay(t.Context(), buffer.DeadFilter{}, 10)
	ok(t, "Replay", err)
	equal(t, "replayed", replayed, 1)
	again := takeOverOrClaim(t, f)
	equal(t, "sent again", again.IDs(), ids[1:2])
	settle(t, f.Buffer, again, delivered())
	equal(t, "rows left", len(f.Rows(t)), 1)
}

// takeOverOrClaim takes a replayed event: it may be a batch already.
func takeOverOrClaim(t *testing.T, f *Fixture) *buffer.Lease {
	t.Helper()
	b, err := takeOverAny(t.Context(), f.Buffer)
	ok(t, "TakeOver", err)
	if b != nil {
		return b
	}
	return claimAvailable(t, f.Buffer, nil)
}

func delayedScattered(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	var want []int64
	for range 4 {
		want = append(want, f.Insert(t, delay(500*time.Millisecond, orders(2)...)...)...)
		f.Insert(t, delay(never, orders(1500)...)...)
	}
	var got []int64
	for len(got) < len(want) {
		b := claimAvailable(t, f.Buffer, nil)
		got = append(got, b.IDs()...)
		settle(t, f.Buffer, b, delivered())
	}
	equal(t, "events claimed", got, want)
	claimNone(t, f.Buffer)
}

func delayedStatus(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	f.Insert(t, orders(2)...)
	f.Insert(t, delay(never, orders(3)...)...)
	s, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	equal(t, "pending and delayed", []int64{s.Pending, s.Delayed}, []int64{2, 3})
	if s.NextDelayed < never-time.Hour || s.NextDelayed > never {
		t.Fatalf("the next is available in %v, want %v", s.NextDelayed, never)
	}
	a, err := f.Buffer.Audit(t.Context())
	ok(t, "Audit", err)
	equal(t, "unclaimed and delayed", []int64{a.Unclaimed, a.Delayed}, []int64{2, 3})
	if !a.Agrees() {
		t.Fatalf("the audit finds something: %+v", a)
	}
}

func delayedKey(t *testing.T, h Harness) {
	f := h.Open(t, Options{Ordered: true, Delays: true})
	keyed := func(n int) []outbox.Event {
		events := orders(n)
		for i := range events {
			events[i].Key = text("k")
		}
		return events
	}
	first := f.Insert(t, keyed(1)...)
	ids := f.Insert(t, delay(3*time.Second, keyed(1)...)...)
	next := f.Insert(t, keyed(1)...)
	b := claim(t, f.Buffer, 10)
	equal(t, "events claimed", b.IDs(), []int64{first[0], next[0]})
	testkit.Eventually(t, func() error {
		backlog, err := f.Buffer.CountBacklog(t.Context(), 100)
		ok(t, "CountBacklog", err)
		if backlog.Unclaimed == 0 {
			return fmt.Errorf("nothing is counted")
		}
		return nil
	})
	claimNone(t, f.Buffer) // its key is in a live batch
	settle(t, f.Buffer, b, delivered())
	b = claimAvailable(t, f.Buffer, nil)
	equal(t, "events claimed", b.IDs(), ids)
	settle(t, f.Buffer, b, delivered())
	empty(t, f)
}

// passFloor counts for so long that the floor passes what is not due yet.
func passFloor(t *testing.T, b buffer.Queue, until time.Time) {
	t.Helper()
	testkit.Eventually(t, func() error {
		_, err := b.CountBacklog(t.Context(), 100)
		ok(t, "CountBacklog", err)
		if left := time.Until(until) - 500*time.Millisecond; left > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// delayedPending: events that became available below cursor and floor are pending while nothing claims them, and an age counts from their time.
func delayedPending(t *testing.T, h Harness) {
	f := h.Open(t, Options{Delays: true})
	events := delay(6*time.Second, orders(7)...)
	ids := f.Insert(t, events...)
	f.Insert(t, delay(never, orders(2)...)...)
	settle(t, f.Buffer, claim(t, f.Buffer, f.more(t)), delivered())
	due := events[0].AvailableAt
	passFloor(t, f.Buffer, due)
	testkit.Eventually(t, func() error {
		s, err := f.Buffer.Status(t.Context())
		if err == nil && s.Delayed != 2 {
			err = fmt.Errorf("%d are delayed", s.Delayed)
		}
		return err
	})
	pending := func(when string, of buffer.Buffer, want int64) {
		t.Helper()
		s, err := of.Status(t.Context())
		ok(t, "Status", err)
		equal(t, when+": pending and delayed", []int64{s.Pending, s.Delayed}, []int64{want, 2})
		if age := time.Since(due); want > 0 && !s.AgeUnknown && (s.OldestPending <= 0 || s.OldestPending > age+time.Second) {
			t.Fatalf("%s: the oldest is pending for %v; it became available %v ago", when, s.OldestPending, age)
		}
	}
	status := f.Second(t) // a process that only reads the status
	pending("due", f.Buffer, 7)
	pending("due, another process", status, 7)
	countBacklogUnclaimed(t, f.Buffer, 7)
	b := claim(t, f.Buffer, 3)
	equal(t, "events claimed", b.IDs(), ids[:3])
	pending("partly claimed", f.Buffer, 7)
	pending("partly claimed, another process", status, 7)
	settle(t, f.Buffer, b, delivered())
	pending("partly delivered", f.Buffer, 4)
	a, err := f.Buffer.Audit(t.Context())
	ok(t, "Audit", err)
	equal(t, "unclaimed and delayed", []int64{a.Unclaimed, a.Delayed}, []int64{4, 2})
	b = claimAvailable(t, f.Buffer, nil)
	equal(t, "the others claimed", b.IDs(), ids[3:])
	settle(t, f.Buffer, b, delivered())
	pending("delivered", f.Buffer, 0)
	pending("delivered, another process", status, 0)
}

// delayedBlocked: the key of more events than a look returns is in a batch that waits. Those of another key that became available after them
// are claimed meanwhile, and the others when their key is free.
func delayedBlocked(t *testing.T, h Harness) {
	const blocked, limit = 450, 20
	f := h.Open(t, Options{Ordered: true, Delays: true})
	keyed := func(key string, n int) []outbox.Event {
		events := orders(n)
		for i := range events {
			events[i].Key = text(key)
		}
		return events
	}
	f.Insert(t, keyed("blocked", 1)...)
	head := claim(t, f.Buffer, limit)
	events := delay(6*time.Second, keyed("blocked", blocked)...)
	waits := f.Insert(t, events...)
	free := f.Insert(t, append(delay(6500*time.Millisecond, keyed("free", 3)...), delay(6500*time.Millisecond, keyed("other", 2)...)...)...)
	f.Insert(t, keyed("last", 1)...)
	settle(t, f.Buffer, claim(t, f.Buffer, limit), delivered())
	passFloor(t, f.Buffer, events[0].AvailableAt)

	take := func(what string) *buffer.Lease {
		t.Helper()
		var b *buffer.Lease
		testkit.Eventually(t, func() error {
			_, err := f.Buffer.CountBacklog(t.Context(), 100)
			ok(t, "CountBacklog", err)
			if b, err = f.Buffer.Claim(t.Context(), limit, lease); err == nil && b == nil {
				err = fmt.Errorf("%s: nothing is claimed", what)
			}
			return err
		})
		return b
	}
	b := take("another key")
	equal(t, "events of other keys", b.IDs(), free)
	settle(t, f.Buffer, b, delivered())
	for range 3 { // the key is blocked still
		countBacklogBlocked(t, f.Buffer)
		claimNone(t, f.Buffer)
	}
	for _, of := range []buffer.Buffer{f.Buffer, f.Second(t)} {
		s, err := of.Status(t.Context())
		ok(t, "Status", err)
		equal(t, "pending", s.Pending, int64(blocked+1))
	}
	settle(t, f.Buffer, head, delivered())
	var got []int64
	for len(got) < len(waits) {
		b := take("the key that was blocked")
		claimNone(t, f.Buffer) // it is in flight
		got = append(got, b.IDs()...)
		settle(t, f.Buffer, b, delivered())
	}
	equal(t, "events of the key that was blocked", got, waits)
	empty(t, f)
}

func countBacklogBlocked(t *testing.T, b buffer.Queue) {
	t.Helper()
	got, err := b.CountBacklog(t.Context(), 1000)
	ok(t, "CountBacklog", err)
	if got.Unclaimed == 0 {
		t.Fatal("events that wait for their key are not counted")
	}
}
