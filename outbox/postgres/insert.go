package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Table is a buffer table to insert into. The zero Table is outbox_events with
// payloads of JSON.
type Table struct {
	// Name is the table, "outbox_events" when empty; it may be "schema.table".
	Name string
	// Bytes: payload is a column of opaque bytes (bytea).
	Bytes bool
}

// Insert puts events into outbox_events inside the caller's transaction, in one
// round trip; they exist when, and only when, the transaction commits. Ids rise
// in the order of events. Every event is validated first
// (errors.Is(err, outbox.ErrInvalidEvent): one is invalid, and none was inserted). The caller commits or rolls back.
func Insert(ctx context.Context, tx pgx.Tx, events ...outbox.Event) error {
	return Table{}.Insert(ctx, tx, events...)
}

// InsertSQL is Insert for a transaction of database/sql, with any PostgreSQL
// driver.
func InsertSQL(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return Table{}.InsertSQL(ctx, tx, events...)
}

// Insert is the package's Insert for this table.
func (t Table) Insert(ctx context.Context, tx pgx.Tx, events ...outbox.Event) error {
	return t.insert(events, func(statement string, args []any) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	})
}

// InsertSQL is the package's InsertSQL for this table.
func (t Table) InsertSQL(ctx context.Context, tx *sql.Tx, events ...outbox.Event) error {
	return t.insert(events, func(statement string, args []any) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	})
}

// insertAtOnce keeps a statement below PostgreSQL's 65,535 parameters.
const insertAtOnce = 10_000

func (t Table) insert(events []outbox.Event, exec func(statement string, args []any) error) error {
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
			return fmt.Errorf("inserting %d events into %s: %w", n, pg.Ident(pg.SplitTable(t.Name)), explainInsert(err))
		}
		events = events[n:]
	}
	return nil
}

// statement is INSERT ... VALUES ($1, $2, $3, $4), ...: plain text parameters,
// which every driver and protocol mode passes on alike.
func (t Table) statement(events []outbox.Event) (string, []any) {
	var sql strings.Builder
	args := make([]any, 0, 4*len(events))
	sql.WriteString("INSERT INTO " + pg.Ident(pg.SplitTable(t.Name)) + " (topic, key, payload, headers) VALUES ")
	for i := range events {
		e := &events[i]
		if i > 0 {
			sql.WriteString(", ")
		}
		sql.WriteByte('(')
		for j := range 4 {
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
	}
	return sql.String(), args
}

func optional(h outbox.Headers) *string {
	if h == nil {
		return nil
	}
	text := string(h)
	return &text
}

// explainInsert adds how to fix a missing table or privilege.
func explainInsert(err error) error {
	switch pg.Code(err) {
	case pg.CodeNoTable, pg.CodeNoColumn:
		return fmt.Errorf("%w (create the relay's tables: relay migrate -c relay.yaml)", err)
	case pg.CodeNoPrivilege:
		return fmt.Errorf("%w (the application's role needs GRANT INSERT on the table)", err)
	}
	return err
}
