package tracing_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/tracing"
)

// The lines of a sampled batch name its trace; those of others do not.
func TestLogHandler(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	text := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
	log := slog.New(tracing.LogHandler(text)).With("pipeline", "orders")
	for name, sampler := range map[string]sdktrace.Sampler{"sampled": sdktrace.AlwaysSample(), "unsampled": sdktrace.NeverSample()} {
		_, provider := recorder(t, sampler)
		ctx, span := tracing.New(tracing.Config{Provider: provider, Pipeline: "orders"}).Batch(t.Context(), lease(""), time.Now(), time.Now())
		out.Reset()
		log.InfoContext(ctx, "a", "events", 1)
		id, want := tracing.SampledID(ctx), "msg=a pipeline=orders events=1"
		if name == "sampled" {
			want += " trace_id=" + id + " span_id=" + trace.SpanContextFromContext(ctx).SpanID().String()
		}
		testkit.Equal(t, name, out.String(), want+"\n")
		if (id != "") != (name == "sampled") {
			t.Errorf("%s: the id is %q", name, id)
		}
		span.End()
	}
	out.Reset()
	log.InfoContext(context.Background(), "b")
	testkit.Equal(t, "no span", out.String(), "msg=b pipeline=orders\n")
}
