package buffertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var wakeCases = []testCase{
	{name: "deferred/address is stored while the outage lasts", run: wakeStored},
	{name: "deferred/lists unavailable addresses", run: wakeAway},
	{name: "deferred/retries one address, soonest first", run: wakeOnly},
	{name: "deferred/retries only waiting batches that are not due", run: wakeWaiting},
	{name: "deferred/ignores an address without an outage", run: wakeRefused},
}

// outage puts the batch back to wait for an address.
func outage(t *testing.T, b batches, batch *buffer.Lease, address string, after time.Duration) {
	t.Helper()
	o := retry(batch, after)
	o.Outages, o.Address, o.Error = 1, &address, "connection refused"
	settle(t, b, batch, o)
}

func wake(t *testing.T, b batches, address string, limit, want int) {
	t.Helper()
	n, err := b.RetryNow(t.Context(), address, limit)
	ok(t, "Wake", err)
	equal(t, "batches that Wake("+address+") made due", n, want)
}

func away(t *testing.T, b batches, want ...string) {
	t.Helper()
	got, err := b.DeferredAddresses(t.Context())
	ok(t, "Away", err)
	slices.Sort(got)
	equal(t, "addresses that are away", got, want)
}

func wakeStored(t *testing.T, h Harness) {
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

	f.Overdue(t, left, time.Second)
	b = takeOver(t, f.Buffer)
	equal(t, "batch taken over", b.GroupID, left)
	settle(t, f.Buffer, b, retry(b, lease))
	equal(t, "address after a refusal", ledgerOf(t, f, left).Address, (*string)(nil))
	away(t, f.Buffer)
}

func wakeAway(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	n := f.Neighbour(t)
	away(t, f.Buffer)
	f.Insert(t, orders(6)...)
	n.Insert(t, orders(1)...)
	for _, address := range []string{"b", "a", "a", ""} {
		outage(t, f.Buffer, claim(t, f.Buffer, 1), address, lease)
	}
	b := claim(t, f.Buffer, 1)
	settle(t, f.Buffer, b, retry(b, lease))
	outage(t, n.Buffer, claim(t, n.Buffer, 1), "c", lease)
	away(t, f.Buffer, "", "a", "b")
	away(t, f.Second(t), "", "a", "b")
	away(t, n.Buffer, "c")

	wake(t, f.Buffer, "b", 0, 1)
	away(t, f.Buffer, "", "a", "b") // it still waits, until somebody takes it
	b = takeOver(t, f.Buffer)
	away(t, f.Buffer, "", "a")
	settle(t, f.Buffer, b, delivered())
	away(t, f.Buffer, "", "a")
}

func wakeOnly(t *testing.T, h Harness) {
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
		wake(t, f.Buffer, "a", 1, 1)
		b := takeOver(t, f.Second(t))
		equal(t, "batch woken", b.GroupID, want.GroupID)
		equal(t, "starts and outages", []int{b.UnfinishedLeases, b.Outages}, []int{1, 1})
		takeOverNone(t, f.Buffer)
		settle(t, f.Buffer, b, delivered())
	}
	wake(t, f.Buffer, "a", 1, 1)
	wake(t, f.Buffer, "a", 0, 0)
	equal(t, "batch woken", takeOver(t, f.Buffer).GroupID, third.GroupID)
	wake(t, f.Buffer, "A", 0, 0)
	wake(t, f.Buffer, "", 0, 1)
	equal(t, "batch woken", takeOver(t, f.Buffer).GroupID, sink.GroupID)
	for _, b := range []*buffer.Lease{other, refused, neighbour} {
		row := ledgerOf(t, f, b.GroupID)
		equal(t, "state", row.State, "waiting")
		about(t, "due_at of a batch that waits for something else", row.DueIn, lease)
	}
	takeOverNone(t, f.Buffer)
	takeOverNone(t, n.Buffer)
}

func wakeWaiting(t *testing.T, h Harness) {
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
	ok(t, "Mark", f.Buffer.MarkDelivered(t.Context(), marked, ids[2:3]))
	f.Overdue(t, marked.GroupID, -lease)
	f.Overdue(t, batches[2].GroupID, time.Minute)

	wake(t, f.Buffer, "a", 1, 0) // one is due
	wake(t, f.Buffer, "a", 0, 1)
	about(t, "due_at of what is leased", ledgerOf(t, f, leased.GroupID).DueIn, lease)
	about(t, "due_at of what is marked", ledgerOf(t, f, marked.GroupID).DueIn, lease)
	for _, want := range batches[2:] { // the one that was due before was not made younger
		equal(t, "batch taken over", takeOver(t, f.Buffer).GroupID, want.GroupID)
	}
	takeOverNone(t, f.Buffer)
}

// wakeRefused: a relay that knows nothing of addresses put the batch back, and left
// the one it had.
func wakeRefused(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	f.Insert(t, orders(2)...)
	refused, waits := claim(t, f.Buffer, 1), claim(t, f.Buffer, 1)
	outage(t, f.Buffer, refused, "a", lease)
	outage(t, f.Buffer, waits, "b", lease)
	f.Exec(t, fmt.Sprintf("UPDATE outbox_batches SET outages = 0, attempts = 1 WHERE group_id = '%s'", refused.GroupID))
	away(t, f.Buffer, "b")
	wake(t, f.Buffer, "a", 0, 0)
	takeOverNone(t, f.Buffer)
	wake(t, f.Buffer, "b", 0, 1)
	equal(t, "batch woken", takeOver(t, f.Buffer).GroupID, waits.GroupID)
}
