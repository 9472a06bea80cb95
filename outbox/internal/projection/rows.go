package projection

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// PayloadKind is how the database returns a payload.
type PayloadKind uint8

// The kinds of payload.
const (
	JSON  PayloadKind = iota // the column's type guarantees JSON
	Text                     // JSON, still to be validated
	Bytes                    // opaque
)

// Row is what a projection returns for one event. Its bytes belong to the event afterwards.
type Row struct {
	// Payload is nil for NULL.
	Payload []byte
	Kind    PayloadKind
	// Topic and Key are nil for NULL.
	Topic, Key *string
	// Headers is nil for NULL.
	Headers []byte
	// CreatedAt is zero for NULL.
	CreatedAt time.Time
	// Err is what is wrong with a value that has no place in the fields above.
	Err error
}

// Rows assigns the rows of a projection to the events of a batch.
type Rows struct {
	events []outbox.Event
	table  string
	seen   []bool
	errs   map[int]error
	next   int // mostly the index of the next row's event
}

// NewRows starts with the events of a batch, which must be in ascending id order and are
// changed in place. table is the topic of events for which the projection returns none.
func NewRows(events []outbox.Event, table string) *Rows {
	return &Rows{events: events, table: table, seen: make([]bool, len(events))}
}

// Find returns the index of the event with that id.
func (r *Rows) Find(id int64) (i int, found bool) {
	i, found = r.next, true
	if i >= len(r.events) || r.events[i].ID != id {
		i, found = slices.BinarySearchFunc(r.events, id, func(e outbox.Event, id int64) int { return cmp.Compare(e.ID, id) })
	}
	if found {
		r.next = i + 1
	}
	return i, found
}

// Add assigns a row to the event at index i. If anything is wrong with it, the event is rejected; the
// first reason counts.
func (r *Rows) Add(i int, row *Row) {
	e := &r.events[i]
	if r.errs[i] != nil {
		return
	}
	err := row.Err
	switch {
	case r.seen[i]:
		err = errors.New("is returned twice; expected one row an event (check the joins)")
	case err == nil:
		err = row.fill(e, r.table)
	}
	r.seen[i] = true
	if err != nil {
		r.Reject(i, fmt.Errorf("source.project: event %s %w", e.Identity(), err))
	}
}

// Reject rejects the event at index i.
func (r *Rows) Reject(i int, err error) {
	if r.errs == nil {
		r.errs = map[int]error{}
	}
	r.errs[i] = OneLine(err)
	e := &r.events[i]
	*e = outbox.Event{ID: e.ID, UUID: e.UUID, Topic: r.table, CreatedAt: e.CreatedAt}
}

// Err returns why the event at index i was rejected; nil: it was not.
func (r *Rows) Err(i int) error { return r.errs[i] }

// Split returns the events that can be sent, and those that were rejected or for which the projection
// returned no row, both in id order.
func (r *Rows) Split() (sent []outbox.Event, rejected []buffer.Rejection) {
	for i, e := range r.events {
		err := r.errs[i]
		if !r.seen[i] {
			err = buffer.ErrNotProjected
		}
		if err != nil {
			rejected = append(rejected, buffer.Rejection{Event: e, Err: err})
		} else {
			sent = append(sent, e)
		}
	}
	return sent, rejected
}

// Missing reports whether the projection returned no row for the event at index i.
func (r *Rows) Missing(i int) bool { return !r.seen[i] }

// MissingIDs returns the ids of all events for which the projection returned no row.
func (r *Rows) MissingIDs() (ids []int64) {
	for i, seen := range r.seen {
		if !seen {
			ids = append(ids, r.events[i].ID)
		}
	}
	return ids
}

func (row *Row) fill(e *outbox.Event, table string) error {
	switch {
	case row.Payload == nil:
		return errors.New("has payload NULL; expected JSON or bytes (leave its row out to bury the event as \"not projected\")")
	case row.Kind == Text && !json.Valid(row.Payload):
		return errors.New("has a payload that is text and not JSON; expected JSON, or opaque bytes in a binary type")
	case row.Topic != nil && *row.Topic == "":
		return errors.New("has an empty topic; expected a name, or NULL for the table's name")
	case row.Headers != nil && !isObject(row.Headers):
		return errors.New("has headers that are not a JSON object; expected an object of strings")
	}
	e.Payload, e.Key, e.Headers, e.Topic = row.Payload, row.Key, row.Headers, table
	if row.Topic != nil {
		e.Topic = *row.Topic
	}
	if !row.CreatedAt.IsZero() {
		e.CreatedAt = row.CreatedAt
	}
	return nil
}

func isObject(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && json.Valid(text)
}

// WrongType is the error of a value whose type does not fit its column; see [Row.Err].
func WrongType(column int, value, expected string) error {
	return fmt.Errorf("has %s %s; expected %s", Names[column], value, expected)
}
