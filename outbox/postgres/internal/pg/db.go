package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is one user of a pool of connections to a database. Its methods are safe for concurrent use.
type DB struct {
	*Pool
	// StatementTimeout bounds each short statement; ShortTimeout unless a test sets it
	// before the first statement.
	StatementTimeout time.Duration

	pool *pgxpool.Pool
	// slots holds a value for each connection that this user has: it must not take those of the others.
	slots chan struct{}
	close func()
	// lacks is set by the first connection if the encoding of the database lacks most characters.
	lacks atomic.Bool
}

// Text is [Text] for what the relay or a sink says, which did not come from the database. If the encoding of the database is neither UTF8 nor
// SQL_ASCII, an escape as in JSON stands for each character beyond ASCII: the database would refuse the whole statement for one that it lacks.
func (db *DB) Text(s string) string {
	s = Text(s)
	if !db.lacks.Load() {
		return s
	}
	var ascii strings.Builder
	for _, r := range s {
		switch {
		case r < utf8.RuneSelf:
			ascii.WriteRune(r)
		case r == utf8.RuneError:
			ascii.WriteByte('?')
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	return ascii.String()
}

// OptionalText is Text; nil is NULL.
func (db *DB) OptionalText(s *string) string {
	if s == nil {
		return Null
	}
	return db.Text(*s)
}

// Close ends the use of the pool; it waits for calls under way. The last user's Close closes the connections.
func (db *DB) Close() { db.close() }

func (db *DB) leave() {
	for range cap(db.slots) {
		db.slots <- struct{}{}
	}
	db.Pool.leave()
	for range cap(db.slots) { // a call from now on fails if the pool is closed
		<-db.slots
	}
}

// Acquire takes a connection out of the pool, for what no Step can do. release puts it back.
func (db *DB) Acquire(ctx context.Context) (conn *pgxpool.Conn, release func(), err error) {
	select {
	case db.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	conn, err = db.pool.Acquire(ctx)
	if err != nil {
		<-db.slots
		return nil, nil, err
	}
	encoding := conn.Conn().PgConn().ParameterStatus("server_encoding")
	db.lacks.Store(encoding != "UTF8" && encoding != "SQL_ASCII" && encoding != "")
	return conn, func() { // closes a connection that is broken, or still in a transaction
		conn.Release()
		<-db.slots
	}, nil
}

// ConnConfig parses a URL for a connection outside the pool. Pool settings in the URL are
// accepted and ignored.
func ConnConfig(url string) (*pgx.ConnConfig, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, withoutURL(err)
	}
	harden(c.ConnConfig)
	return c.ConnConfig, nil
}

// withoutURL removes the URL from a parse error: it can hold more secrets than a password.
func withoutURL(err error) error {
	if parseErr, ok := errors.AsType[*pgconn.ParseConfigError](err); ok && errors.Unwrap(parseErr) != nil {
		return fmt.Errorf("source.url cannot be parsed: %w", errors.Unwrap(parseErr))
	}
	return err
}

// keepAlive detects within half a minute that the server's machine is gone, while nothing
// is being sent to it.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// harden prepares a connection for a transaction pooler (pgx itself prepares nothing) and
// for a network that drops packets (a bounded dial, and probes).
func harden(c *pgx.ConnConfig) {
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	c.StatementCacheCapacity = 0
	c.DescriptionCacheCapacity = 0
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 10 * time.Second
	}
	c.DialFunc = (&net.Dialer{Timeout: c.ConnectTimeout, KeepAliveConfig: keepAlive}).DialContext
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "relay"
	}
	c.RuntimeParams["client_encoding"] = "UTF8" // otherwise texts arrive in the encoding of the database, or of the role
	c.AfterConnect = keepBytes
}

// keepBytes lets a database with SQL_ASCII, which does not know the encoding of its texts, send their bytes as they are. It refuses
// to send any that are not UTF-8 otherwise.
func keepBytes(ctx context.Context, conn *pgconn.PgConn) error {
	if conn.ParameterStatus("server_encoding") != "SQL_ASCII" {
		return nil
	}
	_, err := conn.Exec(ctx, "SET client_encoding = SQL_ASCII").ReadAll()
	return err
}
