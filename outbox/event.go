package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Limits that [Event.Validate] holds. They are far beyond what a broker takes;
// they stop a mistake, not a use.
const (
	MaxTopicBytes   = 1 << 10
	MaxKeyBytes     = 4 << 10
	MaxHeadersBytes = 64 << 10
	MaxPayloadBytes = 64 << 20
)

// Event is one row of a buffer table.
//
// An application fills Topic and Payload, and Key and Headers if it wants; ID
// and CreatedAt are the database's to give and are ignored by Insert.
//
// An event that came out of a buffer belongs to its [Batch]: a sink reads it
// and keeps no reference to it after Send has returned.
type Event struct {
	// ID is the decimal primary key; it is the event's identity for ever.
	ID int64
	// UUID is the primary key where that is a uuid, in a table of the user's own; ID is
	// then a number that stands for it inside the relay. Else it is uuid.Nil.
	UUID uuid.UUID
	// Topic says what kind of event this is; required.
	Topic string
	// Key is what order and partitioning go by; nil is NULL, which is not "".
	Key *string
	// Payload is what happened: JSON, or opaque bytes where the column is one
	// for bytes. Required, but may be zero bytes long where it is opaque.
	Payload []byte
	// Headers is a JSON object of strings; nil is NULL.
	Headers Headers
	// CreatedAt is the database's clock when the row was inserted, in UTC,
	// to the microsecond (millisecond on SQLite).
	CreatedAt time.Time
	// NoProjection: the projection of a table of the user's own returned no row for the
	// event, so there is nothing to send: Topic and Payload are the table's name and
	// the row.
	NoProjection bool
	// ProjectErr is what is wrong with what the projection returned for the event: there
	// is nothing to send of it.
	ProjectErr error
	// DeadLetter, in a batch for a dead-letter hook, is why the event was buried;
	// else nil.
	DeadLetter *DeadLetter
}

// AppendIdentity appends what the event is called outside of the relay, for ever: its
// primary key, decimal or a uuid.
func (e *Event) AppendIdentity(dst []byte) []byte {
	if e.UUID == uuid.Nil {
		return strconv.AppendInt(dst, e.ID, 10)
	}
	return append(dst, e.UUID.String()...)
}

// Identity is what AppendIdentity appends.
func (e *Event) Identity() string { return string(e.AppendIdentity(nil)) }

// Headers is the text of a JSON object whose values are strings, kept as the
// database wrote it so that sinks which speak JSON pass it on untouched.
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

// Map parses the headers. The error says what is not a JSON object of strings.
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

// Validate looks at what an application is about to insert and lists every
// mistake. jsonPayload says that the payload's column is JSON. The error, if
// any, is found by errors.Is(err, ErrInvalidEvent).
func (e *Event) Validate(jsonPayload bool) error {
	var wrong []string
	say := func(format string, a ...any) { wrong = append(wrong, fmt.Sprintf(format, a...)) }

	checkText := func(name, s string, most int) {
		switch {
		case len(s) > most:
			say("%s is %d bytes long, at most %d are taken", name, len(s), most)
		case !utf8.ValidString(s):
			say("%s is not valid UTF-8", name)
		case strings.IndexByte(s, 0) >= 0:
			say("%s contains a NUL byte, which no database text takes", name)
		}
	}
	if e.Topic == "" {
		say("topic is empty, a name like \"orders.created\" was expected")
	}
	checkText("topic", e.Topic, MaxTopicBytes)
	if e.Key != nil {
		checkText("key", *e.Key, MaxKeyBytes)
	}
	switch {
	case len(e.Payload) > MaxPayloadBytes:
		say("payload is %d bytes long, at most %d are taken", len(e.Payload), MaxPayloadBytes)
	case jsonPayload && len(e.Payload) == 0:
		say("payload is empty, JSON was expected")
	case jsonPayload:
		if err := checkJSON(e.Payload); err != nil {
			say("payload is not JSON: %v", err)
		}
	case e.Payload == nil:
		say("payload is nil, bytes were expected (an empty slice if there are none)")
	}
	if e.Headers != nil {
		if len(e.Headers) > MaxHeadersBytes {
			say("headers are %d bytes long, at most %d are taken", len(e.Headers), MaxHeadersBytes)
		} else if !utf8.Valid(e.Headers) {
			say("headers are not valid UTF-8")
		} else if _, err := e.Headers.Map(); err != nil {
			say("%v", err)
		}
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
	if json.Valid(text) {
		return nil
	}
	// Only now, on the way to an error, is it worth asking where.
	dec := json.NewDecoder(bytes.NewReader(text))
	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("at byte %d: %w", dec.InputOffset(), err)
	}
	return fmt.Errorf("at byte %d: more than one JSON value", dec.InputOffset())
}
