package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a pool of connections to one database. Its methods are safe for concurrent use.
type DB struct {
	pool *pgxpool.Pool
	// StatementTimeout bounds each short statement; ShortTimeout unless a test sets it
	// before the first statement.
	StatementTimeout time.Duration
	// preparedDisabled: statements cannot be prepared, although the connection seems to support it.
	preparedDisabled atomic.Bool
	linux            atomic.Bool
}

// Open prepares a pool of at most that many connections; it does not connect. The error is
// about the URL, and holds no password.
func Open(url string, connections int) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, withoutURL(err)
	}
	harden(config.ConnConfig)
	config.MaxConns = int32(min(connections, 1<<16)) //nolint:gosec // bounded
	config.MinConns = 0
	config.MaxConnIdleTime = 5 * time.Minute
	db := &DB{StatementTimeout: ShortTimeout}
	config.AfterConnect = db.detectPooler
	db.pool, err = pgxpool.NewWithConfig(context.Background(), config)
	return db, err
}

// Close closes the connections; it waits for calls under way.
func (db *DB) Close() { db.pool.Close() }

// Acquire takes a connection out of the pool, for what no Step can do.
func (db *DB) Acquire(ctx context.Context) (*pgxpool.Conn, error) { return db.pool.Acquire(ctx) }

// ServerRunsLinux records whether the server's system has tcp_user_timeout. Another one
// would write a complaint to its log for each transaction that sets it.
func (db *DB) ServerRunsLinux(yes bool) { db.linux.Store(yes) }

// UserTimeout is the value for tcp_user_timeout, in milliseconds.
func (db *DB) UserTimeout() string {
	if db.linux.Load() {
		return "30000"
	}
	return "0"
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
}
