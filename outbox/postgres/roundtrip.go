package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// step is one statement of a round trip.
type step struct {
	sql  string
	args []string
	// row is called for each row; the values are in binary form and die with
	// the call. nil: rows are passed over.
	row func(values [][]byte) error
	// affected receives the number of rows the statement touched.
	affected *int64
	// often: it is run for each batch, and its plan is the same whatever its
	// parameters; see prepared.
	often bool
	// foreign: it is not ours, and may return what it likes: its only parameter is a
	// uuid, its values come as texts, and foreign hears first which columns there are.
	foreign func([]pgconn.FieldDescription)
}

// transact runs the steps in one transaction and one round trip: READ COMMITTED
// whatever the database's default. An error leaves nothing behind, except
// that a connection lost at the COMMIT leaves it open whether it happened.
//
// The victim of a deadlock was rolled back for certain, so all of it is run again
// at once: a first step that has a row function finds there what to forget.
func (b *Buffer) transact(ctx context.Context, steps ...step) error {
	return b.rerun(ctx, steps, codeDeadlock, codeSerialization)
}

// reruns is how often a transaction is run again that ends with one of the codes.
const reruns = 3

func (b *Buffer) rerun(ctx context.Context, steps []step, codes ...string) error {
	all := make([]step, 0, len(steps)+2)
	all = append(all, step{sql: "BEGIN ISOLATION LEVEL READ COMMITTED"})
	all = append(all, steps...)
	all = append(all, step{sql: "COMMIT"})
	for n := 0; ; n++ {
		err := b.roundTrip(ctx, all)
		if err == nil || n == reruns || !slices.Contains(codes, code(err)) {
			return err
		}
	}
}

// roundTrip pipelines the steps behind one Sync.
func (b *Buffer) roundTrip(ctx context.Context, steps []step) error {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// A connection that is broken, or still in a transaction, is thrown away
	// by Release.
	defer conn.Release()

	batch := &pgconn.Batch{}
	for _, s := range steps {
		values := make([][]byte, len(s.args))
		for i, a := range s.args {
			if a != null {
				values[i] = []byte(a)
			}
		}
		name := ""
		if s.often {
			if name, err = b.prepared(ctx, conn.Conn().PgConn(), s.sql); err != nil {
				return err
			}
		}
		switch {
		case s.foreign != nil:
			batch.ExecParams(s.sql, values, []uint32{oidUUID}, nil, nil)
		case name != "":
			batch.ExecPrepared(name, values, nil, []int16{1})
		default:
			batch.ExecParams(s.sql, values, nil, nil, []int16{1})
		}
	}
	results := conn.Conn().PgConn().ExecBatch(ctx, batch)
	err = read(results, steps)
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	switch code(err) {
	case codeReadOnly:
		// A failover has left us on what is a standby now: connect afresh.
		b.pool.Reset()
	case codeNoStatement, codeStatementThere:
		b.unprepared.Store(true) // somebody hands the server's sessions around after all
		b.pool.Reset()
	case codeOtherResult: // a column's type has changed: to be prepared anew
		b.pool.Reset()
	}
	return err
}

func read(results *pgconn.MultiResultReader, steps []step) error {
	for _, s := range steps {
		if !results.NextResult() {
			return results.Close()
		}
		reader := results.ResultReader()
		if s.foreign != nil {
			s.foreign(reader.FieldDescriptions())
		}
		for reader.NextRow() {
			if s.row == nil {
				continue
			}
			if err := s.row(reader.Values()); err != nil {
				return err
			}
		}
		tag, err := reader.Close()
		if err != nil {
			return err
		}
		if s.affected != nil {
			*s.affected = tag.RowsAffected()
		}
	}
	return nil
}

// Codes of https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	codeReadOnly       = "25006"
	codeNoStatement    = "26000"
	codeStatementThere = "42P05"
	codeOtherResult    = "0A000"
	codeCancelled      = "57014"
	codeLockTimeout    = "55P03"
	codeDeadlock       = "40P01"
	codeSerialization  = "40001"
	codeNoPrivilege    = "42501"
	codeNoTable        = "42P01"
	codeNoColumn       = "42703"
	codeNoSchema       = "3F000"
	codeNoObject       = "42704"
	codeNoDatabase     = "3D000"
	codeBadAuth        = "28P01"
	codeBadAuthMethod  = "28000"
)

func code(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// null stands for NULL among the arguments, which are texts.
const null = "\x00"

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// interval is d as PostgreSQL reads it.
func interval(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}

func idArray(ids []int64) string {
	text := make([]byte, 0, 2+len(ids)*8)
	text = append(text, '{')
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, id, 10)
	}
	return string(append(text, '}'))
}

func uuidArray(ids []uuid.UUID) string {
	var text strings.Builder
	text.WriteByte('{')
	for i, id := range ids {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(id.String())
	}
	text.WriteByte('}')
	return text.String()
}

// What comes back is in PostgreSQL's binary form, big-endian.

func int8Of(v []byte) int64 {
	if len(v) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v)) //nolint:gosec // two's complement on the wire
}

func int4Of(v []byte) int {
	if len(v) != 4 {
		return 0
	}
	return int(int32(binary.BigEndian.Uint32(v))) //nolint:gosec // two's complement on the wire
}

// epoch2000 is where timestamptz counts from, in Unix microseconds.
const epoch2000 = 946684800000000

func timeOf(v []byte) time.Time { return time.UnixMicro(int8Of(v) + epoch2000).UTC() }

// arrayOf calls each with the elements of a one-dimensional array without NULLs.
func arrayOf(v []byte, each func([]byte)) {
	if len(v) < 20 { // no dimension: empty
		return
	}
	v = v[20:]
	for len(v) >= 4 {
		n := int(binary.BigEndian.Uint32(v))
		v = v[4:]
		if n > len(v) {
			return
		}
		each(v[:n])
		v = v[n:]
	}
}
