package httpsink_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// BenchmarkPrograms sends batches of 1000 events of about 300 bytes, with and without jq, to a server that
// responds with a result for each event.
func BenchmarkPrograms(b *testing.B) {
	const (
		request = `{inputs: [.events[] | {id: .payload.email, objectWriteTraceId: .id, properties: .payload}]}`
		results = `[.body.errors[]? | {id: .context.id[0], error: .message, retry: false}]`
		each    = `[.body.results | to_entries[] | select(.value.status >= 400) | {index: .key, error: .value.error}]`
	)
	for _, bench := range []struct {
		name   string
		config httpsink.Config
	}{
		{"none", httpsink.Config{}},
		{"gzip", httpsink.Config{Gzip: true}},
		{"request", httpsink.Config{Request: request}},
		{"payloads", httpsink.Config{Request: `[.events[].payload]`}},
		{"ndjson", httpsink.Config{Format: httpsink.NDJSON, Request: `[.events[] | {index: {_id: .id}}, .payload]`}},
		{"form", httpsink.Config{Format: httpsink.Form, Request: `{a: [.events[].payload]}`}},
		{"results", httpsink.Config{Results: results}},
		{"resultsOfEach", httpsink.Config{Results: each}},
		{"both", httpsink.Config{Request: request, Results: results}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bulk := batchOf(1000)
			response := make([]byte, 0, 64<<10)
			response = append(response, `{"status":"COMPLETE","results":[`...)
			for i := range bulk.Events {
				response = fmt.Appendf(response, `{"id":"%d","status":201,"createdAt":"2026-01-02T03:04:05.123Z"},`, i)
			}
			response = append(response[:len(response)-1], "]}"...)
			server := serve(b, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					b.Error(err)
				}
				if _, err := w.Write(response); err != nil {
					b.Error(err)
				}
			})
			bench.config.URL = server
			s := newSink(b, bench.config)
			b.ReportAllocs()
			b.SetParallelism(2)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := s.Send(b.Context(), bulk); err != nil {
						b.Error(err)
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)*float64(len(bulk.Events))/b.Elapsed().Seconds(), "events/s")
			testkit.NoError(b, s.Close())
		})
	}
}

// batchOf has n events of about 300 bytes.
func batchOf(n int) *buffer.Batch {
	b := batch(make([]string, n)...)
	for i := range b.Events {
		key := fmt.Sprintf("customer-%d", i%100)
		b.Events[i].Topic, b.Events[i].Key = "contact.activity", &key
		b.Events[i].Payload = fmt.Appendf(nil, `{"id": %d, "kind": "page_view", "email": "somebody-%d@example.com", "amount": 12.50, "lead_id": %d, `+
			`"page": "https://example.com/products/%d?utm_source=newsletter", "visited_at": "2026-01-02T03:04:05.123456Z", `+
			`"agent": "Mozilla/5.0 (X11; Linux x86_64)", "tags": ["a", "b"], "seconds": 17, "is_new": true, "utm": {"source": "x", "campaign": null}}`, i, i, i*7, i)
	}
	return b
}
