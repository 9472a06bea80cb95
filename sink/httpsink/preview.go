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

// Preview implements sink.Previewer: the requests are made as Send makes them. What is
// drawn anew for each (a token, a signature) is not fetched, and "***" stands for it, as
// for what may be secret: the headers' values, but for those that never are, the values
// in the query that are no event's, and what looks like a token in the path. The error is
// Request's too, when that fails.
func (s *Sink) Preview(ctx context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	p := preview{Sink: s}
	all := make([]int, len(b.Events))
	for i := range all {
		all[i] = i
	}
	if err := p.add(ctx, b, all); err != nil {
		return p.shown, err
	}
	return p.shown, inOrder(p.refused)
}

type preview struct {
	*Sink
	shown   []sink.PreparedMessage
	refused []sink.EventError
}

// add shows a batch, or each part of it. at says which event of the whole each one is.
func (p *preview) add(ctx context.Context, b *buffer.Batch, at []int) error {
	r, refused, err := p.prepare(ctx, b)
	if divide, ok := errors.AsType[*sink.SplitError](err); ok {
		for _, g := range divide.Groups {
			if g.Err != nil {
				for _, i := range g.Indexes {
					p.refused = append(p.refused, sink.EventError{Index: at[i], Err: g.Err})
				}
				continue
			}
			part := *b
			part.GroupID, part.Events = buffer.NewGroupID(), nil
			var partAt []int
			for _, i := range g.Indexes {
				part.Events, partAt = append(part.Events, b.Events[i]), append(partAt, at[i])
			}
			if err := p.add(ctx, &part, partAt); err != nil {
				return err
			}
		}
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range refused {
		p.refused = append(p.refused, sink.EventError{Index: at[e.Index], Err: e.Err})
	}
	if r == nil {
		return nil
	}
	req, err := p.httpRequest(ctx, r, b)
	if err != nil {
		return p.redactor.clean(err)
	}
	var given leave
	if p.tokens != nil {
		given.token = &token{header: "Bearer"} // one is fetched for requests that are sent
	}
	p.admit(req, given, b.GroupID.String(), r.body)
	one := sink.PreparedMessage{Summary: req.Method + " " + p.shownURL(r.url), Header: p.shownHeader(req), Body: r.body}
	for _, i := range r.events {
		one.Events = append(one.Events, at[i])
	}
	p.shown = append(p.shown, one)
	return nil
}

// shownURL hides what may be secret. What a placeholder makes is escaped, so that the
// URL has as many segments and parameters as its template.
func (s *Sink) shownURL(url string) string {
	path, query, hasQuery := strings.Cut(url, "?")
	pathOf, queryOf, _ := strings.Cut(s.template.String(), "?")
	segments, templates := strings.Split(path, "/"), strings.Split(pathOf, "/")
	secret := secretIn(pathOf)
	for i := firstSegment; i < len(segments) && i < len(templates); i++ {
		if templates[i] == segments[i] && secret(segments[i]) {
			segments[i] = hidden
		}
	}
	path = strings.Join(segments, "/")
	if !hasQuery {
		return path
	}
	parameters, templates := strings.Split(query, "&"), strings.Split(queryOf, "&")
	for i := range parameters {
		name, value, hasValue := strings.Cut(parameters[i], "=")
		if i < len(templates) && templates[i] == parameters[i] && hasValue && len(value) >= shortest {
			parameters[i] = name + "=" + hidden
		}
	}
	return path + "?" + strings.Join(parameters, "&")
}

// shownHeader are the request's headers by name.
func (s *Sink) shownHeader(req *http.Request) (all []sink.Field) {
	if req.Host != "" && s.hostName != "" {
		all = append(all, sink.Field{Name: "Host", Value: req.Host})
	}
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		at := slices.IndexFunc(s.made, func(m madeHeader) bool { return m.name == name })
		for _, value := range req.Header[name] {
			switch {
			case !MayBeSecret(name) || strings.Contains(name, "Version"):
			case at >= 0 && onlyPlaceholders(s.made[at].template.String()):
			case name == headerAuthorization:
				scheme, _, _ := strings.Cut(value, " ")
				if value = hidden; slices.Contains([]string{"Basic", "Bearer"}, scheme) {
					value = scheme + " " + hidden
				}
			default:
				value = hidden
			}
			all = append(all, sink.Field{Name: name, Value: value})
		}
	}
	return all
}

func onlyPlaceholders(template string) bool {
	return strings.Trim(placeholder.Replace(template), "\x00") == ""
}
