package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
)

// Follower opens the database that is at a path now. If another one was put there, as by a restore, its connections are
// closed and opened again: SQLite would go on with the old one, which has no name any more. It is safe for concurrent use.
type Follower struct{ place *place }

// NewFollower returns a Follower of a path. It does not touch the file.
func NewFollower(path string) *Follower { return &Follower{placeOf(path)} }

// Check looks which database is at the path. It returns an error if there is none; connections stay with the one that
// they have, which may come back.
func (f *Follower) Check() error {
	_, _, err := f.place.check()
	return err
}

// Generation returns the number of the database that is at the path, as far as is known; 0 before the first Check.
func (f *Follower) Generation() int64 { return f.place.current() }

// Open is the package's Open for the database at the path, with any number of connections, of which so many stay open while
// they are idle. opened, if it is not nil, is called with the generation of each new connection before its first use.
func (f *Follower) Open(mode string, idle int, opened func(generation int64), pragmas ...string) *sql.DB {
	c := &connector{place: f.place, name: dataSource(f.place.path, mode, pragmas...), opened: opened}
	c.pool = sql.OpenDB(c)
	c.pool.SetMaxIdleConns(idle)
	f.place.mu.Lock()
	defer f.place.mu.Unlock()
	f.place.pools[c.pool] = idle
	return c.pool
}

type connector struct {
	place  *place
	name   string
	opened func(generation int64)
	pool   *sql.DB
}

func (c *connector) Driver() driver.Driver { return relayDriver }

// Close implements io.Closer, for a pool that is closed.
func (c *connector) Close() error {
	c.place.mu.Lock()
	defer c.place.mu.Unlock()
	delete(c.place.pools, c.pool)
	return nil
}

// connectTries is how often a connection is opened whose files are replaced meanwhile. They also are if another
// process closes its last connection.
const connectTries = 3

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	for range connectTries {
		before, generation, notFound := c.place.check()
		if err := c.place.wait(ctx); err != nil {
			return nil, fmt.Errorf("waiting until the file that was at %s is closed: %w", c.place.path, err)
		}
		opened, err := c.Driver().Open(c.name)
		if err != nil { // SQLite says what is wrong
			return nil, err
		}
		s, ok := opened.(session)
		switch {
		case !ok:
			err = fmt.Errorf("%T lacks methods of a connection", opened)
		case notFound != nil:
			err = notFound
		case c.place.opened(before, generation):
			if c.opened != nil {
				c.opened(generation)
			}
			return connection{s, c.place, generation}, nil
		}
		if err == nil {
			interrupt(s)
		}
		_ = opened.Close() // the error is known
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the file %s was replaced while it was opened", c.place.path)
}

// session is what database/sql uses of a connection.
type session interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// connection is thrown away when another database is at the path.
type connection struct {
	session
	place      *place
	generation int64
}

func (c connection) current() bool { return c.generation == c.place.current() }

// IsValid implements driver.Validator, for a connection that goes back to the pool.
func (c connection) IsValid() bool { return c.session.IsValid() && c.current() }

// ResetSession implements driver.SessionResetter, for a connection that is taken from the pool.
func (c connection) ResetSession(ctx context.Context) error {
	if !c.current() {
		return driver.ErrBadConn
	}
	return c.session.ResetSession(ctx)
}

// Close implements driver.Conn.
func (c connection) Close() error { return c.place.close(c.session, c.generation) }
