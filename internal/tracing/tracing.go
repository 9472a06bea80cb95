// Package tracing makes the OpenTelemetry spans of batches, and passes their trace on to consumers. A nil *Tracer makes none, and
// costs nothing. Where the spans go is the provider's: see package export, or the application's own.
//
//	relay PIPELINE          from the claim to the settle, linked to the trace of each event that brought one
//	├── claim
//	├── send DESTINATION    whose context the consumers get
//	└── settle
//
// While there is no batch, what fails is a trace of its own: a connect, count or claim of the database, and a check of the sink.
package tracing

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Scope is the name of the spans' instrumentation scope.
const Scope = "github.com/outboxrelay/relay"

// The names of the attributes that the semantic conventions have none for. docs/monitoring.md describes them.
const (
	keyPipeline     = attribute.Key("relay.pipeline")
	keySink         = attribute.Key("relay.sink")
	keyGroupID      = attribute.Key("relay.group_id")
	keyAttempts     = attribute.Key("relay.attempts")
	keyUnfinished   = attribute.Key("relay.unfinished_leases")
	keyDelivered    = attribute.Key("relay.events.delivered")
	keyRetried      = attribute.Key("relay.events.retried")
	keyDead         = attribute.Key("relay.events.dead")
	keyEventID      = attribute.Key("relay.event.id")
	keyEventTopic   = attribute.Key("relay.event.topic")
	keyLinksOmitted = attribute.Key("relay.links.omitted")
)

// Config of a Tracer.
type Config struct {
	// Provider makes the spans; nil: New returns nil.
	Provider trace.TracerProvider
	// Pipeline is the pipeline's name, Sink that of one of several sinks or "".
	Pipeline, Sink string
	// System is the messaging.system of the sink; "" for one that is no messaging system.
	System string
	// Destination is where the sink of a messaging system writes; it may contain {topic} and {key}.
	Destination string
	// Attributes are further ones of the span of a Send.
	Attributes []attribute.KeyValue
	// Redact removes secrets from the texts of errors; nil changes nothing.
	Redact func(text string) string
}

// Tracer makes the spans of a pipeline. A nil Tracer makes none. Safe for concurrent use.
type Tracer struct {
	tracer   trace.Tracer
	config   Config
	template bool // the destination has placeholders

	batchName, sendName, checkName     string
	common, batch, send, settle, check []attribute.KeyValue

	databaseFailures, checkFailures spanLimit
}

// New returns the tracer of a pipeline; nil if c has no Provider.
func New(c Config) *Tracer {
	if c.Provider == nil {
		return nil
	}
	common := []attribute.KeyValue{keyPipeline.String(c.Pipeline)}
	if c.Sink != "" {
		common = append(common, keySink.String(c.Sink))
	}
	with := func(operation string, kind attribute.KeyValue, more ...attribute.KeyValue) []attribute.KeyValue {
		all := append(make([]attribute.KeyValue, 0, 8+len(more)), common...)
		return append(append(all, semconv.MessagingOperationName(operation), kind), more...)
	}
	t := &Tracer{
		tracer: c.Provider.Tracer(Scope, trace.WithSchemaURL(semconv.SchemaURL)), config: c, template: strings.Contains(c.Destination, "{"),
		batchName: "relay " + c.Pipeline, sendName: "send " + cmp.Or(c.Destination, c.Pipeline), checkName: "check " + cmp.Or(c.Destination, c.Pipeline),
		common: common,
		batch:  with("relay", semconv.MessagingOperationTypeProcess),
		send:   with("send", semconv.MessagingOperationTypeSend, c.Attributes...),
		settle: with("settle", semconv.MessagingOperationTypeSettle),
		check:  slices.Clone(common),

		databaseFailures: spanLimit{every: databaseInterval}, checkFailures: spanLimit{every: checkInterval},
	}
	for _, a := range c.Attributes { // a check is no request of the configured method
		if a.Key == semconv.ServerAddressKey || a.Key == semconv.ServerPortKey {
			t.check = append(t.check, a)
		}
	}
	if c.System != "" {
		t.send = append(t.send, semconv.MessagingSystemKey.String(c.System))
		if t.template {
			t.send = append(t.send, semconv.MessagingDestinationTemplate(c.Destination))
		} else if c.Destination != "" {
			t.send = append(t.send, semconv.MessagingDestinationName(c.Destination))
		}
	}
	return t
}

// Span is a span, or none if it is zero.
type Span struct {
	span   trace.Span
	redact func(string) string
}

// Batch begins the span of a batch, the root of a trace, with that of its claim, which took from began to claimed.
func (t *Tracer) Batch(ctx context.Context, l *buffer.Lease, began, claimed time.Time) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(ctx, t.batchName, trace.WithNewRoot(), trace.WithTimestamp(began),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(t.batch...))
	if span.IsRecording() {
		span.SetAttributes(keyGroupID.String(l.GroupID.String()), semconv.MessagingBatchMessageCount(l.Len()),
			keyAttempts.Int(l.Attempts), keyUnfinished.Int(max(0, l.UnfinishedLeases-1)))
		_, claim := t.tracer.Start(ctx, "claim", trace.WithTimestamp(began), trace.WithAttributes(t.common...), trace.WithAttributes(semconv.MessagingBatchMessageCount(l.Len())))
		claim.End(trace.WithTimestamp(claimed))
	}
	return ctx, Span{span, t.config.Redact}
}

