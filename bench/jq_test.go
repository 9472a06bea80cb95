package bench

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// Request and response of a bulk API.
const (
	requestJQ = `{inputs: [.events[] | {id, properties: .payload, traceId: .id}]}`
	resultsJQ = `[.body.errors[]? | {id: .context.id, error: .message}]`

	bulkAnswer = `{"status": "COMPLETE", "results": [], "errors": []}`
)

// BenchmarkJQ drains the relay's own table to an HTTP API in this process: without
// programs, with a request program, and also with a results program.
func BenchmarkJQ(b *testing.B) {
	db := newDatabase(b)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		if _, err := io.WriteString(w, bulkAnswer); err != nil {
			b.Error(err)
		}
	}))
	b.Cleanup(server.Close)
	var contenders []contender
	for _, c := range []struct{ name, request, results string }{
		{name: "plain"},
		{name: "request", request: requestJQ},
		{name: "results", results: resultsJQ},
		{name: "request+results", request: requestJQ, results: resultsJQ},
	} {
		s, err := httpsink.New(httpsink.Config{URL: server.URL, Request: c.request, Results: c.results})
		testkit.NoError(b, err)
		b.Cleanup(func() { testkit.NoError(b, s.Close()) })
		contenders = append(contenders, contender{
			name: c.name, table: eventsTable,
			start: func(b *testing.B, _ broker, events int) drain {
				return db.pipeline(b, postgres.Config{Claim: buffer.ClaimAuto}, s, events)
			},
		})
	}
	to := nowhere()
	db.race(b, to, contenders, scaled(300_000), cold)
}
