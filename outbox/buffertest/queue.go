package buffertest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var queueCases = []testCase{
	{name: "queue/notifies of every dead letter", run: queueNotifies},
	{name: "queue/keeps opaque bytes", run: queueBytes},
	{name: "queue/splits a batch", run: queueSplit},
	{name: "queue/retry of the whole batch keeps the group_id", run: queueRetry},
	{name: "queue/fences a former owner", run: queueLost},
	{name: "queue/rejects a second death", run: queueDead},
	{name: "queue/batch marked delivered is notified first", run: queueDelivered},
	{name: "queue/defers for an unavailable address", run: queueDeferred},
}

func queueNotifies(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	events := orders(5)
	events[0].Key, events[1].Headers = text("customer-7"), outbox.Headers(`{"trace": "00-ab"}`)
	notifiesOf(t, f, events)
}

func queueBytes(t *testing.T, h Harness) {
	f := h.Open(t, Options{Bytes: true})
	notifiesOf(t, f, []outbox.Event{
		{Topic: "t", Payload: []byte{0, 1, 0xff, '\'', '\\'}},
		{Topic: "t", Payload: []byte{}},
		{Topic: "t", Payload: []byte("1")},
		{Topic: "t", Payload: []byte("{")},
	})
}

func notifiesOf(t *testing.T, f *Fixture, events []outbox.Event) {
	first, second := f.Queue(t), f.Queue(t)
	ok(t, "Check", first.Check(t.Context()))
	claimNone(t, first)
	takeOverNone(t, first)
	buried := bury(t, f, "refused", events...)
	ids := buried.IDs()
	f.Insert(t, orders(1)...) // an event that is not buried
	rows := f.Rows(t)
	countBacklog(t, first, 100, buffer.Backlog{Unclaimed: len(ids)})

	before := time.Now()
	b := claim(t, first, 3)
	after := time.Now()
	equal(t, "dead letters claimed", b.IDs(), ids[:3])
	var got, want []buffer.DeadEvent
	for i, d := range f.Dead(t)[:3] {
		equal(t, "hook_group_id", d.HookGroupID, b.GroupID)
		equal(t, "group_id", d.GroupID, buried.GroupID)
		got = append(got, buffer.DeadEvent{Event: b.Events[i], DeadLetter: *b.DeadLetters[i]})
		want = append(want, buffer.DeadEvent{Event: buried.Events[i], DeadLetter: buffer.DeadLetter{
			Pipeline: f.Pipeline, GroupID: buried.GroupID, Attempts: 3, Error: "refused", DiedAt: d.DiedAt.UTC(),
		}})
	}
	sameDead(t, got, want)
	equal(t, "pipeline", b.Pipeline, f.Pipeline)
	equal(t, "lease_no and unfinished_leases", []int64{b.LeaseNo, int64(b.UnfinishedLeases)}, []int64{1, 1})
	equal(t, "attempts, outages and origins", []int{b.Attempts, b.Outages, len(b.Origins)}, []int{0, 0, 0})
	equal(t, "first and last id", []int64{b.FirstID, b.LastID}, []int64{ids[0], ids[2]})
	if b.Ends.Before(before.Add(lease-time.Second)) || b.Ends.After(after.Add(lease)) {
		t.Fatalf("the lease ends %v after the claim, want %v", b.Ends.Sub(before), lease)
	}
	about(t, "ClaimedAt", b.ClaimedAt.Sub(b.DeadLetters[0].DiedAt), 0)
	row := ledgerOf(t, f, b.GroupID)
	about(t, "due_at", row.DueIn, lease)
	equal(t, "ledger row", row, LedgerRow{
		GroupID: b.GroupID, Buffer: row.Buffer, Claim: row.Claim, State: "leased", LeaseNo: 1, DueIn: row.DueIn,
		Owner: row.Owner, UnfinishedLeases: 1, Events: 3, FirstID: ids[0], LastID: ids[2], OldestAt: row.OldestAt, ClaimedAt: row.ClaimedAt,
	})
	countBacklog(t, second, 100, buffer.Backlog{Unclaimed: len(ids) - 3})
	rest := claim(t, second, 100)
	equal(t, "dead letters claimed", rest.IDs(), ids[3:])
	claimNone(t, first)
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64(nil))

	settle(t, first, b, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids[:3])
	for _, d := range f.Dead(t)[:3] {
		about(t, "notified_at", time.Since(d.NotifiedAt), 0)
	}
	settle(t, second, rest, delivered(rest.IDs()...))
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
	equal(t, "dead letters open", deadIDs(t, f, isOpen), ids)
	equal(t, "ledger", f.Ledger(t), []LedgerRow(nil))
	countBacklog(t, f.Queue(t), 100, buffer.Backlog{})
	claimNone(t, second)
	takeOverNone(t, second)
	equal(t, "rows of the buffer", f.Rows(t), rows)
}