// SampledID returns the id of the trace of the span in ctx; "" if there is none, or it is not sampled and nobody has it.
func SampledID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && sc.IsSampled() {
		return sc.TraceID().String()
	}
	return ""
}

// Link links the span of the batch in ctx to the traces of its events.
func (t *Tracer) Link(ctx context.Context, l *buffer.Lease) {
	if t == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	links, omitted := linksOf(l)
	for _, link := range links {
		span.AddLink(link)
	}
	if omitted > 0 {
		span.SetAttributes(keyLinksOmitted.Int(omitted))
	}
}

// Outcomes writes into the span of the batch in ctx what became of its events.
func (t *Tracer) Outcomes(ctx context.Context, l *buffer.Lease, outcomes []buffer.Outcome) {
	if t == nil {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	var (
		counts [buffer.Dead + 1]int
		why    string
		kind   = "retry"
		dead   *outbox.Event // the first one
	)
	for i := range outcomes {
		o := &outcomes[i]
		n := len(o.IDs)
		if o.IDs == nil {
			n = l.Len()
		}
		counts[o.Verdict] += n
		if o.Verdict == buffer.Dead && kind != "dead_letter" {
			kind, dead = "dead_letter", firstOf(l, o.IDs)
		}
		why = cmp.Or(why, o.Error)
	}
	span.SetAttributes(keyDelivered.Int(counts[buffer.Delivered]), keyRetried.Int(counts[buffer.Retry]), keyDead.Int(counts[buffer.Dead]))
	if why != "" {
		t.Fail(ctx, kind, why)
	}
	Span{span: span}.Event(dead)
}

// firstOf returns the first event of the batch, or the first of ids if they are not nil; nil if the batch does not have it.
func firstOf(l *buffer.Lease, ids []int64) *outbox.Event {
	all := l.AllEvents()
	for i := range all {
		if ids == nil || len(ids) > 0 && all[i].ID == ids[0] {
			return &all[i]
		}
	}
	return nil
}

// Fail gives the span of the batch in ctx the status Error, as [Span.Fail] does.
func (t *Tracer) Fail(ctx context.Context, kind, text string) {
	if t != nil {
		Span{trace.SpanFromContext(ctx), t.config.Redact}.Fail(kind, text)
	}
}

// Send begins the span of a send, a child of the span in ctx. address returns where an event goes, "" where all go to one place.
func (t *Tracer) Send(ctx context.Context, b *buffer.Batch, address func(*outbox.Event) string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	kind := trace.SpanKindClient
	if t.config.System != "" { // messages get its context
		kind = trace.SpanKindProducer
	}
	ctx, span := t.tracer.Start(ctx, t.sendName, trace.WithSpanKind(kind), trace.WithAttributes(t.send...))
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingBatchMessageCount(len(b.Events)))
		if name := onlyAddress(b, address); t.template && t.config.System != "" && name != "" {
			span.SetAttributes(semconv.MessagingDestinationName(name))
		}
	}
	return ctx, Span{span, t.config.Redact}
}

func onlyAddress(b *buffer.Batch, address func(*outbox.Event) string) string {
	if len(b.Events) == 0 {
		return ""
	}
	only := address(&b.Events[0])
	for i := range b.Events[1:] {
		if address(&b.Events[1+i]) != only {
			return ""
		}
	}
	return only
}

// Settle begins the span of a settle, a child of the span in ctx.
func (t *Tracer) Settle(ctx context.Context) Span {
	if t == nil {
		return Span{}
	}
	_, span := t.tracer.Start(ctx, "settle", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(t.settle...))
	return Span{span, t.config.Redact}
}

// maxText bounds the description of an error, and a topic, in bytes.
const maxText = 1 << 10

// Fail gives the span the status Error. kind is its error.type, one of a few words; text may have secrets.
func (s Span) Fail(kind, text string) {
	if s.span == nil || !s.span.IsRecording() {
		return
	}
	if s.redact != nil {
		text = s.redact(text)
	}
	s.span.SetStatus(codes.Error, clip(text))
	s.span.SetAttributes(semconv.ErrorTypeKey.String(kind))
}

// Event writes into the span which event it is about, by its id and topic; nothing if e is nil.
func (s Span) Event(e *outbox.Event) {
	if e == nil || s.span == nil || !s.span.IsRecording() {
		return
	}
	s.span.SetAttributes(keyEventID.String(e.Identity()), keyEventTopic.String(clip(e.Topic)))
}

// clip bounds a text.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "") }

// End ends the span.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
}

// Answered writes the status of an HTTP response into the span of the send in ctx.
func Answered(ctx context.Context, status int) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
}
