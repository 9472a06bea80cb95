package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
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
