package httpsink

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// request is the request for a batch.
type request struct {
	url    string
	header http.Header // made of topic and key; nil if no header is
	// attributes are those of the one event in binary mode, with its Content-Type; otherwise nil.
	attributes http.Header
	body       []byte // before it is compressed
	// indexes are those of the events in the request.
	indexes []int
}

const headerIdempotency = "Idempotency-Key"

// prepare makes the batch's request, which is nil if all events are rejected. If it fails, nothing was
// sent.
func (s *Sink) prepare(ctx context.Context, b *buffer.Batch) (*request, []sink.EventError, error) {
	groups, rejected := s.groupEvents(b)
	if len(groups) > 1 {
		return nil, nil, sink.NewSplitError(groups, rejected, false)
	}
	if len(groups) == 0 {
		return nil, rejected, nil
	}
	r := &request{}
	for _, i := range groups[0].Indexes {
		if err := s.checkEvent(b, i); err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		r.indexes = append(r.indexes, i)
	}
	if s.resultsReadEvents { // what they cannot read must not be sent
		rejected = append(rejected, r.removeUnreadable(b)...)
	}
	if len(r.indexes) == 0 {
		return nil, rejected, nil
	}
	if s.cfg.Single && s.isCloudEvents() && len(r.indexes) > 1 {
		return nil, nil, sink.NewSplitError(singles(r.indexes), rejected, false)
	}
	var err error
	if r.url, r.header, err = s.destination(&b.Events[r.indexes[0]]); err != nil {
		return nil, nil, err
	}
	if s.request != nil {
		made, rejected, err := s.runRequest(ctx, b, r, rejected)
		if errors.Is(err, sink.ErrMaybePoison) {
			err = sink.ProgramFailed(err)
		}
		return made, rejected, err
	}
	if s.cfg.Format == CloudEventsBinary {
		r.attributes = binaryAttributes(b, r.indexes[0])
	}
	r.body = s.formatOf(b).makeBody(b, r.indexes)
	if s.cfg.MaxBytes > 0 && len(r.body) > s.cfg.MaxBytes {
		groups, tooLarge := s.splitBody(b, r.indexes)
		rejected = append(rejected, tooLarge...)
		if len(groups) == 0 {
			return nil, rejected, nil
		}
		return nil, nil, sink.NewSplitError(groups, rejected, true)
	}
	return r, rejected, nil
}

// checkEvent finds what would make the whole body invalid.
func (s *Sink) checkEvent(b *buffer.Batch, i int) error {
	if s.isCloudEvents() {
		_, err := sink.CloudEventAttributes(b, i)
		return err
	}
	return sink.CheckHeaders(&b.Events[i])
}

// httpRequest makes the net/http request.
func (s *Sink) httpRequest(ctx context.Context, r *request, b *buffer.Batch) (*http.Request, error) {
	body := r.body
	if s.cfg.Gzip {
		var err error
		if body, err = compress(r.body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, s.cfg.Method, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header, req.Host = s.header.Clone(), s.hostName
	for name, values := range r.attributes {
		if _, configured := req.Header[name]; !configured {
			req.Header[name] = values
		}
	}
	maps.Copy(req.Header, r.header)
	if s.cfg.Gzip {
		req.Header.Set(headerEncoding, "gzip")
	}
	if _, configured := req.Header[headerIdempotency]; !configured {
		req.Header.Set(headerIdempotency, b.GroupID.String())
	}
	tracing.Inject(ctx, req.Header)
	return req, nil
}

// sentOnce makes net/http send a request once. It repeats a request with one of these headers if the server closes a used
// connection before it responds: outside of the rate limit, and unseen. It knows them by their canonical names only. It still
// repeats what the server cannot have processed, on any connection before the first byte and on HTTP/2.
func sentOnce(h http.Header) {
	for _, name := range []string{headerIdempotency, "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
}

// halves and singles are groups of these events, all of them in order.
func halves(events []int) []sink.Group {
	middle := len(events) / 2
	return []sink.Group{{Indexes: events[:middle]}, {Indexes: events[middle:]}}
}

func singles(events []int) []sink.Group {
	groups := make([]sink.Group, len(events))
	for i, index := range events {
		groups[i].Indexes = []int{index}
	}
	return groups
}
