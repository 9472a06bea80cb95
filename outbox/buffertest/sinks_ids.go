package buffertest

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var sinksIDCases = []sinksTestCase{
	{name: "the greatest id", run: testSinksGreatestID},
	{name: "a replay joins no other event", run: testSinksReusedID},
}

var twoRoutes = []buffer.Route{{Sink: "all", BatchSize: 100}, {Sink: "crm", Match: []string{"contact.*"}, BatchSize: 100}}

// countAndRoute routes events with ids of their own, which the first look finds.
func countAndRoute(t *testing.T, b RoutedBuffer) {
	t.Helper()
	_, err := b.CountBacklog(t.Context(), 100)
	ok(t, "CountBacklog", err)
	routeTo(t, b, "[all crm]")
}

// An id that has no successor is deleted with the last of its sinks as any other, also if the delete is repeated.
func testSinksGreatestID(t *testing.T, p *sinksCase) {
	b := p.open(t, twoRoutes...)
	for _, recorded := range []bool{false, true} {
		for _, id := range []string{"1", "9223372036854775806", "9223372036854775807"} {
			p.Exec(t, "INSERT INTO outbox_events (id, topic, payload) VALUES ("+id+", 'contact.new', '{}')")
		}
		countAndRoute(t, b)
		for left, sink := range []string{"crm", "all"} {
			batch, _ := takeOf(t, b, sink)
			if batch == nil || batch.Len() != 3 {
				t.Fatalf("%s got %+v, want 3 events", sink, batch)
			}
			if recorded {
				ok(t, "MarkDelivered", b.Sink(sink).MarkDelivered(t.Context(), batch, batch.IDs()))
				p.due(t, "sink = '"+sink+"'")
				batch, _ = takeOf(t, b, sink)
			}
			deliver(t, b, sink, batch)
			equal(t, "events left", p.count(t, "outbox_events"), int64(3*(1-left)))
		}
		p.expectEmpty(t)
	}
}

// An id that is used again (a failover, TRUNCATE RESTART IDENTITY, a restore) is not the dead letter's event, although a claim holds it: the dead letter
// stays open until the other event is gone.
func testSinksReusedID(t *testing.T, p *sinksCase) {
	b := p.open(t, twoRoutes...)
	insert := func(topic string) {
		p.Exec(t, "INSERT INTO outbox_events (id, topic, payload) VALUES (1, '"+topic+"', '{}')")
	}
	replay := func(want int) {
		t.Helper()
		n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
		ok(t, "Replay", err)
		equal(t, "replayed", n, want)
	}
	insert("contact.first")
	countAndRoute(t, b)
	batch, _ := takeOf(t, b, "crm")
	ok(t, "Settle", b.Sink("crm").Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Dead, Error: "no"}}))
	expectDrained(t, b, "all", "contact.first")
	p.expectEmpty(t)

	insert("contact.second")
	countAndRoute(t, b)
	expectDrained(t, b, "crm", "contact.second")
	replay(0)
	expectDrained(t, b, "crm", "")
	expectDrained(t, b, "all", "contact.second")
	replay(1)
	expectDrained(t, b, "crm", "contact.first")
	p.expectEmpty(t)
}
