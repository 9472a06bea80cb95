package httpsink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/internal/redact"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

var (
	_ sink.Previewer       = (*Sink)(nil)
	_ sink.AnswerPreviewer = (*Sink)(nil)
)

// Preview implements sink.Previewer. It makes the requests as Send does, but fetches no token. "***" stands
// for the token, the signature, the secrets of the URL's path, its query, and headers that may be secret. The error may be
// that of Config.Request.
func (s *Sink) Preview(ctx context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	r, rejected, err := s.prepare(ctx, b)
	if split, ok := errors.AsType[*sink.SplitError](err); ok {
		return sink.PreviewGroups(b, split.Groups, func(part *buffer.Batch) ([]sink.PreparedMessage, error) {
			return s.Preview(ctx, part)
		})
	}
	if err != nil || r == nil {
		return nil, cmp.Or(err, sink.NewBatchError(rejected))
	}
	req, err := s.httpRequest(ctx, r, b)
	if err != nil {
		return nil, s.redactor.clean(err)
	}
	var without permit
	if s.tokens != nil {
		without.token = &token{header: "Bearer"} // Send fetches one
	}
	s.authorize(req, without, b.GroupID.String(), r.body)
	one := sink.PreparedMessage{
		Summary: req.Method + " " + s.shownURL(), Header: s.maskedHeader(req), Body: r.body, Events: slices.Clone(r.indexes), Unsent: s.unsentOf(ctx, b, r),
	}
	if address, ok := s.AddressOf(&b.Events[r.indexes[0]]); ok && address != "" {
		one.Summary += " (" + address + ")"
	}
	return []sink.PreparedMessage{one}, sink.NewBatchError(rejected)
}

// shownURL is the URL's template without its secrets.
func (s *Sink) shownURL() string { return MaskPath(cmp.Or(s.cfg.ShownURL, s.template.String())) }

// PreviewAnswer implements sink.AnswerPreviewer. If the batch would be split, each part has the same answer.
func (s *Sink) PreviewAnswer(ctx context.Context, b *buffer.Batch, a sink.Answer) error {
	r, rejected, err := s.prepare(ctx, b)
	if split, ok := errors.AsType[*sink.SplitError](err); ok {
		_, err = sink.PreviewGroups(b, split.Groups, func(part *buffer.Batch) ([]sink.PreparedMessage, error) {
			return nil, s.PreviewAnswer(ctx, part, a)
		})
		return err
	}
	if err != nil || r == nil {
		return cmp.Or(err, sink.NewBatchError(rejected))
	}
	failed, err := s.readResponse(ctx, &http.Response{StatusCode: a.Status, Header: a.Header, Body: io.NopCloser(bytes.NewReader(a.Body))}, r, b, nil)
	if err != nil {
		return s.named(err)
	}
	return sink.NewBatchError(append(failed, rejected...))
}

// maskedHeader are the request's headers by name.
func (s *Sink) maskedHeader(req *http.Request) (fields []sink.Field) {
	if req.Host != "" && s.hostName != "" {
		fields = append(fields, sink.Field{Name: "Host", Value: req.Host})
	}
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		for _, value := range req.Header[name] {
			fields = append(fields, sink.Field{Name: name, Value: s.maskHeader(name, value)})
		}
	}
	return fields
}

// isAttribute reports whether a header has what the event has, as the body does.
func (s *Sink) isAttribute(name string) bool {
	_, configured := s.header[name]
	return s.cfg.Format == CloudEventsBinary && strings.HasPrefix(name, attributePrefix) && !configured
}

func (s *Sink) maskHeader(name, value string) string {
	onlyPlaceholders := slices.ContainsFunc(s.templated, func(h templatedHeader) bool {
		return h.name == name && strings.Join(redact.Literals(h.template.String()), "") == ""
	})
	switch scheme, _, _ := strings.Cut(value, " "); {
	case !MayBeSecret(name), strings.Contains(name, "Version"), onlyPlaceholders, s.isAttribute(name):
		return value
	case name == headerAuthorization && (scheme == "Basic" || scheme == "Bearer"):
		return scheme + " " + hidden
	}
	return hidden
}
