package buffertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var deferredCases = []testCase{
	{name: "deferred/address is stored while the outage lasts", run: deferredStored},
	{name: "deferred/lists unavailable addresses", run: deferredLists},
	{name: "deferred/retries one address, soonest first", run: deferredOnly},
	{name: "deferred/retries only waiting batches that are not due", run: deferredWaiting},
	{name: "deferred/ignores an address without an outage", run: deferredRefused},
	{name: "deferred/retries what a sink refused that refused everything", run: deferredHeld},
	{name: "deferred/makes everything due on request", run: deferredAll},
}

// outage settles the batch as waiting for an address.
func outage(t *testing.T, b buffer.Queue, batch *buffer.Lease, address string, after time.Duration) {
	t.Helper()
	o := retry(batch, after)
	o.Outages, o.Address, o.Error = 1, &address, "connection refused"
	settle(t, b, batch, o)
}

func retryNow(t *testing.T, b buffer.Queue, address string, limit, want int) {
	t.Helper()
	n, err := b.RetryNow(t.Context(), address, limit)
	ok(t, "RetryNow", err)
	equal(t, "batches that RetryNow("+address+") made due", n, want)
}

func deferredAddresses(t *testing.T, b buffer.Queue, want ...string) {
	t.Helper()
	got, err := b.DeferredAddresses(t.Context())
	ok(t, "DeferredAddresses", err)
	slices.Sort(got)
	equal(t, "deferred addresses", got, want)
}

func deferredStored(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(4)...)
	b := claim(t, f.Buffer, 10)
	equal(t, "address of a fresh batch", ledgerOf(t, f, b.GroupID).Address, (*string)(nil))
	outage(t, f.Buffer, b, "orders:größe", lease)
	equal(t, "address", ledgerOf(t, f, b.GroupID).Address, text("orders:größe"))

	b = lose(t, f, b, f.Buffer)
	left, right := buffer.NewGroupID(), buffer.NewGroupID()
	settle(t, f.Buffer, b, delivered(ids[0]),
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[1:3], GroupID: left, After: lease, Outages: 1, Address: text("")},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[3:], GroupID: right, After: lease, Attempts: 1})
	equal(t, "address of a part that waits for the sink", ledgerOf(t, f, left).Address, text(""))
	equal(t, "address of a part that was refused", ledgerOf(t, f, right).Address, (*string)(nil))

	f.ExpireLease(t, left, time.Second)
	b = takeOver(t, f.Buffer)
	equal(t, "batch taken over", b.GroupID, left)
	settle(t, f.Buffer, b, retry(b, lease))
	equal(t, "address after a refusal", ledgerOf(t, f, left).Address, (*string)(nil))
	deferredAddresses(t, f.Buffer)
}

func deferredLists(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	deferredAddresses(t, f.Buffer)
	f.Insert(t, orders(6)...)
	n.Insert(t, orders(1)...)
	for _, address := range []string{"b", "a", "a", ""} {
		outage(t, f.Buffer, claim(t, f.Buffer, 1), address, lease)
	}
	b := claim(t, f.Buffer, 1)
	settle(t, f.Buffer, b, retry(b, lease))
	outage(t, n.Buffer, claim(t, n.Buffer, 1), "c", lease)
	deferredAddresses(t, f.Buffer, "", "a", "b")
	deferredAddresses(t, f.Second(t), "", "a", "b")
	deferredAddresses(t, n.Buffer, "c")

	retryNow(t, f.Buffer, "b", 0, 1)
	deferredAddresses(t, f.Buffer, "", "a", "b") // it waits until it is taken over
	b = takeOver(t, f.Buffer)
	deferredAddresses(t, f.Buffer, "", "a")
	settle(t, f.Buffer, b, delivered())
	deferredAddresses(t, f.Buffer, "", "a")
}