func queueSplit(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(5)...).IDs()
	queue := f.Queue(t)
	b := claim(t, queue, 10)
	left, right := buffer.NewGroupID(), buffer.NewGroupID()
	settle(t, queue, b, delivered(ids[0], ids[4]),
		buffer.Outcome{Verdict: buffer.Retry, IDs: []int64{ids[1], ids[3]}, GroupID: left, After: lease, Attempts: 1, Outages: 2, Error: "busy"},
		buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:3], GroupID: right})
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64{ids[0], ids[4]})
	for i, d := range f.Dead(t) {
		if want := []uuid.UUID{uuid.Nil, left, right, left, uuid.Nil}[i]; want != uuid.Nil {
			equal(t, "hook_group_id", d.HookGroupID, want)
		}
	}
	row := ledgerOf(t, f, left)
	about(t, "due_at", row.DueIn, lease)
	equal(t, "ledger row of a part", row, LedgerRow{
		GroupID: left, Buffer: row.Buffer, Claim: row.Claim, State: "waiting", DueIn: row.DueIn, Owner: row.Owner,
		Attempts: 1, Outages: 2, Events: 2, FirstID: ids[1], LastID: ids[3],
		Origins: []uuid.UUID{b.GroupID}, Error: "busy", OldestAt: row.OldestAt, ClaimedAt: row.ClaimedAt,
	})
	countBacklog(t, queue, 100, buffer.Backlog{Due: 1, Waiting: 2})
	part := takeOver(t, queue)
	equal(t, "batch taken over", part.GroupID, right)
	equal(t, "dead letters", part.IDs(), ids[2:3])
	equal(t, "origins", part.Origins, []uuid.UUID{b.GroupID})
	takeOverNone(t, queue)
	claimNone(t, queue)
	settle(t, queue, part, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64{ids[0], ids[2], ids[4]})
	f.ExpireLease(t, left, time.Second)
	part = takeOver(t, queue)
	equal(t, "dead letters", part.IDs(), []int64{ids[1], ids[3]})
	settle(t, queue, part, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
	empty(t, f)
}

func queueRetry(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(3)...).IDs()
	queue := f.Queue(t)
	b := claim(t, queue, 10)
	o := retry(b, 2*lease)
	o.Attempts, o.Outages, o.Error = 3, 4, "500"
	settle(t, queue, b, o)
	row := ledgerOf(t, f, b.GroupID)
	about(t, "due_at", row.DueIn, 2*lease)
	equal(t, "state and error", []string{row.State, row.Error}, []string{"waiting", "500"})
	s, err := f.Buffer.Status(t.Context())
	ok(t, "Status", err)
	equal(t, "reasons to wait", len(s.Waits), 0)
	equal(t, "reasons of the hook to wait", len(s.HookWaits), 1)
	equal(t, "why the hook's batch waits", s.HookWaits[0].Error, "500")
	equal(t, "batches and dead letters that wait for the hook", []int64{s.HookWaits[0].Batches, s.HookWaits[0].Events}, []int64{1, int64(len(b.IDs()))})
	takeOverNone(t, queue)
	claimNone(t, queue)
	f.ExpireLease(t, b.GroupID, time.Second)
	again := takeOver(t, f.Queue(t))
	equal(t, "group_id", again.GroupID, b.GroupID)
	equal(t, "dead letters", again.Events, b.Events)
	equal(t, "unfinished_leases, attempts and outages", []int{again.UnfinishedLeases, again.Attempts, again.Outages}, []int{1, 3, 4})
	equal(t, "origins", again.Origins, []uuid.UUID(nil))
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64(nil))
	settle(t, queue, again, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
	empty(t, f)
}

