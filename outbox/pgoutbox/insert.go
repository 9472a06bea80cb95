// Package pgoutbox inserts events into the relay's table on PostgreSQL. It is all that a Go application needs to
// enqueue, and depends on pgx and the standard library only; the relay itself is not part of the build.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		// ... the application's own changes, in the same transaction
//		return pgoutbox.Insert(ctx, tx, outbox.Event{Topic: "orders.created", Payload: payload})
//	})
package pgoutbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/internal/sqlname"
)

const defaultTable = "outbox_events"

// Table is a buffer table to insert into. The zero Table is outbox_events with payloads of JSON. A Table is a value
// without state: it may be copied and used concurrently.
type Table struct {
	// Name is the table, "outbox_events" when empty. It may be "schema.table", and each part may be in double quotes.
	// Without a schema, the search path of the transaction decides.
	Name string
	// Bytes reports whether payload is a column of opaque bytes (bytea). False means JSON, in a column json or jsonb.
	Bytes bool
}

// Insert inserts events into outbox_events inside the caller's transaction. See [Table.Insert].
func Insert(ctx context.Context, tx pgx.Tx, events ...outbox.Event) error {
	return Table{}.Insert(ctx, tx, events...)
}

// InsertSQL inserts events into outbox_events inside a transaction of database/sql, with any PostgreSQL driver. See
// [Table.Insert].
func InsertSQL(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return Table{}.InsertSQL(ctx, tx, events...)
}

// Insert inserts events into the table inside the caller's transaction, in one round trip for each 10,000 events. The
// events exist when, and only when, the transaction commits; the caller commits it or rolls it back. Ids rise in the
// order of events. No events are no error.
//
// Insert reads Topic, Key, Payload, Headers and AvailableAt; the database sets ID and CreatedAt. It names column available_at only if an
// event is delayed. It keeps no reference to events
// after it has returned.
//
// All events are validated before the first is inserted. If errors.Is finds [outbox.ErrInvalidEvent], the error names
// the first event that is invalid with all of its mistakes, nothing was inserted, and the transaction can continue. After
// any other error PostgreSQL has aborted the transaction: roll it back. errors.As finds the driver's error (*pgconn.PgError
// with pgx).
//
// The role needs INSERT on the table and nothing else.
func (t Table) Insert(ctx context.Context, tx pgx.Tx, events ...outbox.Event) error {
	return t.insert(events, func(statement string, args []any) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	})
}

// InsertSQL is [Table.Insert] for a transaction of database/sql, with any PostgreSQL driver.
func (t Table) InsertSQL(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return t.insert(events, func(statement string, args []any) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
}

// insertAtOnce keeps a statement below PostgreSQL's 65,535 parameters.
const insertAtOnce = 10_000

func (t Table) insert(events []outbox.Event, exec func(statement string, args []any) error) error {
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
		n := min(len(events), insertAtOnce)
		statement, args := t.statement(events[:n])
		if err := exec(statement, args); err != nil {
			return fmt.Errorf("inserting into %s: %w", t.Name, explain(err))
		}
		events = events[n:]
	}
	return nil
}

// statement is INSERT ... VALUES ($1, $2, $3, $4), ...: plain text parameters,
// which every driver and protocol mode passes on alike. A fifth one of each event delays it.
func (t Table) statement(events []outbox.Event) (string, []any) {
	var sql strings.Builder
	columns, list := 4, "topic, key, payload, headers"
	if slices.ContainsFunc(events, func(e outbox.Event) bool { return !e.AvailableAt.IsZero() }) {
		columns, list = 5, list+", available_at"
	}
	args := make([]any, 0, columns*len(events))
	sql.WriteString("INSERT INTO " + quote(t.Name) + " (" + list + ") VALUES ")
	for i := range events {
		e := &events[i]
		if i > 0 {
			sql.WriteString(", ")
		}
		sql.WriteByte('(')
		for j := range columns {
			if j > 0 {
				sql.WriteString(", ")
			}
			sql.WriteByte('$')
			sql.WriteString(strconv.Itoa(len(args) + 1 + j))
		}
		sql.WriteByte(')')
		var payload any = string(e.Payload)
		if t.Bytes {
			payload = e.Payload
		}
		args = append(args, e.Topic, e.Key, payload, optional(e.Headers))
		if columns == 5 {
			args = append(args, availableAt(e))
		}
	}
	return sql.String(), args
}

func quote(table string) string {
	schema, name, _ := sqlname.Split(table) // what is no name is one part: the server says that it does not exist
	if schema == "" {
		return sqlname.Quote(name)
	}
	return sqlname.Quote(schema) + "." + sqlname.Quote(name)
}

// availableAt is the time with its zone, in a form that every driver passes on as it is; nil for none.
func availableAt(e *outbox.Event) *string {
	if e.AvailableAt.IsZero() {
		return nil
	}
	text := e.AvailableAt.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
	return &text
}

func optional(h outbox.Headers) *string {
	if h == nil {
		return nil
	}
	text := string(h)
	return &text
}

// explain adds how to fix a missing table or privilege. Other drivers than pgx have SQLState too.
func explain(err error) error {
	var server interface{ SQLState() string }
	if !errors.As(err, &server) {
		return err
	}
	switch server.SQLState() {
	case "42P01", "42703": // no such table or column
		return fmt.Errorf("%w (create the relay's tables: relay migrate -c relay.yaml)", err)
	case "42501":
		return fmt.Errorf("%w (the application's role needs GRANT INSERT on the table)", err)
	}
	return err
}
