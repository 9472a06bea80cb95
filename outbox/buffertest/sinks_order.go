package buffertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var sinksOrderCases = []sinksTestCase{
	{name: "order/a key waits in its own sink only", ordered: true, run: sinksOrderCut},
	{name: "order/a claim that is not routed comes first", ordered: true, run: sinksOrderUnrouted},
	{name: "order/halves of a batch that was sent keep their turn", ordered: true, run: sinksOrderHalves},
	{name: "order/what has been due longest comes first", ordered: true, run: sinksOrderDue},
	{name: "order/replayed events come behind what waits", ordered: true, run: sinksOrderReplayed},
	{name: "order/a stuck key hides no other", ordered: true, run: sinksOrderStuck},
	{name: "order/batches of the single sink come first", ordered: true, run: sinksOrderSingle},
	{name: "order/batches of before order are sent", ordered: true, run: sinksOrderBefore},
	{name: "order/events that no sink takes wait in their order", ordered: true, run: sinksOrderKept},
}

// orderedSinks keep order by key, except fast.
var orderedSinks = []buffer.Route{
	{Sink: "all", BatchSize: 100, Ordered: true},
	{Sink: "crm", Match: []string{"contact.*"}, BatchSize: 3, Ordered: true},
	{Sink: "fast", BatchSize: 100},
}

// routeAll routes what is there, a claim of limit events after the other, and takes what it may.
func routeAll(t *testing.T, b RoutedBuffer, limit int) (taken []buffer.SinkLease) {
	t.Helper()
	for {
		routed, err := b.Route(t.Context(), limit, time.Hour, func(string) bool { return true })
		ok(t, "Route", err)
		if routed == nil {
			return taken
		}
		taken = append(taken, routed.Leases...)
	}
}

// expectKeys takes over a batch of a sink, whose events have these keys; without keys it expects that none is ready.
func expectKeys(t *testing.T, b RoutedBuffer, sink string, want ...string) *buffer.Lease {
	t.Helper()
	batch, err := b.Sink(sink).TakeOver(t.Context(), time.Hour, buffer.DueRetry)
	ok(t, "TakeOver", err)
	var keys []string
	if batch != nil {
		for _, e := range batch.Events {
			if e.Key == nil {
				keys = append(keys, "")
			} else {
				keys = append(keys, *e.Key)
			}
		}
	}
	equal(t, "keys that "+sink+" got", keys, want)
	return batch
}

func expectBacklog(t *testing.T, b RoutedBuffer, sink string, due, waiting int) {
	t.Helper()
	backlog, err := b.Sink(sink).CountBacklog(t.Context(), 0)
	ok(t, "CountBacklog", err)
	equal(t, "batches that are due and that wait for a retry", []int{backlog.Due, backlog.Waiting}, []int{due, waiting})
}

// A batch of which a part waits is cut, and loses nothing.
func sinksOrderCut(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a", "b", "a", "c", "", "a", "b")
	taken := routeAll(t, b, 2) // (a b) (a c) ("" a) (b)
	if len(taken) != 4 || slices.ContainsFunc(taken, func(l buffer.SinkLease) bool { return l.Sink != "fast" }) {
		t.Fatalf("%d batches were taken at the route; want the 4 of the sink without order", len(taken))
	}
	for _, l := range taken {
		deliver(t, b, "fast", l.Lease)
	}
	expectBacklog(t, b, "all", 3, 0) // those with c and without a key behind the first
	first := expectKeys(t, b, "all", "a", "b")
	c := expectKeys(t, b, "all", "c")
	none := expectKeys(t, b, "all", "")
	expectKeys(t, b, "all")
	expectBacklog(t, b, "all", 0, 0)
	deliver(t, b, "crm", expectKeys(t, b, "crm", "a", "b")) // not held back by the other sink
	deliver(t, b, "all", none)
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), first, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: first.IDs()[1:]},
		{Verdict: buffer.Retry, IDs: first.IDs()[:1], GroupID: buffer.NewGroupID(), After: time.Hour, Attempts: 1, Error: "refused"},
	}))
	deliver(t, b, "all", c)
	b2 := expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
	expectBacklog(t, b, "all", 0, 1)
	deliver(t, b, "all", b2)
	p.due(t, "1 = 1")
	for range 3 {
		deliver(t, b, "all", expectKeys(t, b, "all", "a"))
	}
	for _, want := range [][]string{{"a", "c"}, {"", "a"}, {"b"}} {
		deliver(t, b, "crm", expectKeys(t, b, "crm", want...))
	}
	expectKeys(t, b, "all")
	p.expectEmpty(t)
}

