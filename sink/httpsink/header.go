package httpsink

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// madeHeader is a header whose value is made of topic and key.
type madeHeader struct {
	name     string
	template sink.Template
}

// headerTemplate reads a header's value; braces that are no placeholders stay.
func headerTemplate(value string) sink.Template {
	t, _ := sink.ParseTemplate(value, true) // takes all
	return t
}

// value is the event's. The error wraps sink.ErrPermanent, and tells nothing of what
// stands around the placeholders.
func (m madeHeader) value(e *outbox.Event) (string, error) {
	value, err := m.template.Address(e)
	if err != nil {
		return "", sink.Permanent(fmt.Errorf("the header %s asks for {key}, and the event's key is NULL", m.name))
	}
	if checkHeader(m.name, value) != nil {
		return "", sink.Permanent(fmt.Errorf("its topic or key puts a line break or a control character into the header %s", m.name))
	}
	return value, nil
}

// AddressOf implements sink.Addresser: what {topic} and {key} make of the URL and the
// headers, and no more of it, for a path, a query or a header may be secret.
func (s *Sink) AddressOf(e *outbox.Event) (address string, ok bool) {
	whole, err := s.template.Address(e)
	if err != nil || checkPath(whole) != nil {
		return "", false
	}
	if address, err = s.template.Values(e); err != nil {
		return "", false
	}
	for _, h := range s.made {
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
func (s *Sink) OneAddress() bool { return s.template.Fixed() && len(s.made) == 0 }

// groups divides a batch by what tells its requests apart: the URL, and the headers that
// are made of topic and key.
func (s *Sink) groups(b *buffer.Batch) (groups []sink.Group, refused []sink.EventError) {
	if len(s.made) == 0 {
		return s.template.GroupByAddress(b)
	}
	at := map[string]int{}
	for i := range b.Events {
		e := &b.Events[i]
		url, err := s.template.Address(e)
		name := url
		for _, h := range s.made {
			value, wrong := h.value(e)
			if err == nil {
				err = wrong
			}
			name += "\n" + value
		}
		if err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: err})
			continue
		}
		g, known := at[name]
		if !known {
			g = len(groups)
			at[name] = g
			groups = append(groups, sink.Group{Address: url})
		}
		groups[g].Indexes = append(groups[g].Indexes, i)
	}
	return groups, refused
}

// madeFor are the headers of the events of one group.
func (s *Sink) madeFor(e *outbox.Event) (http.Header, error) {
	if len(s.made) == 0 {
		return nil, nil
	}
	all := http.Header{}
	for _, h := range s.made {
		value, err := h.value(e)
		if err != nil {
			return nil, err
		}
		all[h.name] = []string{value}
	}
	return all, nil
}
