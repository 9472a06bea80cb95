package pg

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Statements that run for each batch are prepared, once a connection: planning them anew
// takes PostgreSQL a sixth of what it does for a batch. They are written so that one plan,
// along the primary key, serves all parameters, and force_generic_plan, which stands among
// their settings, keeps the planner from looking for another.
//
// Behind a transaction pooler nothing can be prepared, and a statement is planned each time.

// statements are the names of what was prepared on a connection, by their SQL.
type statements map[string]string

const statementsKey = "relay statements"

// detectPooler lets a new connection prepare statements if it leads to the server itself.
func (db *DB) detectPooler(ctx context.Context, conn *pgx.Conn) error {
	if db.preparedDisabled.Load() {
		return nil
	}
	pooled, err := ThroughPooler(ctx, conn)
	if err != nil || pooled {
		return err
	}
	conn.PgConn().CustomData()[statementsKey] = statements{}
	return nil
}

const backendSQL = `SELECT pg_catalog.pg_backend_pid()`

// ThroughPooler reports whether a pooler stands between the connection and the server. A
// pooler makes up the process id that it sends on connecting; the server's own is that of
// the process that runs the statement.
func ThroughPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, backendSQL).Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// prepared returns the statement's name on this connection, "" where none can have one.
func (db *DB) prepared(ctx context.Context, conn *pgconn.PgConn, sql string) (string, error) {
	known, ok := conn.CustomData()[statementsKey].(statements)
	if !ok {
		return "", nil
	}
	name, ok := known[sql]
	if !ok {
		name = "relay_" + strconv.Itoa(len(known))
		if err := db.prepare(ctx, conn, name, sql); err != nil {
			return "", err
		}
		known[sql] = name
	}
	return name, nil
}

// prepare uses a transaction of its own: preparing waits for the tables' locks, and the
// server must bound that too.
func (db *DB) prepare(ctx context.Context, conn *pgconn.PgConn, name, sql string) error {
	begin := "BEGIN; SET LOCAL statement_timeout = " + Milliseconds(db.StatementTimeout) +
		"; SET LOCAL lock_timeout = " + Milliseconds(db.StatementTimeout*2/3) + "; SET LOCAL search_path = " + SearchPath
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