func sinksOrderUnrouted(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a")
	if l, err := b.Claim(t.Context(), 1, time.Hour); err != nil || l == nil { // its process ends
		t.Fatal(l, err)
	}
	p.keys(t, "a", "b")
	routeAll(t, b, 10)
	l := expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
	p.due(t, "sink = '*'")
	if routed, err := b.RouteDue(t.Context(), time.Hour); err != nil || routed == nil {
		t.Fatal(routed, err)
	}
	if first := expectKeys(t, b, "all", "a"); first.FirstID >= l.FirstID {
		t.Errorf("event %d came first", first.FirstID)
	}
}

// Halves are taken in turn, and neither is cut.
func sinksOrderHalves(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a", "b", "a", "c")
	routeAll(t, b, 10)
	l := expectKeys(t, b, "all", "a", "b", "a", "c")
	half := func(ids []int64) buffer.Outcome {
		return buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID()}
	}
	p.keys(t, "c", "d")
	routeAll(t, b, 10)
	halves := []buffer.Outcome{half(l.IDs()[:2]), half(l.IDs()[2:])}
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), l, halves))
	p.due(t, fmt.Sprintf("group_id IN ('%s', '%s')", halves[0].GroupID, halves[1].GroupID)) // for longer than the others
	first := expectKeys(t, b, "all", "a", "b")
	expectKeys(t, b, "all", "d")
	expectKeys(t, b, "all")
	deliver(t, b, "all", first)
	second := expectKeys(t, b, "all", "a", "c")
	expectKeys(t, b, "all")
	deliver(t, b, "all", second)
	expectKeys(t, b, "all", "c")
}

// A batch of an earlier claim that was just put back does not come before one that has been due for longer: a sink that seems to refuse everything tries one at
// a time, and would only try the bad one.
func sinksOrderDue(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "bad", "good")
	routeAll(t, b, 1)
	bad := expectKeys(t, b, "all", "bad")
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), bad, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: bad.GroupID, Attempts: 1, Error: "400"}}))
	p.due(t, fmt.Sprintf("group_id <> '%s'", bad.GroupID))
	expectKeys(t, b, "all", "good")
	expectKeys(t, b, "all", "bad")
}

// Claims go on.
func sinksOrderReplayed(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a", "b")
	routeAll(t, b, 10)
	l := expectKeys(t, b, "all", "a", "b")
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}}))
	p.keys(t, "a", "c")
	routeAll(t, b, 10)
	if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	waiting := expectKeys(t, b, "all", "a", "c")
	expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
	deliver(t, b, "all", waiting)
	expectKeys(t, b, "all", "a")
	p.keys(t, "d")
	routeAll(t, b, 10)
	expectKeys(t, b, "all", "d")
}

// The batches that a stuck key leaves, one of each claim, do not count as retries.
func sinksOrderStuck(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a")
	routeAll(t, b, 10)
	stuck := expectKeys(t, b, "all", "a")
	for n := range 300 {
		p.Exec(t, fmt.Sprintf(`INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
			first_id, last_id, oldest_at, newest_at, members, sink, claim_id, seq, lanes)
			SELECT '%s', buffer, claim, 'waiting', 0, '2026-01-01T00:00:00.000Z', '', 0, 0, 0, 1, first_id, last_id, oldest_at, newest_at, members, sink, claim_id, seq + %d, lanes
			FROM outbox_batches WHERE group_id = '%s'`, buffer.NewGroupID(), 1+n, stuck.GroupID))
	}
	p.keys(t, "a", "b")
	routeAll(t, b, 10)
	expectBacklog(t, b, "all", 1, 0)
	expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
}

