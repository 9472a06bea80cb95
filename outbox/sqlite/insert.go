package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/outboxrelay/relay/outbox"
)

// Table is a buffer table to insert into. The zero Table is "outbox_events"
// with payloads of JSON. It may be used by several goroutines at once.
type Table struct {
	// Name is "outbox_events" when empty.
	Name string
	// Bytes: payload is a column of opaque bytes and not of JSON.
	Bytes bool
}

// Insert puts events into the table outbox_events, in the transaction tx of the
// caller's: they are sent once it has committed, and never when it rolls back.
// Topic and Payload are required, the payload is JSON. See [Table.Insert].
func Insert(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return Table{}.Insert(ctx, tx, events...)
}

// valuesSQL is one event of an INSERT.
const (
	insertSQL = `INSERT INTO outbox_events (topic, key, payload, headers) VALUES `
	valuesSQL = `(?, ?, ?, ?)`
)

// chunk keeps a statement below the 999 variables that every SQLite takes.
const chunk = 200

// Insert puts events into the table in the transaction tx of the caller's. ID
// and CreatedAt of the events are ignored: the database gives them.
//
// It looks at all events before it inserts the first. An error that
// errors.Is(err, outbox.ErrInvalidEvent) says which is wrong, and nothing was
// inserted; the transaction can go on. After any other error it must be rolled
// back.
func (t Table) Insert(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	if t.Name == "" {
		t.Name = defaultTable
	}
	for i := range events {
		if err := events[i].Validate(!t.Bytes); err != nil {
			return fmt.Errorf("event %d of %d: %w", i+1, len(events), err)
		}
	}
	into := names(t.Name, "").Replace(insertSQL)
	for len(events) > 0 {
		n := min(chunk, len(events))
		args := make([]any, 0, 4*n)
		for i := range events[:n] {
			e := &events[i]
			args = append(args, e.Topic, e.Key, t.payload(e), headers(e))
		}
		statement := into + strings.Repeat(valuesSQL+", ", n-1) + valuesSQL
		if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
			return fmt.Errorf("inserting events into %s: %w", t.Name, err)
		}
		events = events[n:]
	}
	return nil
}

// payload is text where it is JSON: SQLite keeps bytes and text apart.
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