func deferredOnly(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	f.Insert(t, orders(6)...)
	n.Insert(t, orders(1)...)
	put := func(address string, after time.Duration) *buffer.Lease {
		b := claim(t, f.Buffer, 1)
		outage(t, f.Buffer, b, address, after)
		return b
	}
	third, first, second := put("a", 3*lease), put("a", lease), put("a", 2*lease)
	other, sink := put("b", lease), put("", lease)
	refused := claim(t, f.Buffer, 1)
	settle(t, f.Buffer, refused, retry(refused, lease))
	neighbour := claim(t, n.Buffer, 1)
	outage(t, n.Buffer, neighbour, "a", lease)
	takeOverNone(t, f.Buffer)

	for _, want := range []*buffer.Lease{first, second} {
		retryNow(t, f.Buffer, "a", 1, 1)
		b := takeOver(t, f.Second(t))
		equal(t, "batch made due", b.GroupID, want.GroupID)
		equal(t, "starts and outages", []int{b.UnfinishedLeases, b.Outages}, []int{1, 1})
		takeOverNone(t, f.Buffer)
		settle(t, f.Buffer, b, delivered())
	}
	retryNow(t, f.Buffer, "a", 1, 1)
	retryNow(t, f.Buffer, "a", 0, 0)
	equal(t, "batch made due", takeOver(t, f.Buffer).GroupID, third.GroupID)
	retryNow(t, f.Buffer, "A", 0, 0)
	retryNow(t, f.Buffer, "", 0, 1)
	equal(t, "batch made due", takeOver(t, f.Buffer).GroupID, sink.GroupID)
	for _, b := range []*buffer.Lease{other, refused, neighbour} {
		row := ledgerOf(t, f, b.GroupID)
		equal(t, "state", row.State, "waiting")
		about(t, "due_at of a batch that waits for another reason", row.DueIn, lease)
	}
	takeOverNone(t, f.Buffer)
	takeOverNone(t, n.Buffer)
}

func deferredWaiting(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := f.Insert(t, orders(8)...)
	var batches []*buffer.Lease
	for range 4 {
		b := claim(t, f.Buffer, 2)
		outage(t, f.Buffer, b, "a", lease)
		batches = append(batches, b)
	}
	leased := lose(t, f, batches[0], f.Buffer)
	marked := lose(t, f, batches[1], f.Buffer)
	ok(t, "MarkDelivered", f.Buffer.MarkDelivered(t.Context(), marked, ids[2:3]))
	f.ExpireLease(t, marked.GroupID, -lease)
	f.ExpireLease(t, batches[2].GroupID, time.Minute)

	retryNow(t, f.Buffer, "a", 1, 0) // one is due
	retryNow(t, f.Buffer, "a", 0, 1)
	about(t, "due_at of what is leased", ledgerOf(t, f, leased.GroupID).DueIn, lease)
	about(t, "due_at of what is marked", ledgerOf(t, f, marked.GroupID).DueIn, lease)
	for _, want := range batches[2:] { // a batch that was due keeps its due_at
		equal(t, "batch taken over", takeOver(t, f.Buffer).GroupID, want.GroupID)
	}
	takeOverNone(t, f.Buffer)
}

// deferredRefused: a refusal without an address keeps the batch's earlier one.
func deferredRefused(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	refused, waits := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1)
	outage(t, f.Buffer, refused, "a", lease)
	outage(t, f.Buffer, waits, "b", lease)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_batches SET outages = 0, attempts = 1 WHERE group_id = '%s'", refused.GroupID))
	deferredAddresses(t, f.Buffer, "b")
	retryNow(t, f.Buffer, "a", 0, 0)
	takeOverNone(t, f.Buffer)
	retryNow(t, f.Buffer, "b", 0, 1)
	equal(t, "batch made due", takeOver(t, f.Buffer).GroupID, waits.GroupID)
}

