package outbox

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits that [Event.Validate] enforces. They are far beyond what a broker accepts.
const (
	MaxTopicBytes   = 1 << 10
	MaxKeyBytes     = 4 << 10
	MaxHeadersBytes = 64 << 10
	MaxPayloadBytes = 64 << 20
)

// Event is one row of a buffer table.
//
// An application sets Topic and Payload, and may set Key, Headers and AvailableAt. Insert ignores ID
// and CreatedAt, which the database sets.
//
// An event that came out of a buffer belongs to its batch: a sink reads it and keeps no
// reference to it after Send has returned.
type Event struct {
	// ID is the primary key, the event's identity for ever.
	ID int64
	// UUID is the primary key of a custom table if that is a uuid, otherwise zero. ID is then a number that stands for
	// it inside the relay. Any 16-byte UUID type converts to it.
	UUID [16]byte
	// Topic is the kind of event; required.
	Topic string
	// Key decides order and partition; nil is NULL, which differs from "".
	Key *string
	// Payload is JSON, or opaque bytes in a column of bytes. Required; opaque bytes may be empty.
	Payload []byte
	// Headers is a JSON object of strings; nil is NULL.
	Headers Headers
	// CreatedAt is the database's clock when the row was inserted, in UTC,
	// to the microsecond (millisecond on SQLite).
	CreatedAt time.Time
	// AvailableAt delays the event: it is not delivered before that time by the database's clock. The zero time, and one that has passed,
	// delay nothing. A sink does not see it.
	AvailableAt time.Time
}

// MaxDelay is how far ahead AvailableAt may be when an event is inserted. A later time is nearly always one in the wrong unit.
const MaxDelay = 10 * 366 * 24 * time.Hour

// Waiting returns since when the event waits to be delivered: CreatedAt, or AvailableAt if that is later.
func (e *Event) Waiting() time.Time {
	if e.AvailableAt.After(e.CreatedAt) {
		return e.AvailableAt
	}
	return e.CreatedAt
}

// AppendIdentity appends the event's name outside of the relay: its primary key, a decimal number or a uuid.
func (e *Event) AppendIdentity(dst []byte) []byte {
	if e.UUID == ([16]byte{}) {
		return strconv.AppendInt(dst, e.ID, 10)
	}
	u := e.UUID[:]
	for i, part := range [][]byte{u[:4], u[4:6], u[6:8], u[8:10], u[10:]} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, part)
	}
	return dst
}

// Identity returns what AppendIdentity appends.
func (e *Event) Identity() string { return string(e.AppendIdentity(nil)) }

// Headers is the text of a JSON object whose values are strings, as the database wrote it,
// so that sinks which send JSON copy it unchanged.
type Headers []byte

// NewHeaders makes Headers of a map, keys sorted. A nil map gives nil: NULL.
func NewHeaders(m map[string]string) Headers {
	if m == nil {
		return nil
	}
	text, err := json.Marshal(m)
	if err != nil { // strings always marshal
		panic(err)
	}
	return text
}

// Map parses the headers.
func (h Headers) Map() (map[string]string, error) {
	if h == nil {
		return nil, nil
	}
	var values map[string]*string // null is no string
	if err := json.Unmarshal(h, &values); err != nil {
		return nil, fmt.Errorf("headers are not a JSON object of strings: %w", err)
	}
	if values == nil {
		return nil, errors.New("headers are not a JSON object of strings: null")
	}
	m := make(map[string]string, len(values))
	for name, value := range values {
		if value == nil {
			return nil, fmt.Errorf("headers are not a JSON object of strings: %q is null", name)
		}
		m[name] = *value
	}
	return m, nil
}

// Validate validates an event before it is inserted. Its error wraps [ErrInvalidEvent] and lists
// every mistake. jsonPayload reports whether the payload's column is JSON.
func (e *Event) Validate(jsonPayload bool) error {
	var wrong []string
	say := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }

	checkText := func(name, s string, most int) {
		switch {
		case len(s) > most:
			say("%s is %d bytes long; expected at most %d", name, len(s), most)
		case !utf8.ValidString(s):
			say("%s is not valid UTF-8", name)
		case strings.IndexByte(s, 0) >= 0:
			say("%s contains a NUL byte; expected none, because no database stores it in text", name)
		}
	}
	if e.Topic == "" {
		say("topic is empty; expected a name such as \"orders.created\"")
	}
	checkText("topic", e.Topic, MaxTopicBytes)
	if e.Key != nil {
		checkText("key", *e.Key, MaxKeyBytes)
	}
	switch {
	case len(e.Payload) > MaxPayloadBytes:
		say("payload is %d bytes long; expected at most %d", len(e.Payload), MaxPayloadBytes)
	case jsonPayload && len(e.Payload) == 0:
		say("payload is empty; expected JSON")
	case jsonPayload:
		if err := checkJSON(e.Payload); err != nil {
			say("payload is not JSON: %v", err)
		}
	case e.Payload == nil:
		say("payload is nil; expected bytes (an empty slice for none)")
	}
	if e.Headers != nil {
		if len(e.Headers) > MaxHeadersBytes {
			say("headers are %d bytes long; expected at most %d", len(e.Headers), MaxHeadersBytes)
		} else if !utf8.Valid(e.Headers) {
			say("headers are not valid UTF-8")
		} else if _, err := e.Headers.Map(); err != nil {
			say("%v", err)
		}
	}
	if !e.AvailableAt.IsZero() && time.Until(e.AvailableAt) > MaxDelay {
		say("available_at is %s; expected at most 10 years from now", e.AvailableAt.UTC().Format(time.RFC3339))
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalidEvent, strings.Join(wrong, "; "))
}

func checkJSON(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("it is not valid UTF-8")
	}
	err := json.Unmarshal(text, new(json.RawMessage))
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("at byte %d: %w", syntax.Offset, err)
	}
	return err
}
