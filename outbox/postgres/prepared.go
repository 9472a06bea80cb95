package postgres

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Statements that are run for each batch are prepared, once a connection: to plan them
// anew takes PostgreSQL a sixth of what it does for a batch. They are written so that
// there is one plan for all parameters, along the primary key, and force_generic_plan,
// which stands among their settings, keeps the planner from looking for another.
//
// Behind a transaction pooler nothing can be prepared, and a statement is planned each
// time: it costs that time and nothing else.

// statements are the names of what was prepared on a connection, by their SQL.
type statements map[string]string

const statementsKey = "relay statements"

// remember makes a new connection remember what is prepared, if it is the server's own.
func (b *Buffer) remember(ctx context.Context, conn *pgx.Conn) error {
	if b.unprepared.Load() {
		return nil
	}
	pooled, err := throughPooler(ctx, conn)
	if err != nil || pooled {
		return err
	}
	conn.PgConn().CustomData()[statementsKey] = statements{}
	return nil
}

// prepared is the name of the statement on this connection; "": it has none here.
func (b *Buffer) prepared(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	known, ok := conn.CustomData()[statementsKey].(statements)
	if !ok {
		return "", nil
	}
	name, ok := known[sql]
	if !ok {
		name = "relay_" + strconv.Itoa(len(known))
		if err := b.prepare(ctx, conn, name, sql); err != nil {
			return "", err
		}
		known[sql] = name
	}
	return name, nil
}

// prepare has a transaction of its own: to prepare is to wait for the tables' locks, and
// that must be bounded at the server too.
func (b *Buffer) prepare(ctx context.Context, conn *pgconn.PgConn, name, sql string) error {
	begin := "BEGIN; SET LOCAL statement_timeout = " + milliseconds(b.patience) + "; SET LOCAL lock_timeout = " + milliseconds(b.patience*2/3)
	if _, err := conn.Exec(ctx, begin).ReadAll(); err != nil {
		return err
	}
	_, err := conn.Prepare(ctx, name, sql, nil)
	end := "COMMIT"
	if err != nil {
		end = "ROLLBACK"
	}
	_, endErr := conn.Exec(ctx, end).ReadAll()
	return errors.Join(err, endErr)
}
