package console

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestRelayRows_Order: the rows of relays stay where they are, whichever of them the database names first.
func TestRelayRows_Order(t *testing.T) {
	t.Parallel()
	s := New(Config{Process: "b/2"})
	relays := []admin.RelayReport{{Owner: "c/3/orders", Running: true}, {Owner: "a/1/orders", Running: true}, {Owner: "d/4/orders"}, {Owner: "b/2/orders", Running: true}}
	for range 4 {
		relays = append(relays[1:], relays[0])
		var names []string
		for _, r := range s.relayRows(&admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", Relays: relays}}}) {
			names = append(names, r.Process)
		}
		testkit.Equal(t, "rows", strings.Join(names, " "), "b/2 a/1 c/3 d/4")
	}
}

// TestProblems_OthersDeliver: while another relay delivers everything, what this one cannot reach stops nothing; while something waits, it does.
func TestProblems_OthersDeliver(t *testing.T) {
	t.Parallel()
	source := &oneSource{health: &reason{class: buffer.NotReadySink, kind: buffer.NotReadySink}, report: admin.Report{Pipelines: []admin.PipelineReport{{
		Name: "orders", State: "sending", Relays: []admin.RelayReport{{Owner: "other/2/orders", Running: true}, {Owner: "host/1/orders", Running: true}},
	}}}}
	s := New(Config{Source: source, Process: "host/1"})
	p := &source.report.Pipelines[0]
	for _, c := range []struct {
		pending  int64
		other    string // why the other one is not ready
		headline string
	}{
		{0, "", "Everything moves, with warnings."}, {3, "", "The pipeline needs attention."}, {0, "away", "The pipeline needs attention."},
	} {
		p.Pending, p.Relays[0].NotReady = c.pending, c.other
		d := s.overviewOf(&source.report, problems(s, &source.report))
		testkit.Equal(t, "headline", d.Headline, c.headline)
		testkit.Equal(t, "problems", len(d.Problems), 1)
	}
}

// TestSinksState: a pipeline of several sinks has the state of the sink that is worst off.
func TestSinksState(t *testing.T) {
	t.Parallel()
	of := func(states ...string) []row {
		rows := make([]row, len(states))
		for i, text := range states {
			class, state, _ := strings.Cut(text, " ")
			rows[i] = row{Sink: string(rune('a' + i)), State: state, Class: strings.TrimPrefix(class, "-")}
		}
		return rows
	}
	for _, c := range []struct {
		rows []row
		want string
	}{
		{of("good moving", "- idle"), "moving good"},
		{of("- idle", "- idle"), "idle "},
		{of("good moving", "bad no access 8s", "- idle"), "b: no access 8s bad"},
		{of("bad sink full 1m", "bad no access 8s", "- idle"), "2 of 3 sinks stand still bad"},
		{of("warn retries in 8s", "good moving"), "a: retries in 8s warn"},
		{append(of("- idle", "- idle"), row{Sink: buffer.Unrouted, State: "stands still 1m", Class: "warn", Unrouted: true}), "stands still 1m warn"},
	} {
		text, class := sinksState(c.rows)
		testkit.Equal(t, "state", text+" "+class, c.want)
	}
}

// TestMerged: dead letters and what the sink still says to such events are one problem, whichever relay says it; what waits for another reason is one of its own.
func TestMerged(t *testing.T) {
	t.Parallel()
	const said = `POST http://crm/a: 422 Unprocessable Entity: {"detail": "currency"}`
	all := merged([]problem{
		{Pipeline: "orders", Title: "sink refuses some events", Detail: "vm/2: sink: " + said, Refuses: true, Warning: true},
		{Pipeline: "orders", Title: titleWaits, Detail: "2 batches wait (3 events), due now: " + said, Said: said, Warning: true},
		{Pipeline: "orders", Title: "7 dead letters", Key: keyDead, Detail: "All of topic a: " + said, Said: said, Now: "3 events became dead letters.", Warning: true},
		{Pipeline: "bills", Title: "1 dead letter", Key: keyDead, Said: said, Warning: true},
		{Pipeline: "bills", Title: titleWaits, Detail: "1 batch waits: 503", Said: "503", Warning: true},
	})
	var got []string
	for i := range all {
		got = append(got, all[i].Pipeline+" "+all[i].Title)
	}
	testkit.Equal(t, "problems", strings.Join(got, ", "), "orders 7 dead letters, bills 1 dead letter, bills batches wait for a retry")
	testkit.Equal(t, "now", all[0].Now, "3 events became dead letters. 2 batches wait (3 events), due now.")
	testkit.Equal(t, "detail", all[0].Detail, "All of topic a: "+said)
}

// TestDeaths: deaths and deliveries of the last minute are counted, with the share, and older ones are not.
func TestDeaths(t *testing.T) {
	t.Parallel()
	h, key, at := newHistory(), seriesKey{pipeline: "orders"}, time.Now()
	observe := func(died, delivered int64) {
		h.add(key, at, observation{died: map[string]int64{"a": died}, delivered: map[string]int64{"a": delivered}})
		at = at.Add(minInterval)
	}
	observe(1000, 1000) // before the console looked
	observe(1003, 1003)
	testkit.Equal(t, "first", h.deaths(key).text(), "3 events became dead letters in the last 10s: 50 % of those that were sent.")
	observe(1004, 1200)
	testkit.Equal(t, "many", h.deaths(key).many(), true)
	for range tallies {
		observe(1004, 5000)
	}
	testkit.Equal(t, "a minute later", h.deaths(key).text(), "")
	observe(1005, 90_000)
	testkit.Equal(t, "a few", h.deaths(key).text(), "1 event became a dead letter in the last minute: less than 1 % of those that were sent.")
	testkit.Equal(t, "many", h.deaths(key).many(), false)
}
