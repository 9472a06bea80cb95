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
