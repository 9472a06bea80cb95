package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/diagnosis"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestDoctor_Cost: whatever users ask for, the databases are checked every ten seconds at most, and by nobody at all while nobody looks.
func TestDoctor_Cost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		source := &oneSource{health: healthy{}, report: admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "idle"}}}}
		s := New(Config{Source: source, Guard: access.New(), Diagnose: func(context.Context, func(string) string) diagnosis.Report {
			runs++
			return diagnosis.Report{}
		}})
		look := func(query string, want int) string {
			t.Helper()
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/doctor"+query, nil))
			testkit.Equal(t, "status", w.Code, http.StatusOK)
			testkit.Equal(t, "diagnoses", runs, want)
			return w.Body.String()
		}
		look("", 1)
		look("", 1)
		if page := look("?again=1", 1); !strings.Contains(page, "another one can be made") {
			t.Errorf("the page does not say that the diagnosis is not new: %s", page)
		}
		time.Sleep(doctorPause + time.Second) //nolint:forbidigo // in a synctest bubble
		look("", 1)
		look("?again=1", 2)
		time.Sleep(doctorKept + time.Second) //nolint:forbidigo // in a synctest bubble
		if page := look("", 3); !strings.Contains(page, "Doctor: no problems, no warnings, as of <time") {
			t.Errorf("the headline does not say of when it is: %s", page)
		}
		s.latest.put(&source.report, time.Now(), s.latest.begin())
		look("", 3)
		source.health = &reason{class: buffer.NotReadySink, kind: buffer.NotReadySink} // the overview is another one
		look("", 3)
		time.Sleep(doctorPause + time.Second) //nolint:forbidigo // in a synctest bubble
		look("", 4)
		look("", 4)
	})
}

// TestDoctor_OneFact: a fact about the same server is one card, whichever sinks and pipelines it is found at, and names those alone.
func TestDoctor_OneFact(t *testing.T) {
	t.Parallel()
	at := []string{"orders/log: sqlite -> redis", "orders/crm: sqlite -> http", "orders/bus: sqlite -> nats"}
	var all []doctorFinding
	add := func(subject, text, fix string, routes []string) {
		all = addFinding(all, doctorFinding{Finding: diagnosis.Finding{Subject: subject, Text: text, Fix: fix}, Of: routesOf(subject, routes)})
	}
	add("sink log", "redis://cache (stream a): keeps nothing", "correct sink log", at)
	add("sink bus", "stream TELE is in memory", "", at)
	add("sink", "stream TELE is in memory", "", []string{"telemetry: sqlite -> nats"})
	add("sink", "stream BUS is in memory", "", []string{"telemetry: sqlite -> nats"})
	add("table", "has no index", "CREATE INDEX", at[:1])
	add("table", "has no index", "CREATE INDEX", []string{"emails: sqlite -> redis"})
	var got []string
	for i := range all {
		got = append(got, all[i].Subject+": "+all[i].Text+" of "+strings.Join(all[i].Of, ", "))
	}
	testkit.Equal(t, "cards", strings.Join(got, "\n"), strings.Join([]string{
		"sink log: redis://cache (stream a): keeps nothing of orders/log: sqlite -> redis",
		"sink: stream TELE is in memory of orders/bus: sqlite -> nats, telemetry: sqlite -> nats",
		"sink: stream BUS is in memory of telemetry: sqlite -> nats",
		"table: has no index of orders/log: sqlite -> redis, emails: sqlite -> redis",
	}, "\n"))
}

// TestOverview_Doctor: the headline is green only if doctor found nothing, and an open overview has it look: after half a minute, and then every quarter of an hour.
func TestOverview_Doctor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		report := admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", State: "idle"}}}
		s := New(Config{Source: &oneSource{health: healthy{}, report: report}, Guard: access.New(), Diagnose: func(context.Context, func(string) string) diagnosis.Report {
			looks++
			return diagnosis.Report{Pipelines: []diagnosis.Pipeline{{Name: "orders", Findings: []diagnosis.Finding{{Level: buffer.LevelWarning.String(), Subject: "sink", Text: "keeps nothing"}}}}}
		}})
		s.Use()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		d := s.overviewOf(&report, nil)
		testkit.Equal(t, "good before", d.Good, true)
		time.Sleep(2 * doctorEvery) //nolint:forbidigo // in a synctest bubble
		testkit.Equal(t, "diagnoses while nobody looks", looks, 0)
		s.live.mu.Lock()
		s.live.watchers++
		s.live.mu.Unlock()
		time.Sleep(doctorFirst + 5*time.Second) //nolint:forbidigo // in a synctest bubble
		testkit.Equal(t, "diagnoses", looks, 1)
		d = s.overviewOf(&report, nil)
		testkit.Equal(t, "headline", d.Headline, "Everything works.")
		testkit.Equal(t, "good", d.Good, false)
		testkit.Equal(t, "what doctor found", d.Doctor.Summary, "no problems, 1 warning")
		time.Sleep(2*doctorEvery + time.Minute) //nolint:forbidigo // in a synctest bubble
		testkit.Equal(t, "diagnoses later", looks, 3)
		cancel()
		testkit.NoError(t, <-ended)
	})
}
