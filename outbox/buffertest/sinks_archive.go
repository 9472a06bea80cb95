package buffertest

import (
	"errors"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var sinksArchiveCases = []sinksTestCase{
	{name: "archive replay/to all sinks", run: archiveReplayToAll},
	{name: "archive replay/to one sink", run: archiveReplayToOne},
	{name: "archive replay/without dead letters", run: archiveReplayWithoutDead},
	{name: "archive replay/keeps order by key", ordered: true, run: archiveReplayKeys},
}

// A replayed event is routed as a new one is, also to a sink that it did not go to before.
func archiveReplayToAll(t *testing.T, p *sinksCase) {
	all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 2}
	b := p.open(t, all)
	p.topics(t, "a.1", "b.1", "a.2", "a.3")
	routeTo(t, b, "[all]")
	expectDrained(t, b, "all", "a.1 b.1 a.2 a.3")
	p.expectEmpty(t)
	b = p.open(t, all, crm)
	until := expectReplayed(t, b, buffer.ArchiveFilter{BatchSize: 100}, 4, 0, 0)
	expectReplayed(t, b, buffer.ArchiveFilter{Until: until}, 0, 4, 0)
	routed, err := b.RouteDue(t.Context(), time.Hour)
	ok(t, "RouteDue", err)
	equal(t, "sinks", routed.Sinks, []string{"all", "crm"})
	expectReplayed(t, b, buffer.ArchiveFilter{Until: until}, 0, 4, 0)
	audited, err := b.Audit(t.Context())
	ok(t, "Audit", err)
	if !audited.Agrees() {
		t.Errorf("after a replay, the audit is %+v", audited)
	}
	expectDrained(t, b, "crm", "a.1 a.2 a.3")
	expectDrained(t, b, "all", "a.1 b.1 a.2 a.3")
	p.expectEmpty(t)
	expectReplayed(t, b, buffer.ArchiveFilter{Until: until}, 0, 0, 4)
}

func archiveReplayToOne(t *testing.T, p *sinksCase) {
	all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 2}
	b := p.open(t, all, crm)
	p.topics(t, "a.1", "b.1", "a.2", "a.3")
	routeTo(t, b, "[all crm]")
	expectDrained(t, b, "all", "a.1 b.1 a.2 a.3")
	expectDrained(t, b, "crm", "a.1 a.2 a.3")
	p.expectEmpty(t)
	until := expectReplayed(t, b, buffer.ArchiveFilter{Sink: "crm", BatchSize: 2}, 3, 0, 0)
	expectReplayed(t, b, buffer.ArchiveFilter{Sink: "crm", Until: until}, 0, 3, 0)
	expectDrained(t, b, "all", "")
	expectDrained(t, b, "crm", "a.1 a.2 a.3")
	p.expectEmpty(t)
	expectReplayed(t, b, buffer.ArchiveFilter{Sink: "crm", Until: until}, 0, 0, 3)
	expectReplayed(t, b, buffer.ArchiveFilter{Sink: "all", BatchSize: 100}, 4, 0, 0)
	expectDrained(t, b, "crm", "")
	expectDrained(t, b, "all", "a.1 b.1 a.2 a.3")
	p.expectEmpty(t)
	_, err := b.ReplayArchived(t.Context(), buffer.ArchiveFilter{Sink: "nobody", BatchSize: 1}, true, nil)
	if missing, ok := errors.AsType[*buffer.NoSinkError](err); !ok || len(missing.Known) != 2 {
		t.Errorf("a replay to an unknown sink: %v", err)
	}
}

// A replayed event waits for those of its key that are under way, and later ones wait for it.
func archiveReplayKeys(t *testing.T, p *sinksCase) {
	b := p.open(t, buffer.Route{Sink: "all", BatchSize: 100, Ordered: true})
	p.keys(t, "a", "b")
	routeAll(t, b, 100)
	deliver(t, b, "all", expectKeys(t, b, "all", "a", "b"))
	p.keys(t, "a", "c")
	routeAll(t, b, 100)
	expectReplayed(t, b, buffer.ArchiveFilter{Sink: "all"}, 2, 0, 0)
	p.keys(t, "b")
	routeAll(t, b, 100)
	first := expectKeys(t, b, "all", "a", "c")
	deliver(t, b, "all", first)
	second := expectKeys(t, b, "all", "a", "b")
	expectKeys(t, b, "all")
	deliver(t, b, "all", second)
	deliver(t, b, "all", expectKeys(t, b, "all", "b"))
	p.expectEmpty(t)
}

