package pg

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A session keeps the settings of BatchTx if no pooler lends it to others: to set them costs a transaction about a few
// events a quarter of its time. Other transactions set what is different until they end, so each has the same settings with
// and without a pooler.

// session is what a connection without a pooler keeps.
type session struct {
	statements
	keeps map[string]string // settings
	own   []string          // names and values of those that a transaction sets back unless it names them
}

const sessionKey = "relay session"

// sessionOf returns nil behind a pooler.
func sessionOf(conn *pgconn.PgConn) *session {
	s, _ := conn.CustomData()[sessionKey].(*session)
	return s
}

// setBack are the names of session.own, the search path first. Probes of a connection, and what every transaction sets, stay.
var setBack = []string{"search_path", "synchronous_commit", "plan_cache_mode", "enable_seqscan", "enable_bitmapscan", "enable_sort"}

// fence are the settings in which the statements of a settle say what they found.
var fence = []string{"relay.fenced", "", "relay.newest_at", ""}

// SettleTx is BatchTx for a settle: its fence is not set yet. Unlike a claim it may sort what it finds by group_id.
func (db *DB) SettleTx(limit time.Duration, settings ...string) Step {
	return db.BatchTx(limit, append(append(settings, "enable_sort", "on"), fence...)...)
}

// begin sets up a new connection: one that leads to the server itself gets a session.
func (p *Pool) begin(ctx context.Context, conn *pgx.Conn) error {
	if p.preparedDisabled.Load() {
		return nil
	}
	pooled, err := ThroughPooler(ctx, conn)
	if err != nil || pooled {
		return err
	}
	s := &session{statements: statements{known: map[string]*statement{}}, keeps: map[string]string{}}
	var linux bool
	values := make([]string, len(setBack))
	row := []any{&linux}
	read := "SELECT pg_catalog.version() OPERATOR(pg_catalog.~) 'linux'"
	for i, name := range setBack {
		read += ", pg_catalog.current_setting('" + name + "')"
		row = append(row, &values[i])
	}
	if err := conn.QueryRow(ctx, read).Scan(row...); err != nil {
		return err
	}
	p.ServerRunsLinux(linux)
	for i, name := range setBack {
		s.own = append(s.own, name, values[i])
	}
	keeps := (&DB{Pool: p}).BatchTx(ShortTimeout, fence...).Settings
	var set []string
	for pair := range slices.Chunk(keeps, 2) {
		s.keeps[pair[0]] = pair[1]
		set = append(set, "pg_catalog.set_config('"+pair[0]+"', '"+pair[1]+"', false)")
	}
	if _, err := conn.Exec(ctx, "SELECT "+strings.Join(set, ", ")); err != nil {
		return err
	}
	conn.PgConn().CustomData()[sessionKey] = s
	return nil
}

// differing returns the settings that a transaction has to set: those that the session does not keep, and those that it keeps
// but the transaction does not name.
func (s *session) differing(settings []string) (set []string) {
	if s == nil {
		return settings
	}
	want := make(map[string]string, len(settings)/2)
	for pair := range slices.Chunk(settings, 2) {
		want[pair[0]] = pair[1] // the last one counts
	}
	for pair := range slices.Chunk(settings, 2) {
		name := pair[0]
		value, left := want[name]
		if delete(want, name); !left {
			continue // named before
		}
		if kept, keeps := s.keeps[name]; !keeps || kept != value {
			set = append(set, name, value)
		}
	}
	for pair := range slices.Chunk(s.own, 2) {
		if !slices.Contains(settings, pair[0]) && s.keeps[pair[0]] != pair[1] {
			set = append(set, pair...)
		}
	}
	return set
}

// settingsStep is the statement that sets what differs; ok is false if nothing does.
func (s *session) settingsStep(step Step) (set Step, ok bool) {
	settings := s.differing(step.Settings)
	set = SetLocal(settings...)
	set.Row = step.Row
	return set, len(settings) > 0
}

// AsUser runs f in a transaction with the settings of UserTx that can write nothing, which it rolls back.
func (db *DB) AsUser(ctx context.Context, conn *pgconn.PgConn, path string, f func() error) error {
	set, any := sessionOf(conn).settingsStep(db.UserTx(db.StatementTimeout, path))
	if _, err := conn.Exec(ctx, "BEGIN READ ONLY").ReadAll(); err != nil {
		return err
	}
	defer func() { _ = conn.Exec(ctx, "ROLLBACK").Close() }() // if it fails the connection is closed when it is released
	if any {
		values := make([][]byte, len(set.Args))
		for i, a := range set.Args {
			values[i] = []byte(a)
		}
		if _, err := conn.ExecParams(ctx, set.SQL, values, nil, nil, nil).Close(); err != nil {
			return err
		}
	}
	return f()
}
