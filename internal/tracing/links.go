package tracing

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// MaxLinks is how many links the span of a batch has at most; the SDK's own default is the same.
const MaxLinks = 128

// linksOf returns links to the spans that the events of the batch name in their headers, each once, in the order of the events. If there
// are more than MaxLinks, those that are not sampled are omitted first, because no backend has them.
func linksOf(l *buffer.Lease) (links []trace.Link, omitted int) {
	type span struct {
		trace trace.TraceID
		span  trace.SpanID
	}
	seen := map[span]bool{}
	for i := range l.Events {
		sc := contextOf(l.Events[i].Headers)
		if one := (span{sc.TraceID(), sc.SpanID()}); sc.IsValid() && !seen[one] {
			seen[one] = true
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if len(links) <= MaxLinks {
		return links, 0
	}
	slices.SortStableFunc(links, func(a, b trace.Link) int {
		return int(b.SpanContext.TraceFlags()&trace.FlagsSampled) - int(a.SpanContext.TraceFlags()&trace.FlagsSampled)
	})
	return links[:MaxLinks], len(links) - MaxLinks
}

// format is what events carry.
var format propagation.TraceContext

// contextOf returns the context that an event brought; an invalid one if it brought none. Names of headers differ in case.
func contextOf(h outbox.Headers) trace.SpanContext {
	if !bytes.Contains(h, []byte("raceparent")) && !bytes.Contains(h, []byte("RACEPARENT")) { // nearly all: parsing costs more
		return trace.SpanContext{}
	}
	headers, err := h.Map()
	if err != nil {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{}
	for name, value := range headers {
		carrier[strings.ToLower(name)] = value
	}
	return trace.SpanContextFromContext(format.Extract(context.Background(), carrier))
}
