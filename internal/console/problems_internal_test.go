package console

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestGrouped: what a server says of several pipelines is one problem, as old as the oldest; what nobody explained, or was said otherwise, is not.
func TestGrouped(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var all []problem
	for i := range 7 {
		all = append(all, problem{Pipeline: fmt.Sprintf("p%d", i), Title: "sink unavailable", Detail: "connection refused", Since: now.Add(-time.Duration(i) * time.Minute)})
	}
	all = append(all,
		problem{Pipeline: "other", Sink: "crm", Title: "sink unavailable", Detail: "503"}, problem{Pipeline: "another", Title: "sink unavailable", Detail: "503"},
		problem{Pipeline: "p1", Title: "database does not work", Detail: "503"},
		problem{Pipeline: "p1", Title: "2 dead letters", Warning: true}, problem{Pipeline: "p2", Title: "2 dead letters", Warning: true})
	groups := grouped(all)
	var named []string
	for i := range groups {
		named = append(named, groups[i].Named()+": "+groups[i].Title)
	}
	want := []string{"p0, p1, p2, p3, p4 and 2 more: sink unavailable", "other/crm and another: sink unavailable", "p1: database does not work", "p1: 2 dead letters", "p2: 2 dead letters"}
	testkit.Equal(t, "groups", fmt.Sprintf("%q", named), fmt.Sprintf("%q", want))
	testkit.Equal(t, "since", groups[0].Since, now.Add(-6*time.Minute))
	testkit.Equal(t, "all are still there", len(all), 12)
}

// TestPausedText: the headline counts what is paused, and other warnings say nothing of it.
func TestPausedText(t *testing.T) {
	t.Parallel()
	pipeline, sink, other := problem{Pipeline: "p", Title: titlePaused}, problem{Pipeline: "p", Sink: "s", Title: titlePaused}, problem{Pipeline: "p", Title: "suspects"}
	for want, of := range map[string]struct {
		all   []problem
		total int
	}{
		"":                             {[]problem{other}, 2},
		"The pipeline is paused.":      {[]problem{other, pipeline}, 1},
		"2 of 3 pipelines are paused.": {[]problem{pipeline, sink, pipeline}, 3},
		"2 sinks are paused.":          {[]problem{sink, sink}, 1},
	} {
		testkit.Equal(t, "headline", pausedText(of.all, of.total), want)
	}
}

// TestPipelineProblems_Paused: what waits is not announced as tried again while it is paused.
func TestPipelineProblems_Paused(t *testing.T) {
	t.Parallel()
	report := admin.PipelineReport{Name: "orders", Waits: []admin.WaitReport{{}}}
	s := &Console{}
	testkit.Equal(t, "problems while it runs", len(s.pipelineProblems(&report, nil)), 1)
	report.Pauses = []admin.PauseReport{{}}
	paused := s.pipelineProblems(&report, nil)
	testkit.Equal(t, "problems while it is paused", len(paused), 1)
	testkit.Equal(t, "its title", paused[0].Title, titlePaused)
}

// TestKindProblem_Alone: a card is read without the documentation at hand, so it names no file of it.
func TestKindProblem_Alone(t *testing.T) {
	t.Parallel()
	for kind, one := range kindProblem {
		if strings.Contains(one.do+one.alone, "docs/") {
			t.Errorf("%s sends the reader to a file: %s", kind, one.do)
		}
	}
}

// reason is a pipeline that is not ready for a reason.
type reason struct {
	healthy
	class, kind string
	cause       error
}

func (r *reason) Ready() error  { return r }
func (r *reason) Error() string { return "said so" }
func (r *reason) Unwrap() error { return r.cause }
func (r *reason) Class() string { return r.class }
func (r *reason) Kind() string  { return r.kind }

// oneSource is a source of one pipeline with what a test sets.
type oneSource struct {
	health admin.Health
	report admin.Report
}

func (s *oneSource) Report(context.Context, ...string) admin.Report { return s.report }
func (s *oneSource) Changed(string)                                 {}
func (s *oneSource) Pipelines() []admin.Pipeline {
	return []admin.Pipeline{{Name: "orders", Health: s.health}}
}

