package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Inject adds the context of the send in ctx to the headers of its request: traceparent, and tracestate if there is one. It adds none
// if ctx has no span, or the headers have a traceparent of the configuration.
func Inject(ctx context.Context, h http.Header) {
	if _, configured := h["Traceparent"]; !configured {
		format.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

// Carry returns the batch for a sink that sends each event as a message with headers: the context of the send in ctx is that of each event
// which brought none. An event's own is never replaced. The batch is returned as it is if the send is not sampled, and so are batches that
// are sent again and dead letters: a message that the context makes too large for the sink is then sent without it.
func Carry(ctx context.Context, b *buffer.Batch) *buffer.Batch {
	if sc := trace.SpanContextFromContext(ctx); !sc.IsValid() || !sc.IsSampled() || !b.FirstSend || b.DeadLetters != nil {
		return b
	}
	fields := propagation.MapCarrier{}
	format.Inject(ctx, fields)
	members, err := json.Marshal(fields)
	if err != nil { // strings always marshal
		return b
	}
	carrying := *b
	carrying.Events = slices.Clone(b.Events)
	for i := range carrying.Events {
		e := &carrying.Events[i]
		e.Headers = withMembers(e.Headers, members)
	}
	return &carrying
}

// withMembers returns the headers with the members of a JSON object; the same headers if they have a traceparent, or are not valid.
func withMembers(h outbox.Headers, members []byte) outbox.Headers {
	if h == nil {
		return members
	}
	headers, err := h.Map()
	if err != nil {
		return h
	}
	for name := range headers {
		if strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate") {
			return h
		}
	}
	if len(headers) == 0 {
		return members
	}
	rest := h[bytes.IndexByte(h, '{')+1:]
	with := make(outbox.Headers, 0, len(members)+len(rest)+1)
	with = append(with, members[:len(members)-1]...)
	with = append(with, ',')
	return append(with, rest...)
}