// deferredHeld: the batches that a sink refused while it refused everything are made due, and no others.
func deferredHeld(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	ids := f.Insert(t, orders(8)...)
	n.Insert(t, orders(1)...)
	held := func(ids []int64) buffer.Outcome {
		return buffer.Outcome{
			Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID(), After: lease, Attempts: 1, Address: text(""), Error: "400 Bad Request",
		}
	}
	whole, parts, refused, waits := claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 2), claim(t, f.Buffer, 1)
	all := held(ids[:2])
	settle(t, f.Buffer, whole, all)
	first, second := held(ids[2:3]), held(ids[3:4])
	second.Address = nil
	settle(t, f.Buffer, parts, first, second)
	settle(t, f.Buffer, refused, retry(refused, lease))
	outage(t, f.Buffer, waits, "", lease)
	neighbour := claim(t, n.Buffer, 1)
	elsewhere := held(neighbour.IDs())
	settle(t, n.Buffer, neighbour, elsewhere)
	equal(t, "origins", ledgerOf(t, f, all.GroupID).Origins, []uuid.UUID{whole.GroupID})
	deferredAddresses(t, f.Buffer, "")
	takeOverNone(t, f.Buffer)

	made, err := f.Second(t).RetryRefused(t.Context())
	ok(t, "RetryRefused", err)
	equal(t, "batches made due", made, 2)
	for range 2 {
		b := takeOver(t, f.Buffer)
		if b.GroupID != all.GroupID && b.GroupID != first.GroupID {
			t.Errorf("batch %v of %v was made due", b.GroupID, b.IDs())
		}
		equal(t, "attempts and outages", []int{b.Attempts, b.Outages}, []int{1, 0})
		settle(t, f.Buffer, b, delivered())
	}
	takeOverNone(t, f.Buffer)
	takeOverNone(t, n.Buffer)
	made, err = f.Buffer.RetryRefused(t.Context())
	ok(t, "RetryRefused", err)
	equal(t, "batches made due again", made, 0)
}

// deferredAll: an operator's request makes all waiting batches due. It stays readable for a minute, because a relay may take them all before another one
// reads it, and while they wait.
func deferredAll(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	f.Insert(t, orders(6)...)
	n.Insert(t, orders(1)...)
	request := func(want string) {
		t.Helper()
		got, err := f.Second(t).RetryRequest(t.Context())
		ok(t, "RetryRequest", err)
		equal(t, "the request", got, want)
	}
	all := func(name string, want int) {
		t.Helper()
		waiting, err := f.Second(t).RetryAll(t.Context(), name)
		ok(t, "RetryAll", err)
		equal(t, "batches that RetryAll made due", waiting, want)
	}
	first, second := buffer.NewRetryRequest(), buffer.NewRetryRequest()
	forget := func() {
		f.Exec(t, "UPDATE outbox_buffers SET retry_at = '2026-01-02 03:04:05Z' WHERE retry_at IS NOT NULL")
	}
	request("")
	all(first, 0)
	request(first)
	refused, waits, pause, leased := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1), claim(t, f.Buffer, 1), claim(t, f.Buffer, 1)
	settle(t, f.Buffer, refused, retry(refused, lease))
	outage(t, f.Buffer, waits, "a", lease)
	o := retry(pause, lease)
	o.Attempts, o.Outages, o.Error = 0, 3, "429"
	settle(t, f.Buffer, pause, o)
	neighbour := claim(t, n.Buffer, 1)
	outage(t, n.Buffer, neighbour, "a", lease)
	s, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	equal(t, "reasons to wait", len(s.Waits), 3)
	for _, w := range s.Waits {
		equal(t, "batches and events that wait for "+w.Error, []int64{w.Batches, w.Events}, []int64{1, 1})
		about(t, "the first is due in", w.First, lease)
		about(t, "the last is due in", w.Last, lease)
	}

	all(first, 3)
	all(second, 3)
	request(second)
	forget()
	request(second) // they wait
	all(second, 3)
	taken := map[uuid.UUID]bool{}
	for range 3 {
		b := takeOver(t, f.Buffer)
		taken[b.GroupID] = true
		settle(t, f.Buffer, b, retry(b, lease))
	}
	takeOverNone(t, f.Buffer)
	takeOverNone(t, n.Buffer)
	equal(t, "batches that were made due", len(taken), 3)
	if taken[leased.GroupID] || taken[neighbour.GroupID] {
		t.Error("a batch was made due that does not wait, or is another's")
	}
	request(second)
	of := func(queue buffer.Deferrer, want string) {
		t.Helper()
		got, err := queue.RetryRequest(t.Context())
		ok(t, "RetryRequest", err)
		equal(t, "the request", got, want)
	}
	of(f.Buffer.DeadLetterQueue(), second) // it is one to the whole pipeline
	of(n.Buffer, "")
	forget()
	request("")
}
