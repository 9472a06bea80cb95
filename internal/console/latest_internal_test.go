package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
)

// slowSource is a source whose reports take a while. Each has one more dead letter than the one before.
type slowSource struct {
	takes atomic.Int64 // nanoseconds
	n     atomic.Int64
}

func (s *slowSource) Report(ctx context.Context, _ ...string) admin.Report {
	n := s.n.Add(1)
	select {
	case <-time.After(time.Duration(s.takes.Load())):
	case <-ctx.Done():
	}
	return admin.Report{Pipelines: []admin.PipelineReport{{Name: "orders", Dead: n}}}
}
func (s *slowSource) Changed(string)              {}
func (s *slowSource) Pipelines() []admin.Pipeline { return nil }

// healthy is a pipeline that is ready.
type healthy struct{ admin.Health }

func (healthy) Ready() error { return nil }

// TestLatest: the overview waits for no slow database, but shows what a user has just done.
func TestLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const quick = 10 * time.Millisecond
		source := &slowSource{}
		source.takes.Store(int64(quick))
		s := New(Config{Source: source})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		report := func() (dead int64, took, age time.Duration) {
			t.Helper()
			began := time.Now()
			r, at := s.report(t.Context())
			return r.Pipelines[0].Dead, time.Since(began), time.Since(at)
		}
		dead, took, _ := report() // no sampler runs yet
		testkit.Equal(t, "the first report", dead, 1)
		testkit.Equal(t, "it takes", took, quick)

		s.Use()
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		dead, took, age := report() // the sampler is asked for a new one
		testkit.Equal(t, "a report in between", dead, 3)
		testkit.Equal(t, "it takes", took, quick)
		testkit.Equal(t, "its age", age, quick)
		dead, took, _ = report()
		testkit.Equal(t, "a report of the same second", dead, 3)
		testkit.Equal(t, "it takes", took, 0)

		source.takes.Store(int64(3 * time.Second))
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		dead, took, age = report()
		testkit.Equal(t, "while the database is slow", dead, 3)
		testkit.Equal(t, "it takes", took, freshWithin)
		testkit.Equal(t, "its age", age > 5*time.Second, true)
		s.changed("orders")
		began := time.Now()
		known, _ := s.report(t.Context())
		testkit.Equal(t, "pipelines with a report just after a change", len(known.Pipelines), 0)
		testkit.Equal(t, "it takes", time.Since(began), freshWithin)
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a synctest bubble
		dead, _, _ = report()       // 4 was begun before the change
		testkit.Equal(t, "a while later", dead > 4, true)
		cancel()
		testkit.NoError(t, <-ended)
	})
}

// blockedSource is a source of many pipelines whose reports take until they are released.
type blockedSource struct {
	names    []string
	released chan struct{}
}

func (s *blockedSource) Report(_ context.Context, only ...string) (r admin.Report) {
	<-s.released
	for _, name := range s.names {
		if len(only) == 0 || slices.Contains(only, name) {
			r.Pipelines = append(r.Pipelines, admin.PipelineReport{Name: name, State: "idle", Pending: 4711})
		}
	}
	return r
}
func (s *blockedSource) Changed(string) {}
func (s *blockedSource) Pipelines() (all []admin.Pipeline) {
	for _, name := range s.names {
		all = append(all, admin.Pipeline{Name: name, Health: healthy{}, Sinks: []admin.Sink{{Name: "only", Health: healthy{}}}, Router: healthy{}})
	}
	return all
}

// TestOverview_Reading: the page has the names of 200 pipelines before anything is known of them, and the figures when it is loaded again later.
func TestOverview_Reading(t *testing.T) {
	t.Parallel()
	source := &blockedSource{released: make(chan struct{})}
	for i := range 200 {
		source.names = append(source.names, fmt.Sprintf("pipeline-%03d", i))
	}
	s := New(Config{Source: source, Guard: access.New()})
	page := func() string {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
		s.ServeHTTP(w, r)
		testkit.Equal(t, "status", w.Code, http.StatusOK)
		return w.Body.String()
	}
	places := func(text string) (at []int) {
		t.Helper()
		for _, name := range source.names {
			at = append(at, strings.Index(text, `id="row-`+name+`"`))
		}
		if at[0] < 0 || !slices.IsSorted(at) {
			t.Errorf("not all pipelines are there in their order: %v", at)
		}
		return at
	}
	before := page()
	places(before)
	testkit.Equal(t, "rows that are being read", strings.Count(before, "reading …"), 2*len(source.names))
	testkit.Equal(t, "it says so", strings.Contains(before, "Reading the status of 200 pipelines …"), true)
	testkit.Equal(t, "it says that all is well", strings.Contains(before, "Everything works."), false)
	close(source.released)
	testkit.Eventually(t, func() error {
		if after := page(); strings.Contains(after, "eading …") || strings.Count(after, "4,711") != len(source.names) {
			return fmt.Errorf("the page is\n%s", after)
		}
		return nil
	})
	source.released = make(chan struct{})
	s.changed(source.names[7])
	changed := page()
	places(changed)
	testkit.Equal(t, "pipelines that are known after a change of one", strings.Count(changed, "4,711"), len(source.names)-1)
	close(source.released)
	testkit.Eventually(t, func() error {
		if after := page(); strings.Contains(after, "eading …") {
			return fmt.Errorf("the page is\n%s", after)
		}
		return nil
	})
	places(page())
	s.latest.close()
}

// awaySource is a source of databases that do not respond: a report takes three seconds, or ends with its context.
type awaySource struct {
	slowSource
	deaf    bool // it does not end with its context
	reports atomic.Int64
}

func (s *awaySource) Report(ctx context.Context, only ...string) (r admin.Report) {
	s.reports.Add(1)
	if s.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	for _, name := range only {
		r.Errors = append(r.Errors, admin.ReportError{Name: name, Error: "the database did not respond within 3s"})
	}
	return r
}

// TestLatest_Close: the end of the console waits for no database that is away, and never for one after the other.
func TestLatest_Close(t *testing.T) {
	t.Parallel()
	for deaf, want := range map[bool]time.Duration{false: 0, true: 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			source := &awaySource{deaf: deaf}
			s := New(Config{Source: source})
			s.latest.put(&admin.Report{}, time.Now(), 0)
			for i := range 20 {
				s.changed(fmt.Sprintf("pipeline-%02d", i))
			}
			for range 3 { // the reports are under way for the first page
				began := time.Now()
				s.report(t.Context())
				testkit.Equal(t, "a page takes", time.Since(began), freshWithin)
			}
			testkit.Equal(t, "reports", source.reports.Load(), 20)
			s.changed("pipeline-07")
			s.report(t.Context())
			testkit.Equal(t, "reports after one more change", source.reports.Load(), 21)
			began := time.Now()
			s.latest.close()
			testkit.Equal(t, "the end takes at most", time.Since(began) <= want, true)
			report, _ := s.report(t.Context())
			testkit.Equal(t, "reports after the end", source.reports.Load(), 21)
			testkit.Equal(t, "cancelled reports that are shown", len(report.Errors), 0)
		})
	}
}
