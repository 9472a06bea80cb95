package delivery

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// traceSend calls send within a span, which the sink finds in its context.
func (w *Worker) traceSend(ctx context.Context, b *buffer.Batch, send func(context.Context, *buffer.Batch) error) (err error) {
	if w.config.Tracer == nil {
		return send(ctx, b)
	}
	ctx, span := w.config.Tracer.Send(ctx, b, w.addressOf)
	err = errPanicked
	defer func() {
		if kind := errorType(err); kind != "" {
			span.Fail(kind, err.Error())
			span.Event(firstRejected(b, err, kind))
		}
		span.End()
	}()
	return send(ctx, b)
}

var errPanicked = errors.New("the sink panicked")

// errorType is the error.type of a send's span; "" if it did not fail.
func errorType(err error) string {
	_, some := errors.AsType[*sink.BatchError](err)
	_, split := errors.AsType[*sink.SplitError](err)
	switch {
	case err == nil, split: // nothing was sent
		return ""
	case errors.Is(err, errPanicked):
		return "panic"
	case errors.Is(err, sink.ErrFenced):
		return "fenced"
	case errors.Is(err, sink.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "outage"
	case some:
		return "events_rejected"
	}
	return "batch_rejected"
}

// firstRejected is the first event that the sink rejected, by itself or with its whole batch; nil if it rejected none.
func firstRejected(b *buffer.Batch, err error, kind string) *outbox.Event {
	switch some, _ := errors.AsType[*sink.BatchError](err); {
	case kind == "batch_rejected" && len(b.Events) > 0:
		return &b.Events[0]
	case kind == "events_rejected" && some.Valid(len(b.Events)):
		for _, one := range some.Events {
			if !errors.Is(one.Err, sink.ErrUnavailable) {
				return &b.Events[one.Index]
			}
		}
	}
	return nil
}