// A pipeline whose single sink kept order has several: what waits for that one comes before what is claimed now.
func sinksOrderSingle(t *testing.T, p *sinksCase) {
	single := p.Single(t, p.mode, true)
	p.keys(t, "a", "b")
	batch, err := single.Claim(t.Context(), 10, time.Hour)
	ok(t, "Claim", err)
	ok(t, "Settle", single.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: 1, Error: "no"}}))
	routes := slices.Clone(orderedSinks)
	routes[0].Was = "default"
	b := p.open(t, routes...)
	p.keys(t, "a", "c")
	routeAll(t, b, 10)
	first := expectKeys(t, b, "all", "a", "b")
	expectKeys(t, b, "all", "c")
	expectKeys(t, b, "all")
	expectKeys(t, b, "crm", "a", "c")
	deliver(t, b, "all", first)
	expectKeys(t, b, "all", "a")
}

// What waits for sinks that kept no order, or for a single one, is sent when they keep order. Claims wait until it is gone.
func sinksOrderBefore(t *testing.T, p *sinksCase) {
	single := p.Single(t, buffer.ClaimAuto, false)
	p.keys(t, "a")
	batch, err := single.Claim(t.Context(), 10, time.Hour)
	ok(t, "Claim", err)
	ok(t, "Settle", single.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: 1, Error: "no"}}))
	routes := []buffer.Route{{Sink: "all", Was: "default", BatchSize: 100}, {Sink: "crm", BatchSize: 100}}
	before := p.open(t, routes...)
	p.keys(t, "b")
	routeTo(t, before, "[all crm]")
	for i := range routes {
		routes[i].Ordered = true
	}
	b := p.open(t, routes...)
	p.keys(t, "c")
	for range 2 {
		_, err := b.Route(t.Context(), 10, time.Hour, takeNone)
		if err == nil {
			t.Fatal("events were claimed beside batches that have no order")
		}
		for _, sink := range []string{"all", "crm"} {
			for {
				batch, _ := takeOf(t, b, sink)
				if batch == nil {
					break
				}
				deliver(t, b, sink, batch)
			}
		}
		if p.count(t, "outbox_batches") == 0 {
			break
		}
	}
	equal(t, "batches of before", p.count(t, "outbox_batches"), int64(0))
	routeTo(t, b, "[all crm]")
	expectKeys(t, b, "all", "c")
	expectKeys(t, b, "crm", "c")
}

// A change of the registry routes kept events; they come before later ones of their key.
func sinksOrderKept(t *testing.T, p *sinksCase) {
	kept := p.open(t, buffer.Route{Sink: "all", Match: []string{"order.*"}, BatchSize: 100, Ordered: true})
	p.keys(t, "a")
	p.Exec(t, "INSERT INTO outbox_events (topic, key, payload) VALUES ('order.new', 'a', '{}')")
	routeAll(t, kept, 10)
	expectKeys(t, kept, "all", "a") // kept events hold no key
	b := p.open(t, buffer.Route{Sink: "all", Match: []string{"order.*"}, BatchSize: 100, Ordered: true}, buffer.Route{Sink: "crm", Match: []string{"contact.*"}, BatchSize: 100, Ordered: true})
	p.keys(t, "a", "b")
	routeAll(t, b, 10)
	expectKeys(t, b, "crm", "b")
	expectKeys(t, b, "crm")
	if routed, err := b.RouteDue(t.Context(), time.Hour); err != nil || routed == nil {
		t.Fatal(routed, err)
	}
	first := expectKeys(t, b, "crm", "a")
	equal(t, "first event of a", first.FirstID, p.IDs(t, "SELECT min(id) FROM outbox_events")[0])
	expectKeys(t, b, "crm")
	deliver(t, b, "crm", first)
	expectKeys(t, b, "crm", "a")
}
