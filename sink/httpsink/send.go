package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Send sends the batch as one request before ctx's deadline. Its error is one of:
//   - a *sink.SplitError, before anything is sent: the events have different URLs or headers, their
//     body exceeds Config.MaxBytes, or only some of them can be sent
//   - a *sink.BatchError for events that have no URL, whose headers are not JSON, that exceed
//     MaxBytes each alone, or that Results names
//   - what the response's status means for the whole batch
//   - an outage that the batch may cause, if Request fails: nothing was sent
//   - an outage, if Results fails
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	r, rejected, err := s.prepare(ctx, b)
	switch {
	case err != nil:
		return err
	case r == nil:
		return batchError(rejected)
	case len(rejected) > 0:
		// The events that the server receives under this group_id must stay the same. A later
		// attempt might be able to send the rejected ones: projected again, or with another max_bytes.
		return split([]sink.Group{{Indexes: r.indexes}}, rejected, false)
	}
	failed, err := s.post(ctx, r, b)
	if err != nil {
		err = fmt.Errorf("%s %s://%s: %w", s.method, s.scheme, s.host, err)
		if errors.Is(err, errResponded) && !s.OneAddress() {
			return addressUnavailable(b, err)
		}
		return err
	}
	return batchError(failed)
}

// addressUnavailable is an outage of the batch's URL alone. It names the events, so that batches to
// other URLs continue.
func addressUnavailable(b *buffer.Batch, err error) error {
	events := make([]sink.EventError, len(b.Events))
	for i := range events {
		events[i] = sink.EventError{Index: i, Err: err}
	}
	if errors.Is(err, sink.ErrMaybePoison) {
		return sink.MaybePoison(&sink.BatchError{Events: events})
	}
	return sink.Unavailable(&sink.BatchError{Events: events})
}

// post sends the request. It returns the events that failed according to the response, or an error
// about the whole batch.
func (s *Sink) post(ctx context.Context, r *request, b *buffer.Batch) (failed []sink.EventError, err error) {
	permit, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer permit.release()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var written writeTracker
	req, err := s.httpRequest(httptrace.WithClientTrace(ctx, written.trace()), r, b)
	if err != nil {
		return nil, s.redactor.outage(err)
	}
	s.authorize(req, permit, b.GroupID.String(), r.body)
	// A http.Client would follow redirects.
	resp, err := s.transport.RoundTrip(req)
	switch {
	case err == nil:
		s.observe(resp, permit)
		return s.readResponse(ctx, resp, r, b)
	case written.Load() && !errors.Is(ctx.Err(), context.Canceled):
		return nil, sink.MaybePoison(s.redactor.outage(err))
	}
	// There is no connection, or the caller cancelled.
	return nil, s.redactor.outage(err)
}

// writeTracker stores whether at least the head of the request was written. net/http may try a request
// again on another connection, and fail to get one.
type writeTracker struct{ atomic.Bool }

func (w *writeTracker) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:      func(string) { w.Store(false) },
		WroteHeaders: func() { w.Store(true) },
	}
}
