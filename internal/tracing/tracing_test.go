package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	sampled   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func recorder(t *testing.T, sampler sdktrace.Sampler) (*tracetest.SpanRecorder, trace.TracerProvider) {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sampler))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return spans, provider
}

func lease(headers ...string) *buffer.Lease {
	l := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "orders", FirstSend: true}}
	for i, h := range headers {
		e := outbox.Event{ID: int64(i + 1), Topic: "t", Payload: []byte("1")}
		if h != "" {
			e.Headers = outbox.Headers(h)
		}
		l.Events = append(l.Events, e)
	}
	return l
}

var errAway = errors.New("connection refused")

func noAddress(*outbox.Event) string { return "" }

// A pipeline without traces pays nothing for them.
func TestTracer_Off(t *testing.T) {
	var tracer *tracing.Tracer
	if got := tracing.New(tracing.Config{Pipeline: "orders"}); got != nil {
		t.Fatal("without a provider there is a tracer")
	}
	l, ctx, header, now := lease(`{"traceparent":"`+sampled+`"}`), t.Context(), http.Header{}, time.Now()
	outcomes := []buffer.Outcome{{Verdict: buffer.Delivered}}
	allocations := testing.AllocsPerRun(100, func() {
		ctx, span := tracer.Batch(ctx, l, now, now)
		tracer.Link(ctx, l)
		sending, send := tracer.Send(ctx, &l.Batch, noAddress)
		tracing.Inject(sending, header)
		tracing.Answered(sending, 200)
		if tracing.Carry(sending, &l.Batch) != &l.Batch {
			t.Fatal("the batch was copied")
		}
		send.Fail("outage", "x")
		send.Event(&l.Events[0])
		tracer.DatabaseFailed(ctx, "claim", now, errAway)
		tracer.CheckFailed(ctx, now, errAway)
		send.End()
		tracer.Outcomes(ctx, l, outcomes)
		tracer.Fail(ctx, "x", "y")
		settle := tracer.Settle(ctx)
		settle.End()
		span.End()
	})
	if allocations != 0 || len(header) != 0 {
		t.Errorf("%v allocations, headers %v", allocations, header)
	}
}

