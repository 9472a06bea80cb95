package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/testkit"
)

// BenchmarkOverview is the page of the overview with 200 pipelines whose status is known and of which an hour of history is.
func BenchmarkOverview(b *testing.B) {
	source := &blockedSource{released: make(chan struct{})}
	close(source.released)
	for i := range 200 {
		source.names = append(source.names, fmt.Sprintf("pipeline-%03d", i))
	}
	s := New(Config{Source: source, Guard: access.New()})
	report := source.Report(b.Context())
	for i := range report.Pipelines {
		report.Pipelines[i].Relays = []admin.RelayReport{{Owner: "host/1/" + report.Pipelines[i].Name, Version: "v1", Running: true, Delivered: 4711}}
	}
	now := time.Now()
	for step := range 3600 / int(hourStep/time.Second) {
		report.Pipelines[0].Pending++
		s.sample(now.Add(time.Duration(step)*hourStep-time.Hour), &report)
	}
	s.latest.put(&report, now, 0)
	size := 0
	for b.Loop() {
		w := httptest.NewRecorder()
		s.latest.put(&report, time.Now(), 0)
		s.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://localhost/", nil))
		testkit.Equal(b, "status", w.Code, http.StatusOK)
		size = w.Body.Len()
	}
	b.ReportMetric(float64(size), "bytes")
}
