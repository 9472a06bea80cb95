package tracing

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// No batch exists while the database or the sink is away, so each of these failures is a trace of its own. In an outage they repeat every second or so.
const (
	// databaseInterval is how far apart the spans of DatabaseFailed are at least, checkInterval those of CheckFailed.
	databaseInterval = 10 * time.Second
	checkInterval    = time.Minute
)

// DatabaseFailed makes the span of an operation, such as "claim", that began then and failed now: one in 10 seconds at most, of all operations. It makes none
// if ctx was cancelled.
func (t *Tracer) DatabaseFailed(ctx context.Context, operation string, began time.Time, err error) {
	if t != nil {
		t.failed(ctx, &t.databaseFailures, operation, operation+"_failed", t.common, began, err)
	}
}

// CheckFailed makes the span of a check of the sink that began then and failed now: one a minute at most. It makes none if ctx was cancelled.
func (t *Tracer) CheckFailed(ctx context.Context, began time.Time, err error) {
	if t != nil {
		t.failed(ctx, &t.checkFailures, t.checkName, "outage", t.check, began, err)
	}
}

func (t *Tracer) failed(ctx context.Context, limit *spanLimit, name, kind string, attrs []attribute.KeyValue, began time.Time, err error) {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	span := limit.start(func() trace.Span {
		_, span := t.tracer.Start(ctx, name, trace.WithNewRoot(), trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
		return span
	})
	s := Span{span, t.config.Redact}
	s.Fail(kind, err.Error())
	s.End()
}

// spanLimit bounds how many spans are made.
type spanLimit struct {
	every time.Duration
	mu    sync.Mutex
	next  time.Time
}

// start starts a span if it is time for one, otherwise it returns nil. One that is not sampled does not count.
func (l *spanLimit) start(start func() trace.Span) trace.Span {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		return nil
	}
	span := start()
	if span.IsRecording() {
		l.next = now.Add(l.every)
	}
	return span
}
