package httpsink

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

var _ sink.Previewer = (*Sink)(nil)

// Preview implements sink.Previewer. It makes the requests as Send does, but fetches no token. "***" stands
// for the token, the signature, the URL's path and query, and headers that may be secret. The error may be
// that of Config.Request.
func (s *Sink) Preview(ctx context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	p := preview{Sink: s}
	all := make([]int, len(b.Events))
	for i := range all {
		all[i] = i
	}
	if err := p.add(ctx, b, all); err != nil {
		return p.requests, err
	}
	return p.requests, batchError(p.rejected)
}

type preview struct {
	*Sink
	requests []sink.PreparedMessage
	rejected []sink.EventError
}

// add adds the request of a batch, or of each part of it. indexes are those of the events in the whole
// batch.
func (p *preview) add(ctx context.Context, b *buffer.Batch, indexes []int) error {
	r, rejected, err := p.prepare(ctx, b)
	if split, ok := errors.AsType[*sink.SplitError](err); ok {
		return p.addGroups(ctx, b, indexes, split.Groups)
	} else if err != nil {
		return err
	}
	p.reject(rejected, indexes)
	if r == nil {
		return nil
	}
	req, err := p.httpRequest(ctx, r, b)
	if err != nil {
		return p.redactor.clean(err)
	}
	var without permit
	if p.tokens != nil {
		without.token = &token{header: "Bearer"} // Send fetches one
	}
	p.authorize(req, without, b.GroupID.String(), r.body)
	one := sink.PreparedMessage{Summary: req.Method + " " + MaskPath(r.url), Header: p.maskedHeader(req), Body: r.body}
	if address, ok := p.AddressOf(&b.Events[r.indexes[0]]); ok && address != "" {
		one.Summary += " (" + address + ")"
	}
	for _, i := range r.indexes {
		one.Events = append(one.Events, indexes[i])
	}
	p.requests = append(p.requests, one)
	return nil
}

func (p *preview) addGroups(ctx context.Context, b *buffer.Batch, indexes []int, groups []sink.Group) error {
	for _, g := range groups {
		if g.Err != nil {
			for _, i := range g.Indexes {
				p.reject([]sink.EventError{{Index: i, Err: g.Err}}, indexes)
			}
			continue
		}
		part := *b
		part.GroupID, part.Events = buffer.NewGroupID(), nil
		var partIndexes []int
		for _, i := range g.Indexes {
			part.Events, partIndexes = append(part.Events, b.Events[i]), append(partIndexes, indexes[i])
		}
		if err := p.add(ctx, &part, partIndexes); err != nil {
			return err
		}
	}
	return nil
}

func (p *preview) reject(events []sink.EventError, indexes []int) {
	for _, e := range events {
		p.rejected = append(p.rejected, sink.EventError{Index: indexes[e.Index], Err: e.Err})
	}
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

func (s *Sink) maskHeader(name, value string) string {
	at := slices.IndexFunc(s.templated, func(h templatedHeader) bool { return h.name == name })
	isPublic := !MayBeSecret(name) || strings.Contains(name, "Version")
	switch scheme, _, _ := strings.Cut(value, " "); {
	case isPublic, at >= 0 && hasOnlyPlaceholders(s.templated[at].template.String()):
		return value
	case name == headerAuthorization && (scheme == "Basic" || scheme == "Bearer"):
		return scheme + " " + hidden
	}
	return hidden
}

func hasOnlyPlaceholders(template string) bool {
	return strings.Trim(placeholders.Replace(template), placeholderMark) == ""
}
