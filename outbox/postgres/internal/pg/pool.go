package pg

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool is the connections to one database with one URL, which several buffers may use. Its methods are safe for
// concurrent use.
type Pool struct {
	config *pgxpool.Config
	// preparedDisabled: statements cannot be prepared, although the connection seems to support it.
	preparedDisabled atomic.Bool
	linux            atomic.Bool

	mu    sync.Mutex
	users int
	pool  *pgxpool.Pool // nil without users
}

// NewPool prepares a pool of at most that many connections; it does not connect. The error is
// about the URL, and holds no password.
func NewPool(url string, connections int) (*Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, withoutURL(err)
	}
	harden(config.ConnConfig)
	config.MaxConns = int32(min(connections, 1<<16)) //nolint:gosec // bounded
	config.MinConns = 0
	config.MaxConnIdleTime = time.Minute // checks at the start, and bursts, open several times as many as a quiet relay uses
	p := &Pool{config: config}
	config.AfterConnect = p.begin
	return p, nil
}

// Use returns a user of the pool that has at most that many connections at a time. The pool is closed with its last user.
func (p *Pool) Use(connections int) (*DB, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		pool, err := pgxpool.NewWithConfig(context.Background(), p.config.Copy())
		if err != nil {
			return nil, err
		}
		p.pool = pool
	}
	p.users++
	db := &DB{Pool: p, StatementTimeout: ShortTimeout, pool: p.pool, slots: make(chan struct{}, connections)}
	db.close = sync.OnceFunc(db.leave)
	return db, nil
}

// leave closes the pool if its last user leaves.
func (p *Pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 {
		p.pool.Close()
	}
}

// ServerRunsLinux records whether the server's system has tcp_user_timeout. Another one
// would write a complaint to its log for each transaction that sets it.
func (p *Pool) ServerRunsLinux(yes bool) { p.linux.Store(yes) }

// UserTimeout is the value for tcp_user_timeout, in milliseconds.
func (p *Pool) UserTimeout() string {
	if p.linux.Load() {
		return "30000"
	}
	return "0"
}
