package httpsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Send sends the batch as one request before ctx's deadline. It returns a
// *sink.DivideError, before anything is sent, when the events have more than one
// URL or their body has more than Config.MaxBytes; a *sink.BatchError for events
// that have no URL, whose headers are not JSON, or that are larger than MaxBytes
// each alone; otherwise what the answer's status means for the batch as a whole.
func (s *Sink) Send(ctx context.Context, b *outbox.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	groups, refused := s.template.GroupByAddress(b)
	if len(groups) > 1 {
		return divide(groups, refused, false)
	}
	for _, g := range groups {
		misled := checkPath(g.Address)
		for _, i := range g.Indexes {
			err := misled
			if err == nil {
				err = sink.CheckHeaders(&b.Events[i])
			}
			if err != nil {
				refused = append(refused, sink.EventError{Index: i, Err: err})
			}
		}
	}
	body := s.body(b, refused)
	if s.maxBytes > 0 && len(body.text) > s.maxBytes {
		parts, tooLarge := body.parts(s.maxBytes)
		refused = append(refused, tooLarge...)
		if len(parts) > 1 {
			return divide(parts, refused, true)
		}
		body = s.body(b, refused)
	}
	if len(refused) < len(b.Events) {
		if err := s.post(ctx, groups[0].Address, b, body.text); err != nil {
			err = fmt.Errorf("%s %s://%s: %w", s.method, s.scheme, s.host, err)
			if errors.Is(err, errAddress) && !s.template.Fixed() {
				return awayAt(b, err)
			}
			return err
		}
	}
	if len(refused) > 0 {
		slices.SortFunc(refused, func(a, b sink.EventError) int { return a.Index - b.Index })
		return &sink.BatchError{Events: refused}
	}
	return nil
}

// divide asks for parts that can be sent each as one request.
func divide(groups []sink.Group, refused []sink.EventError, tooLarge bool) error {
	if len(refused) > 0 {
		var none sink.Group
		for _, e := range refused {
			none.Indexes = append(none.Indexes, e.Index)
		}
		slices.Sort(none.Indexes)
		groups = append(groups, none)
	}
	return &sink.DivideError{Groups: groups, TooLarge: tooLarge}
}

// checkPath refuses an address that a topic or key of ".." would lead elsewhere.
func checkPath(address string) error {
	path, _, _ := strings.Cut(address, "?")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return sink.Permanent(fmt.Errorf("its topic or key makes %q a part of the URL's path", segment))
		}
	}
	return nil
}

// awayAt tells an outage of the batch's URL, while others may work: it is told of
// the events, so that it stops nobody else's.
func awayAt(b *outbox.Batch, err error) error {
	events := make([]sink.EventError, len(b.Events))
	for i := range events {
		events[i] = sink.EventError{Index: i, Err: err}
	}
	if errors.Is(err, sink.ErrSuspect) {
		return sink.Suspect(&sink.BatchError{Events: events})
	}
	return sink.Unavailable(&sink.BatchError{Events: events})
}

const headerIdempotency = "Idempotency-Key"

func (s *Sink) post(ctx context.Context, address string, b *outbox.Batch, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	written := &progress{}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, written.trace()), s.method, address, bytes.NewReader(body))
	if err != nil {
		return s.redactor.failed(err)
	}
	req.Header, req.Host = s.header.Clone(), s.hostName
	if _, overruled := req.Header[headerIdempotency]; !overruled {
		// It also lets net/http send the request again when the server has just
		// closed the connection it went out on.
		req.Header.Set(headerIdempotency, b.GroupID.String())
	}
	// The transport, and not a Client, which would follow redirects.
	resp, err := s.transport.RoundTrip(req)
	switch {
	case err == nil:
		return s.redactor.read(resp).verdict(s.statuses)
	case written.yet.Load() && !errors.Is(ctx.Err(), context.Canceled):
		return sink.Suspect(s.redactor.failed(err))
	}
	// There is no connection, or the sender was called off.
	return s.redactor.failed(err)
}

// progress notes whether a request, or at least its head, was written. net/http may
// have to write it once more, and get no connection for that.
type progress struct{ yet atomic.Bool }

func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:      func(string) { p.yet.Store(false) },
		WroteHeaders: func() { p.yet.Store(true) },
	}
}