// An unsampled batch is not searched for headers, and changes no event. Its HTTP request says that it is not sampled.
func TestTracer_Unsampled(t *testing.T) {
	t.Parallel()
	spans, provider := recorder(t, sdktrace.NeverSample())
	tracer := tracing.New(tracing.Config{Provider: provider, Pipeline: "orders", System: "nats"})
	l := lease("", `{"traceparent":"`+sampled+`"}`)
	ctx, span := tracer.Batch(t.Context(), l, time.Now(), time.Now())
	tracer.Link(ctx, l)
	sending, send := tracer.Send(ctx, &l.Batch, noAddress)
	if tracing.Carry(sending, &l.Batch) != &l.Batch {
		t.Error("an unsampled batch carries a context")
	}
	header := http.Header{}
	tracing.Inject(sending, header)
	if got := header.Get("traceparent"); len(got) != len(sampled) || got[len(got)-3:] != "-00" {
		t.Errorf("traceparent is %q", got)
	}
	send.End()
	span.End()
	if n := len(spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

func TestTracer_Spans(t *testing.T) {
	t.Parallel()
	spans, provider := recorder(t, sdktrace.AlwaysSample())
	tracer := tracing.New(tracing.Config{
		Provider: provider, Pipeline: "orders", Sink: "bus", System: "nats", Destination: "shop.{topic}",
		Redact: func(text string) string { return text[:6] + " ***" },
	})
	l := lease("", "", "")
	l.Attempts = 2
	began := time.Now().Add(-time.Minute)
	ctx, span := tracer.Batch(t.Context(), l, began, began.Add(time.Second))
	tracer.Link(ctx, l)
	_, send := tracer.Send(ctx, &l.Batch, func(*outbox.Event) string { return "shop.t" })
	send.Fail("outage", "secret s3cret")
	send.End()
	tracer.Outcomes(ctx, l, []buffer.Outcome{{Verdict: buffer.Delivered, IDs: []int64{1}}, {Verdict: buffer.Retry, IDs: []int64{2, 3}, Error: "secret s3cret"}})
	settle := tracer.Settle(ctx)
	settle.End()
	span.End()
	type shown struct{ name, parent, status, attributes string }
	var got []shown
	names := map[trace.SpanID]string{}
	for _, s := range spans.Started() {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	for _, s := range spans.Ended() {
		one := shown{name: s.SpanKind().String() + " " + s.Name(), parent: names[s.Parent().SpanID()]}
		if s.Status().Code == codes.Error {
			one.status = s.Status().Description
		}
		for _, a := range s.Attributes() {
			if a.Key != "relay.group_id" {
				one.attributes += fmt.Sprintf("%s=%s ", a.Key, a.Value.String())
			}
		}
		got = append(got, one)
	}
	want := []shown{
		{"internal claim", "relay orders", "", "relay.pipeline=orders relay.sink=bus messaging.batch.message_count=3 "},
		{
			"producer send shop.{topic}", "relay orders", "secret ***",
			"relay.pipeline=orders relay.sink=bus messaging.operation.name=send messaging.operation.type=send messaging.system=nats " +
				"messaging.destination.template=shop.{topic} messaging.batch.message_count=3 messaging.destination.name=shop.t error.type=outage ",
		},
		{"client settle", "relay orders", "", "relay.pipeline=orders relay.sink=bus messaging.operation.name=settle messaging.operation.type=settle "},
		{
			"consumer relay orders", "", "secret ***",
			"relay.pipeline=orders relay.sink=bus messaging.operation.name=relay messaging.operation.type=process messaging.batch.message_count=3 " +
				"relay.attempts=2 relay.unfinished_leases=0 relay.events.delivered=1 relay.events.retried=2 relay.events.dead=0 error.type=retry ",
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(shown{})); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	if ended := spans.Ended(); !ended[3].StartTime().Equal(began) || ended[0].EndTime().Sub(began) != time.Second {
		t.Error("the batch begins with its claim")
	}
}

// The links are those of the events, each once, and at most 128: sampled ones first.
func TestTracer_Links(t *testing.T) {
	t.Parallel()
	linked := func(l *buffer.Lease) (ids []string, omitted int64) {
		spans, provider := recorder(t, sdktrace.AlwaysSample())
		tracer := tracing.New(tracing.Config{Provider: provider, Pipeline: "orders"})
		ctx, span := tracer.Batch(t.Context(), l, time.Now(), time.Now())
		tracer.Link(ctx, l)
		span.End()
		for _, s := range spans.Ended() {
			for _, link := range s.Links() {
				ids = append(ids, link.SpanContext.TraceID().String()[:4])
			}
			for _, a := range s.Attributes() {
				if a.Key == "relay.links.omitted" {
					omitted = a.Value.AsInt64()
				}
			}
		}
		return ids, omitted
	}
	ids, omitted := linked(lease("", `{"a":"b"}`, `{"traceparent":"`+unsampled+`"}`, `{"Traceparent": "`+sampled+`"}`, `{"TRACEPARENT":"`+sampled+`"}`,
		`{"traceparent":"00-nonsense"}`, `{"traceparent":7}`, `no JSON traceparent`))
	if diff := cmp.Diff([]string{"1af7", "0af7"}, ids); diff != "" || omitted != 0 {
		t.Errorf("links (-want +got), %d omitted:\n%s", omitted, diff)
	}
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf(`{"traceparent":"00-%032x-b7ad6b7169203331-%02x"}`, i+1, min(1, i/150)))
	}
	ids, omitted = linked(lease(many...))
	if len(ids) != tracing.MaxLinks || omitted != 200-tracing.MaxLinks {
		t.Errorf("%d links, %d omitted", len(ids), omitted)
	}
}

// Events that brought no trace get that of their send; all else stays as it is, byte for byte.
func TestCarry(t *testing.T) {
	t.Parallel()
	_, provider := recorder(t, sdktrace.AlwaysSample())
	tracer := tracing.New(tracing.Config{Provider: provider, Pipeline: "orders", System: "nats"})
	own := `{ "Traceparent":"` + sampled + `"}`
	l := lease("", "{ }", `{ "a" : "é" }`, own, `{"tracestate":"a=b"}`, "broken", "[]", `{"n":7}`)
	before := lease("", "{ }", `{ "a" : "é" }`, own, `{"tracestate":"a=b"}`, "broken", "[]", `{"n":7}`)
	ctx, span := tracer.Send(t.Context(), &l.Batch, noAddress)
	defer span.End()
	sc := trace.SpanContextFromContext(ctx)
	member := `{"traceparent":"00-` + sc.TraceID().String() + "-" + sc.SpanID().String() + `-01"`
	b := tracing.Carry(ctx, &l.Batch)
	var got []string
	for i := range b.Events {
		got = append(got, string(b.Events[i].Headers))
	}
	want := []string{member + "}", member + "}", member + `, "a" : "é" }`, own, `{"tracestate":"a=b"}`, "broken", "[]", `{"n":7}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Events, l.Events); diff != "" {
		t.Errorf("the batch itself was changed:\n%s", diff)
	}
	if b.GroupID != l.GroupID || !b.FirstSend {
		t.Error("the batch is another one")
	}
	for name, change := range map[string]func(*buffer.Batch){
		"sent again":   func(b *buffer.Batch) { b.FirstSend = false },
		"dead letters": func(b *buffer.Batch) { b.DeadLetters = make([]*buffer.DeadLetter, len(b.Events)) },
	} {
		other := l.Batch
		change(&other)
		if tracing.Carry(ctx, &other) != &other {
			t.Errorf("%s: the batch carries a context", name)
		}
	}
}

// A traceparent of the configuration wins.
func TestInject(t *testing.T) {
	t.Parallel()
	_, provider := recorder(t, sdktrace.AlwaysSample())
	tracer := tracing.New(tracing.Config{Provider: provider, Pipeline: "orders"})
	ctx, span := tracer.Send(t.Context(), &buffer.Batch{}, noAddress)
	defer span.End()
	header := http.Header{}
	header.Set("traceparent", "mine")
	tracing.Inject(ctx, header)
	if got := header.Values("traceparent"); len(got) != 1 || got[0] != "mine" {
		t.Errorf("traceparent is %q", got)
	}
}
