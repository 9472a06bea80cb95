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

// statements is what was prepared on a connection, by its SQL.
type statements struct {
	known map[string]*statement
	used  int // counts uses
	named int // counts names
}

type statement struct {
	name string
	used int // the last use
}

// maxStatements bounds the statements of a connection, because their plans stay in the memory of its backend. Those of
// a pipeline are about ten; the names of its tables are part of them.
const maxStatements = 200

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
	session := sessionOf(conn)
	if session == nil {
		return "", nil
	}
	all := &session.statements
	all.used++
	if s, ok := all.known[sql]; ok {
		s.used = all.used
		return s.name, nil
	}
	if len(all.known) >= maxStatements {
		if err := all.forget(ctx, conn); err != nil {
			return "", err
		}
	}
	name := "relay_" + strconv.Itoa(all.named)
	all.named++
	if err := db.prepare(ctx, conn, name, sql); err != nil {
		return "", err
	}
	all.known[sql] = &statement{name, all.used}
	return name, nil
}

// forget deallocates the statement that has not been used for the longest time.
func (all *statements) forget(ctx context.Context, conn *pgconn.PgConn) error {
	var oldest string
	for sql, s := range all.known {
		if oldest == "" || s.used < all.known[oldest].used {
			oldest = sql
		}
	}
	name := all.known[oldest].name
	delete(all.known, oldest)
	return conn.Deallocate(ctx, name)
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
