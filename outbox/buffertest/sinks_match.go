package buffertest

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

var sinksMatchCases = []sinksTestCase{
	{name: "match/a start that takes topics from a sink is told to all", run: matchNarrowed},
}

// The last start decides which topics a sink takes. A process with another configuration learns it, and for a day all learn of topics that a start took away.
func matchNarrowed(t *testing.T, p *sinksCase) {
	other := buffer.Route{Sink: "other", BatchSize: 10}
	all, some := buffer.Route{Sink: "crm", BatchSize: 10}, buffer.Route{Sink: "crm", Match: []string{"a.*", "b.#"}, BatchSize: 10}
	expect := func(b RoutedBuffer, want string) {
		t.Helper()
		sinks, err := b.Sinks(t.Context())
		ok(t, "Sinks", err)
		got := ""
		for i := range sinks {
			if f, wrong := sinks[i].MatchFinding(); wrong {
				got += f.Subject + ": " + f.Text + "\n"
			}
		}
		if want == "" && got != "" || !strings.Contains(got, want) || strings.Count(got, "\n") > 1 {
			t.Errorf("the findings are %q; want %q", got, want)
		}
	}
	const (
		differs = "sink crm: match is everything in the configuration, and a.*, b.# as a relay has registered it last: events that only the first matches are not sent to the sink"
		wider   = "sink crm: match is a.*, b.# in the configuration, and everything as a relay has registered it last: events that only the second matches are sent to the sink too"
		changed = "sink crm: match changed from everything to a.*, b.# on "
	)
	recent := p.open(t, other, all)
	expect(recent, "")
	old := p.open(t, other, some)
	expect(recent, differs)
	expect(old, changed)
	old = p.open(t, other, some) // a restart changes nothing, and does not end it
	expect(old, changed)
	p.open(t, other, buffer.Route{Sink: "crm", Match: []string{"b.#", "a.*"}, BatchSize: 10}) // the same topics
	expect(old, "")
	expect(recent, "b.#, a.* as a relay has registered it last")
	recent = p.open(t, other, all)
	expect(recent, "")
	expect(old, wider)
	old = p.open(t, other, some)
	expect(old, changed)
	p.Exec(t, "UPDATE outbox_sinks SET match_at = '2026-01-31T08:00:00.000Z'")
	expect(old, "")
	expect(recent, differs)
	renamed := p.open(t, other, buffer.Route{Sink: "sales", Was: "crm", Match: []string{"a.1"}, BatchSize: 10})
	expect(renamed, "sink sales: match changed from a.*, b.# to a.1 on ")
	ok(t, "DropSink", renamed.DropSink(t.Context(), "sales", buffer.DroppedDiscarded))
	expect(renamed, "")
}
