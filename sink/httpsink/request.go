package httpsink

import (
	"bytes"
	"context"
	"maps"
	"net/http"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// request is what is sent of a batch.
type request struct {
	url    string
	header http.Header // that is made of topic and key; nil: none
	body   []byte      // before it is compressed
	// events are the indexes of those that are in it, and values the same events as
	// programs see them, where there is one.
	events []int
	values []any
	in     input
}

const headerIdempotency = "Idempotency-Key"

// prepare makes the batch's request; nil where all events are refused. Nothing was sent
// when it fails.
func (s *Sink) prepare(ctx context.Context, b *buffer.Batch) (*request, []sink.EventError, error) {
	groups, refused := s.groups(b)
	if len(groups) > 1 {
		return nil, nil, divide(groups, refused, false)
	}
	if len(groups) == 0 {
		return nil, refused, nil
	}
	r := &request{url: groups[0].Address, events: make([]int, 0, len(b.Events))}
	misled := checkPath(r.url)
	for _, i := range groups[0].Indexes {
		err := misled
		if err == nil {
			err = s.checkEvent(&b.Events[i])
		}
		if err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: err})
			continue
		}
		r.events = append(r.events, i)
	}
	if s.request != nil || s.results != nil && !s.results.isNarrow {
		var unread []sink.EventError
		r.values, r.events, unread = r.in.envelopes(b, r.events)
		refused = append(refused, unread...)
	}
	if len(r.events) == 0 {
		return nil, refused, nil
	}
	if s.single && s.format == CloudEvents && len(r.events) > 1 {
		return nil, nil, divide(each(r.events), refused, false)
	}
	var err error
	if r.header, err = s.madeFor(&b.Events[r.events[0]]); err != nil {
		return nil, nil, err
	}
	if s.request != nil {
		return s.fill(ctx, b, r, refused)
	}
	body := s.body(b, r.events)
	if s.maxBytes > 0 && len(body.text) > s.maxBytes {
		parts, tooLarge := body.parts(s.maxBytes)
		refused = append(refused, tooLarge...)
		if len(parts) > 1 {
			return nil, nil, divide(parts, refused, true)
		} else if len(parts) == 0 {
			return nil, refused, nil
		}
		r.only(parts[0].Indexes)
		body = s.body(b, r.events)
	}
	r.body = body.text
	return r, refused, nil
}

// only leaves out the events that are not in kept.
func (r *request) only(kept []int) {
	if r.values != nil {
		var values []any
		at := 0
		for i, index := range r.events {
			if at < len(kept) && kept[at] == index {
				values = append(values, r.values[i])
				at++
			}
		}
		r.values = values
	}
	r.events = kept
}

// checkEvent finds what would spoil the events around it.
func (s *Sink) checkEvent(e *outbox.Event) error {
	if s.format == CloudEvents {
		return sink.CheckCloudEvent(e)
	}
	return sink.CheckHeaders(e)
}

// fill makes the request's body with the program. One that is too large is halved: how
// much of it is whose the program alone knows.
func (s *Sink) fill(ctx context.Context, b *buffer.Batch, r *request, refused []sink.EventError) (*request, []sink.EventError, error) {
	var failed error
	if r.body, failed = s.program(ctx, b, r); failed != nil {
		err := s.requestError(b, r, failed)
		if ctx.Err() != nil { // it was called off
			return nil, nil, sink.Unavailable(err)
		}
		if parts := s.blame(ctx, b, r, failed); parts != nil {
			return nil, nil, divide(parts, refused, false)
		}
		// It takes none of them. While other batches go through, that is these events' doing.
		return nil, nil, sink.MaybePoison(err)
	}
	switch n := len(r.events); {
	case s.maxBytes == 0 || len(r.body) <= s.maxBytes:
		return r, refused, nil
	case n == 1:
		return nil, append(refused, sink.EventError{Index: r.events[0], Err: tooMany(len(r.body), s.maxBytes)}), nil
	default:
		return nil, nil, divide([]sink.Group{{Indexes: r.events[:n/2]}, {Indexes: r.events[n/2:]}}, refused, true)
	}
}

// each is a part for every event.
func each(indexes []int) []sink.Group {
	parts := make([]sink.Group, len(indexes))
	for i, index := range indexes {
		parts[i].Indexes = []int{index}
	}
	return parts
}

// httpRequest is the request as it goes out.
func (s *Sink) httpRequest(ctx context.Context, r *request, b *buffer.Batch) (*http.Request, error) {
	body := r.body
	if s.gzip {
		var err error
		if body, err = compressed(r.body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, s.method, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header, req.Host = s.header.Clone(), s.hostName
	maps.Copy(req.Header, r.header)
	if s.gzip {
		req.Header.Set(headerEncoding, "gzip")
	}
	if _, overruled := req.Header[headerIdempotency]; !overruled {
		// It also lets net/http send the request again when the server has just
		// closed the connection it went out on.
		req.Header.Set(headerIdempotency, b.GroupID.String())
	}
	return req, nil
}
