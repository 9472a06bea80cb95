// Package sqliteoutbox inserts events into the relay's table in a SQLite file. It is all that a Go application needs to
// enqueue, works with any SQLite driver of database/sql, and depends on the standard library only.
package sqliteoutbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/internal/sqlname"
)

const defaultTable = "outbox_events"

// Table is a buffer table to insert into. The zero Table is outbox_events with payloads of JSON. A Table is a value
// without state: it may be copied and used concurrently.
type Table struct {
	// Name is the table as it is called, without quotes; "outbox_events" when empty.
	Name string
	// Bytes reports whether payload is a column of opaque bytes. False means JSON.
	Bytes bool
}

// Insert inserts events into outbox_events inside the caller's transaction. See [Table.Insert].
func Insert(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return Table{}.Insert(ctx, tx, events...)
}

// maxRows keeps a statement below the 999 variables that every SQLite accepts.
const maxRows = 200

// Insert inserts events into the table inside the caller's transaction. The events exist when, and only when, the
// transaction commits; the caller commits it or rolls it back. Ids rise in the order of events. No events are no error.
//
// An event with an AvailableAt is invalid: SQLite has no delayed events.
//
// Insert reads Topic, Key, Payload and Headers; the database sets ID and CreatedAt. It keeps no reference to events
// after it has returned.
//
// All events are validated before the first is inserted. If errors.Is finds [outbox.ErrInvalidEvent], the error names
// the first event that is invalid with all of its mistakes, nothing was inserted, and the transaction can continue. After
// any other error some of the events may be in the transaction: roll it back. errors.As finds the driver's error.
//
// Begin transactions that write as IMMEDIATE (modernc.org/sqlite: _txlock=immediate). A deferred one that reads first
// may fail with SQLITE_BUSY when it writes.
func (t Table) Insert(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	if t.Name == "" {
		t.Name = defaultTable
	}
	for i := range events {
		err := events[i].Validate(!t.Bytes)
		if err == nil && !events[i].AvailableAt.IsZero() {
			err = fmt.Errorf("%w: available_at is set; expected none, because a buffer on SQLite has no delayed events", outbox.ErrInvalidEvent)
		}
		if err != nil {
			if len(events) == 1 {
				return err
			}
			return fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		}
	}
	for len(events) > 0 {
		n := min(maxRows, len(events))
		args := make([]any, 0, 4*n)
		for i := range events[:n] {
			e := &events[i]
			args = append(args, e.Topic, e.Key, t.payload(e), headers(e))
		}
		statement := "INSERT INTO " + sqlname.Quote(t.Name) + " (topic, key, payload, headers) VALUES (?, ?, ?, ?)" +
			strings.Repeat(", (?, ?, ?, ?)", n-1)
		if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
			return fmt.Errorf("inserting into %s: %w", t.Name, err)
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
