package bench

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
)

// BenchmarkTraces drains 300,000 waiting events into a Redis stream without traces, with one batch in a hundred sampled, and with all of
// them, alternating. Spans are exported by OTLP to a receiver in this process.
func BenchmarkTraces(b *testing.B) {
	db := newDatabase(b)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	b.Cleanup(collector.Close)
	traced := func(name string, sampler sdktrace.Sampler) contender {
		return contender{name: name, table: eventsTable, start: func(b *testing.B, to broker, events int) drain {
			tracing, shutdown := pipeline.Tracing{}, func() {}
			if sampler != nil {
				exporter, err := otlptracehttp.New(b.Context(), otlptracehttp.WithEndpointURL(collector.URL+"/v1/traces"))
				testkit.NoError(b, err)
				provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithSampler(sampler))
				tracing = pipeline.Tracing{Provider: provider, System: "redis", Destination: "orders"}
				shutdown = func() { testkit.NoError(b, provider.Shutdown(context.WithoutCancel(b.Context()))) }
			}
			count := newCountdown(events)
			stop := db.startTraced(b, postgres.Config{Claim: buffer.ClaimRange}, to.sink, count, tracing)
			return drain{done: func() { count.await(b, 2*time.Minute) }, stop: func() {
				stop()
				shutdown()
			}}
		}}
	}
	db.race(b, redisStream(b), []contender{
		traced("off", nil), traced("1 %", sdktrace.ParentBased(sdktrace.TraceIDRatioBased(.01))), traced("all", sdktrace.AlwaysSample()),
	}, scaled(300_000), cold)
}
