package buffertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var sinksDivideCases = []sinksTestCase{
	{name: "divide/a batch of one sink leaves the others alone", run: sinksDivide},
	{name: "divide/halves keep their turn", ordered: true, run: sinksDivideOrdered},
	{name: "unsent/batches that no worker has leased are taken over alone", run: sinksUnsent},
	{name: "unsent/in order", ordered: true, run: sinksUnsentOrdered},
	{name: "unsent/is counted behind more retries than are counted", run: sinksUnsentBehindMany},
	{name: "unsent/is counted behind the retries of many keys", ordered: true, run: sinksUnsentBehindKeys},
}

// divideOf divides the batch of a sink, of which the sink refused everything once.
func divideOf(t *testing.T, b RoutedBuffer, sink string, batch *buffer.Lease) {
	t.Helper()
	o := retry(batch, lease)
	o.Attempts = 1
	ok(t, "Settle", b.Sink(sink).Settle(t.Context(), batch, []buffer.Outcome{o}))
	ok(t, "DivideBatch", b.DivideBatch(t.Context(), batch.GroupID, false))
}

// expectDue expects so many due batches of a sink, and so many of these that nobody has leased.
func expectDue(t *testing.T, b RoutedBuffer, sink string, due, unsent int) {
	t.Helper()
	backlog, err := b.Sink(sink).CountBacklog(t.Context(), 0)
	ok(t, "CountBacklog", err)
	equal(t, "batches of "+sink+" that are due, and unsent", []int{backlog.Due, backlog.Unsent}, []int{due, unsent})
}

// liveOf returns the only live batch of a sink.
func liveOf(t *testing.T, b RoutedBuffer, sink string) (group uuid.UUID) {
	t.Helper()
	all, _ := listBatches(t, b, 10)
	for i := range all {
		if all[i].Sink == sink {
			group = all[i].GroupID
		}
	}
	return group
}

// Two sinks share the events: each gets each event once, whatever is divided for the other.
func sinksDivide(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "calls", Match: []string{"call.*"}, BatchSize: 100})
	p.topics(t, "call.a", "mail.b", "call.c", "call.d")
	routeTo(t, b, "[all calls]")
	expectDue(t, b, "all", 1, 1)
	batch, _ := takeOf(t, b, "all")
	expectDue(t, b, "all", 0, 0)
	for _, one := range []struct {
		group uuid.UUID
		ids   []int64
	}{{batch.GroupID, batch.IDs()}, {liveOf(t, b, "calls"), slices.Delete(batch.IDs(), 1, 2)}} {
		read, err := b.BatchEvents(t.Context(), one.group, 10)
		ok(t, "BatchEvents", err)
		equal(t, "events that are read without a lease", read.IDs(), one.ids)
	}
	divideOf(t, b, "all", batch)
	expectDue(t, b, "all", 2, 0)
	expectDue(t, b, "calls", 1, 1)
	listed, total := listBatches(t, b, 10)
	equal(t, "batches", total, int64(3))
	for _, one := range listed {
		equal(t, "parted", one.Parted, one.Sink == "all")
	}
	expectDrained(t, b, "calls", "call.a call.c call.d")
	var sizes []int
	for range 2 {
		half, _ := takeOf(t, b, "all")
		sizes = append(sizes, half.Len())
		deliver(t, b, "all", half)
	}
	equal(t, "sizes of the halves", fmt.Sprint(sizes), "[2 2]")
	p.expectEmpty(t)

	// A sink that this process does not have, and what is not given to any sink yet.
	p.topics(t, "call.e", "call.f")
	routeTo(t, b, "[all calls]")
	batch, _ = takeOf(t, b, "all")
	o := retry(batch, lease)
	o.Attempts = 1
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), batch, []buffer.Outcome{o}))
	p.Exec(t, "UPDATE outbox_batches SET sink = 'another' WHERE group_id = '"+batch.GroupID.String()+"'")
	if err := b.DivideBatch(t.Context(), batch.GroupID, true); err == nil {
		t.Error("the batch of a sink that is not configured was divided")
	}
	p.Exec(t, "UPDATE outbox_batches SET sink = '*' WHERE group_id = '"+batch.GroupID.String()+"'")
	if err := b.DivideBatch(t.Context(), batch.GroupID, true); err == nil {
		t.Error("a batch that is not routed was divided")
	}
}

func sinksDivideOrdered(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a", "b", "a", "c")
	routeAll(t, b, 10)
	batch := expectKeys(t, b, "all", "a", "b", "a", "c")
	p.keys(t, "c", "d")
	routeAll(t, b, 10)
	divideOf(t, b, "all", batch)
	p.due(t, "error LIKE 'divided%'") // for longer than the others
	expectDue(t, b, "all", 2, 1)      // the first half, and d
	first := expectKeys(t, b, "all", "a", "b")
	equal(t, "attempts of the first half", first.Attempts, 1)
	expectKeys(t, b, "all", "d")
	expectKeys(t, b, "all")
	deliver(t, b, "all", first)
	second := expectKeys(t, b, "all", "a", "c")
	equal(t, "attempts of the second half", second.Attempts, 0)
	expectKeys(t, b, "all")
	deliver(t, b, "all", second)
	expectKeys(t, b, "all", "c")
}

