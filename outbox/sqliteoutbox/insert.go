// Package sqliteoutbox inserts events into the relay's table in a SQLite file. It is all that a Go application needs to
// enqueue, works with any SQLite driver of database/sql, and depends on the standard library only.
package sqliteoutbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

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

// maxRows keeps a statement at 5 variables a row below the 999 that every SQLite accepts.
const maxRows = 199

// Insert inserts events into the table inside the caller's transaction. The events exist when, and only when, the
// transaction commits; the caller commits it or rolls it back. Ids rise in the order of events. No events are no error.
//
// Insert reads Topic, Key, Payload, Headers and AvailableAt; the database sets ID and CreatedAt. It names column available_at, in which a time
// is rounded up to milliseconds, only if an event is delayed. It keeps no reference to events after it has returned.
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
		if err := events[i].Validate(!t.Bytes); err != nil {
			if len(events) == 1 {
				return err
			}
			return fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		}
	}
	for len(events) > 0 {
		n := min(maxRows, len(events))
		statement, args := t.statement(events[:n])
		if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
			return fmt.Errorf("inserting into %s: %w", t.Name, err)
		}
		events = events[n:]
	}
	return nil
}

// statement is INSERT ... VALUES (?, ?, ?, ?), .... A fifth parameter of each event delays it.
func (t Table) statement(events []outbox.Event) (statement string, args []any) {
	columns, row := "topic, key, payload, headers", "(?, ?, ?, ?)"
	delays := slices.ContainsFunc(events, func(e outbox.Event) bool { return !e.AvailableAt.IsZero() })
	if delays {
		columns, row = columns+", available_at", "(?, ?, ?, ?, ?)"
	}
	args = make([]any, 0, 5*len(events))
	for i := range events {
		e := &events[i]
		args = append(args, e.Topic, e.Key, t.payload(e), headers(e))
		if delays {
			args = append(args, availableAt(e))
		}
	}
	return "INSERT INTO " + sqlname.Quote(t.Name) + " (" + columns + ") VALUES " + row + strings.Repeat(", "+row, len(events)-1), args
}

// availableAt is the time in the form of the column, not before that of the event; nil for none.
func availableAt(e *outbox.Event) any {
	if e.AvailableAt.IsZero() {
		return nil
	}
	at := e.AvailableAt.UTC().Add(time.Millisecond - 1)
	if at.Year() < 0 { // SQLite has no such time, and it has passed
		at = time.Time{}
	}
	return at.Format("2006-01-02T15:04:05.000Z")
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
