package sink

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Template makes an event's address of {topic} and {key}: the stream, list,
// channel, subject or URL it goes to. The zero Template makes "".
type Template struct {
	text  string
	parts []part
}

type part struct {
	literal string
	field   byte                // 't' topic, 'k' key, 0 literal
	escape  func(string) string // of what a field makes; nil leaves it as it is
}

// ParseTemplate reads "orders:{topic}". Any other placeholder is an error; a
// brace that is not part of one is taken as it is where literalBraces is true
// (a Redis hash tag), else it is an error too.
func ParseTemplate(text string, literalBraces bool) (Template, error) {
	t := Template{text: text}
	rest := text
	for rest != "" {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			break
		}
		var p part
		switch tail := rest[open:]; {
		case strings.HasPrefix(tail, "{topic}"):
			p = part{literal: "{topic}", field: 't'}
		case strings.HasPrefix(tail, "{key}"):
			p = part{literal: "{key}", field: 'k'}
		case literalBraces:
			p = part{literal: tail[:1]}
		default:
			return Template{}, fmt.Errorf("%q has a brace that is neither {topic} nor {key}", text)
		}
		if open > 0 {
			t.parts = append(t.parts, part{literal: rest[:open]})
		}
		t.parts = append(t.parts, p)
		rest = rest[open+len(p.literal):]
	}
	if rest != "" {
		t.parts = append(t.parts, part{literal: rest})
	}
	return t, nil
}

// ParseURLTemplate reads "https://host/{topic}?key={key}". What a placeholder makes
// is escaped as a path segment or, behind the question mark, as a query's value.
func ParseURLTemplate(text string) (Template, error) {
	t, err := ParseTemplate(text, false)
	escape := url.PathEscape
	for i := range t.parts {
		if strings.Contains(t.parts[i].literal, "?") {
			escape = url.QueryEscape
		}
		t.parts[i].escape = escape
	}
	return t, err
}

// String returns the template as it was written.
func (t Template) String() string { return t.text }

// Fixed tells whether every event has the same address.
func (t Template) Fixed() bool {
	for _, p := range t.parts {
		if p.field != 0 {
			return false
		}
	}
	return true
}

var errNoKey = errors.New("the address asks for {key}, and the event's key is NULL")

// Address makes the event's address. The error wraps ErrPermanent: the event
// has no key, and sending it again will not give it one.
func (t Template) Address(e *outbox.Event) (string, error) {
	if len(t.parts) == 1 { // "orders" and "{topic}" cost nothing
		switch only := t.parts[0]; {
		case only.field == 0:
			return only.literal, nil
		case only.field == 't' && only.escape == nil:
			return e.Topic, nil
		}
	}
	var b strings.Builder
	for _, p := range t.parts {
		s := p.literal
		switch p.field {
		case 't':
			s = e.Topic
		case 'k':
			if e.Key == nil {
				return "", Permanent(errNoKey)
			}
			s = *e.Key
		}
		if p.field != 0 && p.escape != nil {
			s = p.escape(s)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// Values is what the placeholders make of the event, with a blank between them: it tells
// two addresses apart as well as the addresses themselves do, without what stands
// around them, which may be secret. The error is Address's.
func (t Template) Values(e *outbox.Event) (string, error) {
	only := Template{}
	for _, p := range t.parts {
		if p.field == 0 {
			continue
		}
		if len(only.parts) > 0 {
			only.parts = append(only.parts, part{literal: " "})
		}
		only.parts = append(only.parts, p)
	}
	return only.Address(e)
}

// Group is the events of a batch that share an address.
type Group struct {
	Address string
	// Indexes into Batch.Events, ascending.
	Indexes []int
	// Err, in a SplitError, is why these events are refused, while others of the
	// batch could be sent; nil: they are to be sent by themselves.
	Err error
}

// GroupByAddress divides a batch, addresses in the order of their first event.
// Events that have no address are named in the second result.
func (t Template) GroupByAddress(b *buffer.Batch) ([]Group, []EventError) {
	var (
		groups []Group
		wrong  []EventError
		at     = make(map[string]int, 1)
	)
	for i := range b.Events {
		address, err := t.Address(&b.Events[i])
		if err != nil {
			wrong = append(wrong, EventError{Index: i, Err: err})
			continue
		}
		g, ok := at[address]
		if !ok {
			g = len(groups)
			at[address] = g
			most := 1
			if g == 0 { // most batches have one address; many with room for all each would be much
				most = len(b.Events) - i
			}
			groups = append(groups, Group{Address: address, Indexes: make([]int, 0, most)})
		}
		groups[g].Indexes = append(groups[g].Indexes, i)
	}
	return groups, wrong
}
