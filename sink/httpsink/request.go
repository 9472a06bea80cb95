package httpsink

import (
	"bytes"
	"context"
	"net/http"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// request is what is sent of a batch.
type request struct {
	url  string
	body []byte
	// events are the indexes of those that are in it.
	events []int
}

const headerIdempotency = "Idempotency-Key"

// prepare makes the batch's request; nil where all events are refused. Nothing was sent
// when it fails.
func (s *Sink) prepare(_ context.Context, b *outbox.Batch) (*request, []sink.EventError, error) {
	groups, refused := s.template.GroupByAddress(b)
	if len(groups) > 1 {
		return nil, nil, divide(groups, refused, false)
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
			return nil, nil, divide(parts, refused, true)
		}
		body = s.body(b, refused)
	}
	if len(refused) == len(b.Events) {
		return nil, refused, nil
	}
	return &request{url: groups[0].Address, body: body.text}, refused, nil
}

// httpRequest is the request as it goes out.
func (s *Sink) httpRequest(ctx context.Context, r *request, b *outbox.Batch) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, s.method, r.url, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header, req.Host = s.header.Clone(), s.hostName
	if _, overruled := req.Header[headerIdempotency]; !overruled {
		// It also lets net/http send the request again when the server has just
		// closed the connection it went out on.
		req.Header.Set(headerIdempotency, b.GroupID.String())
	}
	return req, nil
}
