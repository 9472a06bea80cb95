package httpsink

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// templatedHeader is a header whose value contains {topic} or {key}.
type templatedHeader struct {
	name     string
	template sink.Template
}

// headerTemplate reads a header's value. Braces that are not placeholders stay as they are.
func headerTemplate(value string) sink.Template {
	t, _ := sink.ParseTemplate(value, true) // accepts every value
	return t
}

// value returns the value for an event. The error wraps sink.ErrPermanent, and does not contain the text
// around the placeholders.
func (h templatedHeader) value(e *outbox.Event) (string, error) {
	value, err := h.template.Address(e)
	if err != nil {
		return "", sink.Permanent(fmt.Errorf("the key is NULL; expected a key for the header %s", h.name))
	}
	if checkHeader(h.name, value) != nil {
		return "", sink.Permanent(fmt.Errorf("the topic or key contains a line break or a control character; expected none for the header %s", h.name))
	}
	return value, nil
}

// templatedHeaders are the headers for the events of one group.
func (s *Sink) templatedHeaders(e *outbox.Event) (http.Header, error) {
	if len(s.templated) == 0 {
		return nil, nil
	}
	all := http.Header{}
	for _, h := range s.templated {
		value, err := h.value(e)
		if err != nil {
			return nil, err
		}
		all[h.name] = []string{value}
	}
	return all, nil
}

// AddressOf implements sink.Addresser. The address is what {topic} and {key} make of the URL and the
// headers, and nothing else of them: a path, a query or a header may be secret.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	url, err := s.template.Address(e)
	if err != nil || checkPath(url) != nil {
		return "", false
	}
	if address, err = s.template.Values(e); err != nil {
		return "", false
	}
	for _, h := range s.templated {
		if _, err := h.value(e); err != nil {
			return "", false
		}
		values, err := h.template.Values(e)
		if err != nil {
			return "", false
		}
		address = strings.TrimPrefix(address+" "+values, " ")
	}
	return address, true
}

// OneAddress implements sink.Addresser.
func (s *Sink) OneAddress() bool { return s.template.Fixed() && len(s.templated) == 0 }

// groupEvents groups the events by URL and by templated headers.
func (s *Sink) groupEvents(b *buffer.Batch) (groups []sink.Group, rejected []sink.EventError) {
	if len(s.templated) == 0 {
		return s.template.GroupByAddress(b)
	}
	groupOf := map[string]int{}
	for i := range b.Events {
		e := &b.Events[i]
		url, err := s.template.Address(e)
		name := url
		for _, h := range s.templated {
			value, headerErr := h.value(e)
			if err == nil {
				err = headerErr
			}
			name += "\n" + value
		}
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		g, known := groupOf[name]
		if !known {
			g = len(groups)
			groupOf[name] = g
			groups = append(groups, sink.Group{Address: url})
		}
		groups[g].Indexes = append(groups[g].Indexes, i)
	}
	return groups, rejected
}
