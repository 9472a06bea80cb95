package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Send sends the batch as one request before ctx's deadline. It returns a
// *sink.SplitError, before anything is sent, when the events have more than one
// URL, headers that differ, or a body of more than Config.MaxBytes; a *sink.BatchError
// for events that have no URL, whose headers are not JSON, that are larger than MaxBytes
// each alone, or that Results names; otherwise what the answer's status means for the
// batch as a whole. A Request that fails is an outage and suspect, for nothing was sent;
// Results that fail are an outage.
func (s *Sink) Send(ctx context.Context, b *buffer.Batch) error {
	if err := ctx.Err(); err != nil {
		return sink.Unavailable(err)
	}
	r, refused, err := s.prepare(ctx, b)
	if err != nil {
		return err
	}
	if r != nil && len(refused) > 0 {
		// The set that the server sees under this group_id must not grow, should they be
		// fit to be sent another time: projected anew, or after max_bytes was changed.
		return without(r.events, refused)
	}
	if r != nil {
		failed, err := s.post(ctx, r, b)
		if err != nil {
			err = fmt.Errorf("%s %s://%s: %w", s.method, s.scheme, s.host, err)
			if errors.Is(err, errAddress) && !s.OneAddress() {
				return awayAt(b, err)
			}
			return err
		}
		refused = append(refused, failed...)
	}
	return inOrder(refused)
}

// inOrder is the error that names those events; nil where there is none.
func inOrder(refused []sink.EventError) error {
	if len(refused) == 0 {
		return nil
	}
	slices.SortFunc(refused, func(a, b sink.EventError) int { return a.Index - b.Index })
	return &sink.BatchError{Events: refused}
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
	return &sink.SplitError{Groups: groups, TooLarge: tooLarge}
}

// without asks for the events to be parted from those that are refused.
func without(events []int, refused []sink.EventError) error {
	groups := []sink.Group{{Indexes: events}}
	for _, e := range refused {
		groups = append(groups, sink.Group{Indexes: []int{e.Index}, Err: e.Err})
	}
	return &sink.SplitError{Groups: groups}
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
func awayAt(b *buffer.Batch, err error) error {
	events := make([]sink.EventError, len(b.Events))
	for i := range events {
		events[i] = sink.EventError{Index: i, Err: err}
	}
	if errors.Is(err, sink.ErrMaybePoison) {
		return sink.MaybePoison(&sink.BatchError{Events: events})
	}
	return sink.Unavailable(&sink.BatchError{Events: events})
}

// post sends a request and tells which events the answer says failed, or what it says
// of all.
func (s *Sink) post(ctx context.Context, r *request, b *buffer.Batch) (failed []sink.EventError, err error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave.done()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	written := &progress{}
	req, err := s.httpRequest(httptrace.WithClientTrace(ctx, written.trace()), r, b)
	if err != nil {
		return nil, s.redactor.failed(err)
	}
	s.admit(req, leave, b.GroupID.String(), r.body)
	// The transport, and not a Client, which would follow redirects.
	resp, err := s.transport.RoundTrip(req)
	switch {
	case err == nil:
		s.learn(resp, leave)
		return s.heard(ctx, resp, r, b)
	case written.yet.Load() && !errors.Is(ctx.Err(), context.Canceled):
		return nil, sink.MaybePoison(s.redactor.failed(err))
	}
	// There is no connection, or the sender was called off.
	return nil, s.redactor.failed(err)
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