// The archive has events that no sink took, and those that were dead at one sink. A replay sends neither to where their dead letters go.
func archiveReplayWithoutDead(t *testing.T, p *sinksCase) {
	crm, api := buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 10}, buffer.Route{Sink: "api", Match: []string{"a.*"}, BatchSize: 10}
	open := func(routes ...buffer.Route) RoutedBuffer {
		b := p.Strict(t, p.mode, routes...)
		ok(t, "RegisterSinks", b.RegisterSinks(t.Context()))
		return b
	}
	routeDue := func(b RoutedBuffer) {
		t.Helper()
		p.due(t, "sink = '*'")
		_, err := b.RouteDue(t.Context(), time.Hour)
		ok(t, "RouteDue", err)
	}
	openLetters := func(b RoutedBuffer, want int) {
		t.Helper()
		all, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 100)
		ok(t, "ListDead", err)
		equal(t, "open dead letters", len(all), want)
	}
	b := open(crm, api)
	p.topics(t, "x.1", "x.2", "a.1", "a.2")
	routeTo(t, b, "[api crm]")
	expectDrained(t, b, "crm", "a.1 a.2")
	batch, _ := takeOf(t, b, "api")
	ok(t, "Settle", b.Sink("api").Settle(t.Context(), batch, []buffer.Outcome{
		{Verdict: buffer.Dead, IDs: batch.IDs()[:1], Error: "no"}, {Verdict: buffer.Delivered, IDs: batch.IDs()[1:]},
	}))
	routeDue(b)
	p.expectEmpty(t)
	equal(t, "archived events", p.count(t, "outbox_archive"), int64(4))
	all := buffer.ArchiveFilter{BatchSize: 10}
	expectReplayedOf(t, b, all, buffer.Replayed{Events: 1, Dead: 3})
	routeDue(b)
	expectDrained(t, b, "crm", "a.2")
	expectDrained(t, b, "api", "a.2")
	p.expectEmpty(t)
	openLetters(b, 3)
	expectReplayedOf(t, b, buffer.ArchiveFilter{BatchSize: 10, Sink: "crm"}, buffer.Replayed{Events: 2})
	expectDrained(t, b, "crm", "a.1 a.2")
	p.expectEmpty(t)
	expectReplayedOf(t, b, buffer.ArchiveFilter{BatchSize: 10, Sink: "api"}, buffer.Replayed{Events: 1, Dead: 1})
	expectDrained(t, b, "api", "a.2")
	p.expectEmpty(t)

	// An event that was put back before its dead letter was there gets no second one.
	p.Exec(t, "UPDATE outbox_dead_letters SET closed_as = 'replayed', closed_at = died_at WHERE topic = 'x.1'")
	expectReplayedOf(t, b, all, buffer.Replayed{Events: 2, Dead: 2})
	p.Exec(t, "UPDATE outbox_dead_letters SET closed_as = NULL, closed_at = NULL WHERE topic = 'x.1'")
	routeDue(b)
	routeDue(b)
	expectDrained(t, b, "crm", "a.2")
	expectDrained(t, b, "api", "a.2")
	p.expectEmpty(t)
	openLetters(b, 3)

	// A discarded dead letter of an event that no sink got stays so. One that is replayed is sent once.
	discarded, err := b.Discard(t.Context(), buffer.DeadFilter{Topic: "x.2"}, 10)
	ok(t, "Discard", err)
	equal(t, "discarded dead letters", discarded, 1)
	b = open(crm, api, buffer.Route{Sink: "new", Match: []string{"x.*"}, BatchSize: 10})
	expectReplayedOf(t, b, all, buffer.Replayed{Events: 1, Dead: 3})
	routeDue(b)
	expectDrained(t, b, "crm", "a.2")
	expectDrained(t, b, "api", "a.2")
	for _, want := range []int{2, 0} {
		replayed, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10)
		ok(t, "Replay", err)
		equal(t, "replayed dead letters", replayed, want)
	}
	routeDue(b)
	expectDrained(t, b, "new", "x.1")
	expectDrained(t, b, "api", "a.1")
	expectDrained(t, b, "crm", "")
	p.expectEmpty(t)
	openLetters(b, 0)
}