func queueLost(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "refused", orders(3)...)
	first, second := f.Queue(t), f.Queue(t)
	b := claim(t, first, 10)
	ok(t, "Renew", first.Renew(t.Context(), b, 3*lease))
	about(t, "due_at of a renewed lease", ledgerOf(t, f, b.GroupID).DueIn, 3*lease)
	takeOverNone(t, second)
	taken := lose(t, f, b, second)
	equal(t, "dead letters", taken.Events, b.Events)
	equal(t, "lease_no and unfinished_leases", []int64{taken.LeaseNo, int64(taken.UnfinishedLeases)}, []int64{2, 2})

	ids := b.IDs()
	lost := func(when string) {
		t.Helper()
		for what, act := range map[string]func() error{
			"Renew":               func() error { return first.Renew(t.Context(), b, lease) },
			"MarkDelivered":       func() error { return first.MarkDelivered(t.Context(), b, ids) },
			"Settle of delivered": func() error { return first.Settle(t.Context(), b, []buffer.Outcome{delivered()}) },
			"Settle of retry":     func() error { return first.Settle(t.Context(), b, []buffer.Outcome{retry(b, 0)}) },
			"Settle of parts": func() error {
				return first.Settle(t.Context(), b, []buffer.Outcome{
					delivered(ids[0]), {Verdict: buffer.Retry, IDs: ids[1:], GroupID: buffer.NewGroupID()},
				})
			},
		} {
			untouched(t, f, what+when, func() { fails(t, what+when, act(), buffer.ErrLeaseLost) })
		}
	}
	lost(" after a take over")
	settle(t, second, taken, retry(taken, lease))
	lost(" of a batch that waits")
	f.ExpireLease(t, b.GroupID, time.Second)
	settle(t, second, takeOver(t, second), delivered())
	lost(" after the end")
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
}

func queueDead(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(3)...).IDs()
	queue := f.Queue(t)
	b := claim(t, queue, 10)
	for what, outcomes := range map[string][]buffer.Outcome{
		"all dead":  {{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}},
		"some dead": {delivered(ids[:2]...), {Verdict: buffer.Dead, IDs: ids[2:], Attempts: 1, Error: "refused"}},
	} {
		untouched(t, f, "Settle: "+what, func() {
			if err := queue.Settle(t.Context(), b, outcomes); err == nil {
				t.Fatalf("Settle: %s, and no error", what)
			}
		})
	}
	settle(t, queue, b, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
}

func queueDelivered(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	ids := bury(t, f, "refused", orders(3)...).IDs()
	first, second := f.Queue(t), f.Queue(t)
	b := claim(t, first, 10)
	ok(t, "MarkDelivered", first.MarkDelivered(t.Context(), b, ids[:2]))
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), []int64(nil))
	row := ledgerOf(t, f, b.GroupID)
	equal(t, "state", row.State, "delivered")
	equal(t, "delivered", row.Delivered, ids[:2])
	f.ExpireLease(t, b.GroupID, time.Second)
	countBacklog(t, second, 100, buffer.Backlog{Due: 1, Delivered: 1})
	b = takeOver(t, second)
	equal(t, "delivered", b.Delivered, ids[:2])
	equal(t, "dead letters", b.IDs(), ids)
	rest := buffer.NewGroupID()
	settle(t, second, b, delivered(b.Delivered...), buffer.Outcome{Verdict: buffer.Retry, IDs: ids[2:], GroupID: rest})
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids[:2])
	b = takeOver(t, second)
	equal(t, "rest", []any{b.GroupID, len(b.Delivered)}, []any{rest, 0})
	settle(t, second, b, delivered())
	equal(t, "notified dead letters", deadIDs(t, f, isNotified), ids)
	empty(t, f)
}

func queueDeferred(t *testing.T, h Harness) {
	f := h.Open(t, Options{})
	bury(t, f, "refused", orders(2)...)
	queue := f.Queue(t)
	deferredAddresses(t, queue)
	b, other := claim(t, queue, 1), claim(t, queue, 1)
	outage(t, queue, b, "https://ops.example/dead", lease)
	settle(t, queue, other, retry(other, lease))
	equal(t, "address", ledgerOf(t, f, b.GroupID).Address, text("https://ops.example/dead"))
	deferredAddresses(t, queue, "https://ops.example/dead")
	deferredAddresses(t, f.Buffer)
	retryNow(t, f.Buffer, "https://ops.example/dead", 0, 0)
	takeOverNone(t, queue)
	retryNow(t, queue, "https://ops.example/dead", 0, 1)
	equal(t, "batch made due", takeOver(t, queue).GroupID, b.GroupID)
	takeOverNone(t, queue)

	f.Insert(t, orders(1)...)
	outage(t, f.Buffer, claim(t, f.Buffer, 1), "orders", lease)
	deferredAddresses(t, queue)
	retryNow(t, queue, "orders", 0, 0)
}