// TestProblems_RefusesSome: what a poison topic is called changes from second to second; since when does not.
func TestProblems_RefusesSome(t *testing.T) {
	t.Parallel()
	began := time.Now()
	source := &oneSource{report: admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "sending"}}}}
	s := New(Config{Source: source, Process: "host/1"})
	p := &source.report.Pipelines[0]
	look := func(after time.Duration) []problem {
		t.Helper()
		now := began.Add(after)
		all := problems(s, &source.report)
		s.live.observe(now, all)
		s.live.setSince(now, all)
		return all
	}
	states := []struct {
		title string
		set   func()
	}{
		{"sink refuses some events", func() { source.health = &reason{class: buffer.NotReadyRefusing, kind: buffer.KindSome} }},
		{"", func() {}},
		{"batches wait for a retry", func() { p.Waits = []admin.WaitReport{{Error: "422", Batches: 1}} }},
		{"sink refuses what it gets", func() { source.health = &reason{class: buffer.NotReadyRefusing, kind: buffer.NotReadyRefusing} }},
		{"another relay makes no progress: sink refuses what it gets", func() {
			p.Relays = []admin.RelayReport{{Owner: "other/2/orders", Running: true, NotReady: "refusing", NotReadyClass: buffer.NotReadyRefusing}}
		}},
		{"sink refuses some events", func() {
			p.Relays = []admin.RelayReport{{Owner: "other/2/orders", Running: true, NotReady: "refusing", NotReadyClass: buffer.NotReadyRefusing, NotReadyKind: buffer.KindSome}}
		}},
	}
	for i := range 12 {
		source.health, p.Waits, p.Relays = healthy{}, nil, nil
		state := states[i%len(states)]
		state.set()
		all := look(time.Duration(i) * 5 * time.Second)
		if state.title == "" {
			testkit.Equal(t, "problems in between", len(all), 0)
			continue
		}
		testkit.Equal(t, "problems", len(all), 1)
		testkit.Equal(t, "title", all[0].Title, state.title)
		testkit.Equal(t, "since", all[0].Since, began)
		if strings.Contains(all[0].Alone, "Events that are refused alone retry.max_attempts times become") {
			t.Errorf("an event that is refused for good while others are accepted has no attempts: %s", all[0].Alone)
		}
	}
	source.health, p.Waits, p.Relays = healthy{}, nil, nil
	look(80 * time.Second)
	source.health = &reason{class: buffer.NotReadyRefusing, kind: buffer.KindSome}
	testkit.Equal(t, "since, much later", look(2 * time.Minute)[0].Since, began.Add(2*time.Minute))
}

// TestOverview_Starting: a database that is opened for the first time is no fault yet, whether its status could be read or not.
func TestOverview_Starting(t *testing.T) {
	t.Parallel()
	for name, report := range map[string]admin.Report{
		"The pipeline starts.":               {Pipelines: []admin.PipelineReport{{Name: "orders", State: "no relay"}}},
		"Reading the status of 1 pipeline …": {Errors: []admin.ReportError{{Name: "orders", Error: "the database did not respond within 3s"}}},
	} {
		source := &oneSource{health: &reason{class: buffer.NotReadyDatabase, kind: buffer.KindStarting}, report: report}
		s := New(Config{Source: source})
		d := s.overviewOf(&report, problems(s, &report))
		testkit.Equal(t, "headline", d.Headline, name)
		testkit.Equal(t, "all is well", d.Good, false)
		testkit.Equal(t, "problems", len(d.Problems), 0)
		testkit.Equal(t, "class of the row", d.Rows[0].Class, "")
		source.health = &reason{class: buffer.NotReadyDatabase, kind: buffer.NotReadyDatabase} // the check has failed
		d = s.overviewOf(&report, problems(s, &report))
		testkit.Equal(t, "headline when it does not work", d.Headline, "The pipeline needs attention.")
	}
}
