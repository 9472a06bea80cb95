package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/outboxrelay/relay/internal/tracing"
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
	p, err := s.Prepare(ctx, b)
	if err != nil {
		return err
	}
	if err := p.Acquire(ctx); err != nil {
		return err
	}
	return p.Send(ctx)
}

// Prepare implements sink.Preparer: it makes the request.
func (s *Sink) Prepare(ctx context.Context, b *buffer.Batch) (sink.Prepared, error) {
	if err := ctx.Err(); err != nil {
		return nil, sink.Unavailable(err)
	}
	r, rejected, err := s.prepare(ctx, b)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, sink.NewBatchError(rejected)
	case len(rejected) > 0:
		// The events that the server receives under this group_id must stay the same. A later
		// attempt might be able to send the rejected ones: projected again, or with another max_bytes.
		return nil, sink.NewSplitError([]sink.Group{{Indexes: r.indexes}}, rejected, false)
	}
	return &prepared{sink: s, request: r, batch: b}, nil
}

// prepared is a request, and the permit to send it.
type prepared struct {
	sink    *Sink
	request *request
	batch   *buffer.Batch
	permit  permit
}

// Acquire implements sink.Prepared: it waits for the rate limit, for max_in_flight, and for a token.
func (p *prepared) Acquire(ctx context.Context) (err error) {
	if p.permit, err = p.sink.acquire(ctx); err != nil {
		return p.sink.named(err)
	}
	return nil
}

// Send implements sink.Prepared.
func (p *prepared) Send(ctx context.Context) error {
	defer p.permit.release()
	failed, err := p.sink.post(ctx, p.request, p.batch, p.permit)
	if err == nil {
		if len(failed) == 0 {
			p.sink.probe(p.batch, p.request)
		}
		return sink.NewBatchError(failed)
	}
	err = p.sink.named(err)
	if errors.Is(err, errResponded) && !p.sink.OneAddress() {
		return addressUnavailable(p.batch, err)
	}
	return err
}

// named adds the method and the URL, without its secrets, to an error: after a 404 the path is the cause.
func (s *Sink) named(err error) error {
	return fmt.Errorf("%s %s: %w", s.cfg.Method, s.shownURL(), err)
}

// addressUnavailable is an outage of the batch's URL alone. It names the events, so that batches to
// other URLs continue.
func addressUnavailable(b *buffer.Batch, err error) error {
	events := make([]sink.EventError, len(b.Events))
	for i := range events {
		events[i] = sink.EventError{Index: i, Err: err}
	}
	switch {
	case errors.Is(err, sink.ErrInProgress):
		return sink.InProgress(&sink.BatchError{Events: events})
	case errors.Is(err, sink.ErrMaybePoison):
		return sink.MaybePoison(&sink.BatchError{Events: events})
	case errors.Is(err, sink.ErrNotAccepted):
		return sink.NotAccepted(&sink.BatchError{Events: events})
	case errors.Is(err, sink.ErrAskedToWait):
		return sink.AskedToWait(&sink.BatchError{Events: events})
	case errors.Is(err, sink.ErrMaybeAccepted):
		return sink.MaybeAccepted(&sink.BatchError{Events: events})
	}
	return sink.Unavailable(&sink.BatchError{Events: events})
}

// post sends the request. It returns the events that failed according to the response, or an error
// about the whole batch.
func (s *Sink) post(ctx context.Context, r *request, b *buffer.Batch, permit permit) (failed []sink.EventError, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var written writeTracker
	req, err := s.httpRequest(httptrace.WithClientTrace(ctx, written.trace()), r, b)
	if err != nil {
		return nil, s.redactor.outage(err)
	}
	s.authorize(req, permit, b.GroupID.String(), r.body)
	sentOnce(req.Header)
	// A http.Client would follow redirects.
	resp, err := noUpgrade{s.transport}.RoundTrip(req)
	switch {
	case err == nil:
		tracing.Answered(ctx, resp.StatusCode)
		s.observe(resp, permit, b)
		return s.readResponse(ctx, resp, r, b, &s.odd)
	case written.Load() && !errors.Is(ctx.Err(), context.Canceled):
		if ctx.Err() != nil {
			s.transport.CloseIdleConnections() // they may be as dead as this one
		}
		return nil, sink.MaybePoison(sink.MaybeAccepted(s.redactor.outage(err)))
	}
	// There is no connection, or the caller cancelled.
	return nil, s.redactor.outage(err)
}

// writeTracker stores whether at least the head of the request was written. net/http may try a request that the server
// did not get again on another connection, and fail to get one.
type writeTracker struct{ atomic.Bool }

func (w *writeTracker) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:      func(string) { w.Store(false) },
		WroteHeaders: func() { w.Store(true) },
	}
}
