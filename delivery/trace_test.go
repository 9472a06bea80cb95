package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// traced returns a worker with traces, and what it recorded of each span that failed or names an event.
func traced(t *testing.T) (b *workerHarness, tracer *tracing.Tracer, spans func() []string) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	tracer = tracing.New(tracing.Config{Provider: provider, Pipeline: "orders"})
	b = newHarness(func(c *delivery.Config) { c.Tracer, c.MaxAttempts = tracer, 1 })
	return b, tracer, func() (all []string) {
		for _, s := range recorder.Ended() {
			var of []string
			for _, a := range s.Attributes() {
				if a.Key == "error.type" || strings.HasPrefix(string(a.Key), "relay.event.") {
					of = append(of, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
				}
			}
			if slices.Sort(of); of != nil {
				all = append(all, s.Name()+" "+strings.Join(of, " "))
			}
		}
		return all
	}
}

// The spans of a send that was refused, and of a batch with a dead letter, name the event; a batch whose settle failed has failed.
func TestWork_Traces(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events int
		answer error
		settle error
		want   []string
	}{
		"delivered": {events: 2},
		"outage":    {2, sink.Unavailable(errDown), nil, []string{"send orders error.type=outage", "relay orders error.type=retry"}},
		"one of three": {3, sink.NewBatchError([]sink.EventError{{Index: 0, Err: sink.Unavailable(errDown)}, {Index: 2, Err: errBad}}), nil, []string{
			"send orders error.type=events_rejected relay.event.id=103 relay.event.topic=orders",
			"relay orders error.type=dead_letter relay.event.id=103 relay.event.topic=orders",
		}},
		"single": {1, errBad, nil, []string{
			"send orders error.type=batch_rejected relay.event.id=101 relay.event.topic=orders",
			"relay orders error.type=dead_letter relay.event.id=101 relay.event.topic=orders",
		}},
		"invalid answer": {1, &sink.BatchError{Events: []sink.EventError{{Index: 7, Err: errBad}}}, nil, []string{
			"send orders error.type=events_rejected", "relay orders error.type=retry",
		}},
		"not settled": {1, nil, buffer.ErrLocked, []string{"settle error.type=settle_failed", "relay orders error.type=settle_failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, tracer, spans := traced(t)
			b.answer(c.answer)
			if c.settle != nil {
				b.settle = always(c.settle)
			}
			l := batchOf(c.events)
			ctx, root := tracer.Batch(t.Context(), l, time.Now(), time.Now())
			if _, err := b.Work(ctx, t.Context(), l, nil, nil); err != nil {
				t.Fatal(err)
			}
			root.End()
			if diff := cmp.Diff(c.want, spans()); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
		})
	}
}

// A check of the sink that fails is a span.
func TestCheck_Traces(t *testing.T) {
	t.Parallel()
	b, _, spans := traced(t)
	if err := b.Worker.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.check = func(context.Context) error { return sink.Unavailable(errDown) }
	for range 2 {
		if err := b.Worker.Check(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("the check fails with %v", err)
		}
	}
	if diff := cmp.Diff([]string{"check orders error.type=outage"}, spans()); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
