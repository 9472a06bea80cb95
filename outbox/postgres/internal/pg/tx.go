package pg

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// Step is one statement of a round trip.
type Step struct {
	SQL  string
	Args []string
	// Settings (name, value, name, value, ...) of the transaction, instead of SQL; not nil. It is the first step after the
	// transaction began. Where the session has them already nothing is sent, and Row is called with nil.
	Settings []string
	// Row is called for each row. The values are in binary form and valid during the call
	// only. nil: rows are ignored. If it fails the connection is closed, because the rest of the
	// result may be large.
	Row func(values [][]byte) error
	// Affected receives the number of rows that the statement affected.
	Affected *int64
	// Prepare: the statement runs for each batch, and has one plan for all parameters.
	Prepare bool
	// UserSQL marks a statement of the user's, which may return any columns: its only
	// parameter is a uuid, and its values come as texts.
	UserSQL bool
	// Columns is called with the columns of the result, before the rows.
	Columns func([]pgconn.FieldDescription)
}

// Transact runs the steps in one READ COMMITTED transaction and one round trip. The
// database's default isolation level does not matter. An error leaves nothing behind, except that a
// connection lost at the COMMIT leaves open whether it happened.
//
// After a deadlock or a serialization failure the server has rolled everything back, so
// Transact runs all steps again at once: a first step with a Row function resets there
// what earlier rows left.
func (db *DB) Transact(ctx context.Context, steps ...Step) error {
	return db.RetryTx(ctx, steps, CodeDeadlock, CodeSerialization)
}

// MaxRetries is how often a transaction runs again that fails with a code that is retried.
const MaxRetries = 3

// RetryTx is Transact, which retries after the given codes only.
func (db *DB) RetryTx(ctx context.Context, steps []Step, codes ...string) error {
	all := make([]Step, 0, len(steps)+2)
	all = append(all, Begin)
	all = append(all, steps...)
	all = append(all, Commit)
	for n := 0; ; n++ {
		err := db.RoundTrip(ctx, all)
		if err == nil || n == MaxRetries || !slices.Contains(codes, Code(err)) {
			return err
		}
	}
}

// Begin and Commit end one transaction of a round trip and begin the next.
var (
	Begin  = Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"}
	Commit = Step{SQL: "COMMIT"}
)

// ErrPrepared says that a statement of the user's has prepared others.
var ErrPrepared = errors.New("source.project calls a function that prepares statements (PREPARE), which could replace those of the relay; expected one that only reads")

// leftByUser refuses a connection on which a statement of the user's has prepared others, and gives its locks back. No rollback does that.
// Prepared statements could have the names of the relay's, which would run them in the place of its own. It is not prepared itself; those of the
// relay are not from SQL. Behind a pooler the relay prepares nothing, and statements are those of other clients.
var leftByUser = Step{
	SQL: "SELECT pg_catalog.pg_advisory_unlock_all(), (SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql LIMIT 1)",
	Row: func(v [][]byte) error {
		if v[1] != nil {
			return ErrPrepared
		}
		return nil
	},
}

// RoundTrip pipelines the steps behind one Sync.
func (db *DB) RoundTrip(ctx context.Context, steps []Step) error {
	conn, release, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer release()

	batch := &pgconn.Batch{}
	session := sessionOf(conn.Conn().PgConn())
	steps = slices.Clone(steps)
	if session != nil && slices.ContainsFunc(steps, func(s Step) bool { return s.UserSQL }) {
		steps = append(steps, leftByUser)
	}
	for i := range steps {
		s := &steps[i]
		if s.Settings != nil {
			set, any := session.settingsStep(*s)
			if *s = set; !any {
				s.SQL = ""
				continue
			}
		}
		values := make([][]byte, len(s.Args))
		for i, a := range s.Args {
			if a != Null {
				values[i] = []byte(a)
			}
		}
		name := ""
		if s.Prepare {
			if name, err = db.prepared(ctx, conn.Conn().PgConn(), s.SQL); err != nil {
				return err
			}
		}
		switch {
		case s.UserSQL:
			batch.ExecParams(s.SQL, values, []uint32{OIDUUID}, nil, nil)
		case name != "":
			batch.ExecPrepared(name, values, nil, []int16{1})
		default:
			batch.ExecParams(s.SQL, values, nil, nil, []int16{1})
		}
	}
	results := conn.Conn().PgConn().ExecBatch(ctx, batch)
	err = read(results, steps)
	refused := errors.Is(err, errRow)
	if refused { // before results.Close, which would read the rest
		conn.Conn().PgConn().Conn().Close() //nolint:gosec // nothing more is read from it
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if refused {
		conn.Conn().Close(ctx) //nolint:gosec // it is closed already, and must not be used again
	}
	switch Code(err) {
	case CodeReadOnly:
		// After a failover this connection leads to a standby: connect anew.
		db.pool.Reset()
	case CodeNoStatement, CodeDuplicateStatement:
		// Something between the relay and the server reassigns sessions.
		db.preparedDisabled.Store(true)
		db.pool.Reset()
	case CodeResultChanged: // a column's type has changed: prepare anew
		db.pool.Reset()
	}
	return err
}

// rowError is the error of a Row function.
type rowError struct{ error }

var errRow = errors.New("a row was refused")

func (e rowError) Unwrap() error        { return e.error }
func (e rowError) Is(target error) bool { return target == errRow }

func read(results *pgconn.MultiResultReader, steps []Step) error {
	for _, s := range steps {
		if s.SQL == "" { // the session has the settings
			if s.Row != nil {
				if err := s.Row(nil); err != nil {
					return rowError{err}
				}
			}
			continue
		}
		if !results.NextResult() {
			return results.Close()
		}
		reader := results.ResultReader()
		if s.Columns != nil {
			s.Columns(reader.FieldDescriptions())
		}
		for reader.NextRow() {
			if s.Row == nil {
				continue
			}
			if err := s.Row(reader.Values()); err != nil {
				return rowError{err}
			}
		}
		tag, err := reader.Close()
		if err != nil {
			return err
		}
		if s.Affected != nil {
			*s.Affected = tag.RowsAffected()
		}
	}
	return nil
}