// unsentOf takes over a batch of a sink that no worker has leased yet.
func unsentOf(t *testing.T, b RoutedBuffer, sink string) *buffer.Lease {
	t.Helper()
	batch, err := b.Sink(sink).TakeOver(t.Context(), lease, buffer.DueUnsent)
	ok(t, "TakeOver", err)
	return batch
}

// A batch that is due again and its halves are not taken, though they have been due for longer.
func sinksUnsent(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "all", BatchSize: 100})
	for range 3 {
		p.topics(t, "call.a", "call.b")
		routeTo(t, b, "[all]")
		if batch := unsentOf(t, b, "all"); batch == nil || batch.Len() != 2 {
			t.Fatalf("a batch that was routed was not taken over: %+v", batch)
		} else if batch.FirstID == 1 {
			divideOf(t, b, "all", batch)
		} else {
			o := retry(batch, 0)
			ok(t, "Settle", b.Sink("all").Settle(t.Context(), batch, []buffer.Outcome{o}))
		}
		if batch := unsentOf(t, b, "all"); batch != nil {
			t.Fatalf("%+v was taken over as one that no worker has leased", batch)
		}
	}
	expectDue(t, b, "all", 4, 0)
	p.topics(t, "call.c")
	routeTo(t, b, "[all]")
	expectDue(t, b, "all", 5, 1)
	if batch := unsentOf(t, b, "all"); batch == nil || batch.Len() != 1 || batch.Events[0].Topic != "call.c" {
		t.Fatalf("the batch that was routed last was not taken over: %+v", batch)
	}
}

// What another batch holds up is not taken, and what was sent before neither.
func sinksUnsentOrdered(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	p.keys(t, "a")
	routeAll(t, b, 10)
	first := expectKeys(t, b, "all", "a")
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), first, []buffer.Outcome{retry(first, 0)}))
	p.keys(t, "a")
	routeAll(t, b, 10)
	if batch := unsentOf(t, b, "all"); batch != nil {
		t.Fatalf("%+v was taken over, of the key of another", batch)
	}
	p.keys(t, "a", "b")
	routeAll(t, b, 10)
	batch := unsentOf(t, b, "all")
	if batch == nil || batch.Len() != 1 || *batch.Events[0].Key != "b" {
		t.Fatalf("taken over: %+v, want b alone", batch)
	}
	deliver(t, b, "all", expectKeys(t, b, "all", "a"))
}

// As many retries are due as a count looks at, for longer.
func sinksUnsentBehindMany(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "all", BatchSize: 100})
	p.topics(t, "call.a")
	routeTo(t, b, "[all]")
	batch := unsentOf(t, b, "all")
	ok(t, "Settle", b.Sink("all").Settle(t.Context(), batch, []buffer.Outcome{retry(batch, 0)}))
	p.due(t, "true")
	const most = 5000
	copies := make([]string, most)
	for i := range copies {
		copies[i] = "('" + uuid.NewString() + "', (SELECT buffer FROM outbox_batches LIMIT 1), 'range', 'waiting', 1, '2026-01-01T00:00:00.000Z', '', 0, 0, 1, 1, 1, 1, '2026-01-01T00:00:00.000Z', 'all')"
	}
	p.Exec(t, "INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, sink) VALUES "+
		strings.Join(copies, ","))
	expectDue(t, b, "all", most, 0)
	p.topics(t, "call.b")
	routeTo(t, b, "[all]")
	expectDue(t, b, "all", most, 1)
	if batch := unsentOf(t, b, "all"); batch == nil || batch.Events[0].Topic != "call.b" {
		t.Fatalf("the batch that was routed last was not taken over: %+v", batch)
	}
}

// As many retries are due as a count looks at first where order is kept, each of a key of its own.
func sinksUnsentBehindKeys(t *testing.T, p *sinksCase) {
	b := p.open(t, orderedSinks...)
	const most = 200
	for i := range most {
		p.keys(t, fmt.Sprint("k", i))
		routeAll(t, b, 10)
		batch := unsentOf(t, b, "all")
		ok(t, "Settle", b.Sink("all").Settle(t.Context(), batch, []buffer.Outcome{retry(batch, lease)}))
	}
	p.due(t, "sink = 'all'")
	expectDue(t, b, "all", most, 0)
	p.keys(t, "free")
	routeAll(t, b, 10)
	expectDue(t, b, "all", most+1, 1)
}
