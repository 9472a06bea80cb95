package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox"
)

// Table is a buffer table to insert into. The zero Table is "outbox_events" with JSON payloads. It is
// safe for concurrent use.
type Table struct {
	// Name is "outbox_events" when empty.
	Name string
	// Bytes is set if payload is a column of opaque bytes and not of JSON.
	Bytes bool
}

// Insert puts events into the table outbox_events in the caller's transaction. They are sent after
// it has committed, and never if it rolls back. Topic and Payload are required, and the payload is
// JSON. See [Table.Insert].
func Insert(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return Table{}.Insert(ctx, tx, events...)
}

const insertSQL = `INSERT INTO outbox_events (topic, key, payload, headers) VALUES (?, ?, ?, ?)`

// maxRows keeps a statement below the 999 variables that every SQLite accepts.
const maxRows = 200

// Insert puts events into the table in the caller's transaction. It ignores ID and CreatedAt of the
// events: the database sets them.
//
// It validates all events before it inserts the first. If errors.Is finds outbox.ErrInvalidEvent,
// nothing was inserted and the transaction can continue. After any other error it must be rolled
// back.
func (t Table) Insert(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	t.Name = cmp.Or(t.Name, defaultTable)
	for i := range events {
		if err := events[i].Validate(!t.Bytes); err != nil {
			return fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		}
	}
	into := names(t.Name, "").Replace(insertSQL)
	for len(events) > 0 {
		n := min(maxRows, len(events))
		args := make([]any, 0, 4*n)
		for i := range events[:n] {
			e := &events[i]
			args = append(args, e.Topic, e.Key, t.payload(e), headers(e))
		}
		statement := into + strings.Repeat(", (?, ?, ?, ?)", n-1)
		if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
			return fmt.Errorf("inserting events into %s: %w", t.Name, err)
		}
		events = events[n:]
	}
	return nil
}

// payload is text if it is JSON: SQLite distinguishes bytes and text.
func (t Table) payload(e *outbox.Event) any {
	if t.Bytes {
		return e.Payload
	}
	return string(e.Payload)
}

func headers(e *outbox.Event) any {
	if e.Headers == nil {
		return nil
	}
	return string(e.Headers)
}
