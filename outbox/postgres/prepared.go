package postgres

import (
	"context"
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
	if err == nil && !pooled {
		conn.PgConn().CustomData()[statementsKey] = statements{}
	}
	return err
}

// prepared is the name of the statement on this connection; "": it has none here.
func prepared(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	known, ok := conn.CustomData()[statementsKey].(statements)
	if !ok {
		return "", nil
	}
	name, ok := known[sql]
	if !ok {
		name = "relay_" + strconv.Itoa(len(known))
		if _, err := conn.Prepare(ctx, name, sql, nil); err != nil {
			return "", err
		}
		known[sql] = name
	}
	return name, nil
}
