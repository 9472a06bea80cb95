package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/outboxrelay/relay/internal/tracing"
)

// A database or a sink that is away is a trace of its own, now and then.
func TestTracer_Failures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFailures)
}

func testFailures(t *testing.T) {
	spans, provider := recorder(t, sdktrace.AlwaysSample())
	tracer := tracing.New(tracing.Config{
		Provider: provider, Pipeline: "orders", Sink: "bus", System: "nats", Destination: "shop.{topic}",
		Attributes: []attribute.KeyValue{attribute.String("http.request.method", "POST"), attribute.String("server.address", "bus")},
		Redact:     func(text string) string { return strings.ReplaceAll(text, "s3cret", "***") },
	})
	err := errors.New("password s3cret is wrong")
	ended, end := context.WithCancel(t.Context())
	end()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	began := time.Now()
	tracer.DatabaseFailed(ended, "claim", began, err)
	tracer.DatabaseFailed(t.Context(), "claim", began, nil)
	for range 61 {
		tracer.DatabaseFailed(late, "count", time.Now(), err)
		tracer.DatabaseFailed(t.Context(), "claim", time.Now(), err)
		tracer.CheckFailed(t.Context(), time.Now(), err)
		<-time.After(time.Second)
	}
	var got []string
	for _, s := range spans.Ended() {
		line := fmt.Sprint(s.StartTime().Sub(began), " ", s.SpanKind(), " ", s.Name(), ": ", s.Status().Description)
		for _, a := range s.Attributes() {
			line += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
		}
		if s.Parent().IsValid() {
			line += " has a parent"
		}
		got = append(got, line)
	}
	const text = ": password *** is wrong relay.pipeline=orders relay.sink=bus "
	check := "client check shop.{topic}" + text + "server.address=bus error.type=outage"
	want := []string{"0s client count" + text + "error.type=count_failed", "0s " + check}
	for _, at := range []string{"10s", "20s", "30s", "40s", "50s", "1m0s"} {
		want = append(want, at+" client count"+text+"error.type=count_failed")
	}
	want = append(want, "1m0s "+check)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

// The sampler decides of each failure, until one is sampled.
func TestTracer_FailuresSampled(t *testing.T) {
	t.Parallel()
	spans, provider := recorder(t, everyThird{new(int)})
	tracer := tracing.New(tracing.Config{Provider: provider, Pipeline: "orders"})
	for range 9 {
		tracer.DatabaseFailed(t.Context(), "count", time.Now(), errors.New("x"))
	}
	if n := len(spans.Ended()); n != 1 {
		t.Errorf("%d spans", n)
	}
}

// everyThird samples every third span.
type everyThird struct{ n *int }

func (s everyThird) ShouldSample(sdktrace.SamplingParameters) (r sdktrace.SamplingResult) {
	if *s.n++; *s.n%3 == 0 {
		r.Decision = sdktrace.RecordAndSample
	}
	return r
}

func (s everyThird) Description() string { return "every third" }
