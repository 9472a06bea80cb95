package sink

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Template makes an event's address from {topic} and {key}: its stream, list, channel, subject or
// URL. The zero Template makes "".
type Template struct {
	text  string
	parts []part
}

type part struct {
	literal string
	field   byte                // 't' topic, 'k' key, 0 literal
	escape  func(string) string // of what a field makes; nil leaves it as it is
}

// ParseTemplate parses a template such as "orders:{topic}". Any other placeholder is an error, and
// so is any other brace unless literalBraces is true (a Redis hash tag).
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

// ParseURLTemplate parses a template such as "https://host/{topic}?key={key}". Values are escaped
// for a path or, after the question mark, for a query.
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

// Fixed reports whether every event has the same address.
func (t Template) Fixed() bool {
	for _, p := range t.parts {
		if p.field != 0 {
			return false
		}
	}
	return true
}

var errNoKey = errors.New("the key is NULL; expected a key for {key} in the address")

// Address returns the event's address. If it needs the key and the event has none, the error wraps
// ErrPermanent.
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

// Values returns the values of the placeholders, separated by blanks. It distinguishes addresses
// without the rest of the template, which may be secret. The error is Address's.
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
	// Err, in a SplitError, is why these events are rejected while others of the batch can be
	// sent; nil: they are sent as a batch of their own.
	Err error
}

// GroupByAddress groups the events of a batch, in the order of the first event of each address, and
// returns the events without an address.
func GroupByAddress(b *buffer.Batch, addressOf func(*outbox.Event) (string, error)) ([]Group, []EventError) {
	var (
		groups []Group
		wrong  []EventError
		at     = make(map[string]int, 1)
	)
	for i := range b.Events {
		address, err := addressOf(&b.Events[i])
		if err != nil {
			wrong = append(wrong, EventError{Index: i, Err: err})
			continue
		}
		g, ok := at[address]
		if !ok {
			g = len(groups)
			at[address] = g
			groups = append(groups, Group{Address: address})
		}
		groups[g].Indexes = append(groups[g].Indexes, i)
	}
	return groups, wrong
}
