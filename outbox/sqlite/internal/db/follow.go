package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"os"
	"sync"

	sqlite "modernc.org/sqlite"
)

// Follower opens the file that is at a path now. If another file was put there, as by a restore, its connections are
// closed and opened again: SQLite would go on with the old file, which has no name any more. It is safe for concurrent use.
type Follower struct {
	path string

	mu         sync.Mutex
	file       os.FileInfo // nil before the first connection
	generation int64       // rises with every file
}

// NewFollower returns a Follower of a path. It does not touch the file.
func NewFollower(path string) *Follower { return &Follower{path: path} }

// Check looks which file is at the path. It returns an error if there is none; connections stay with the file that
// they have, which may come back.
func (f *Follower) Check() error {
	file, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	f.found(file)
	return nil
}

// found records which file is at the path, and returns its generation.
func (f *Follower) found(file os.FileInfo) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil || !os.SameFile(f.file, file) {
		f.generation++
	}
	f.file = file
	return f.generation
}

// Generation returns the number of the file that is at the path, as far as is known; 0 before the first Check.
func (f *Follower) Generation() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation
}

// Open is the package's Open for the file at the path, with any number of connections. opened, if it is not nil, is called with the generation of each new connection
// before its first use.
func (f *Follower) Open(mode string, opened func(generation int64), pragmas ...string) *sql.DB {
	return sql.OpenDB(connector{f, dataSource(f.path, mode, pragmas...), opened})
}

type connector struct {
	follower *Follower
	name     string
	opened   func(generation int64)
}

func (c connector) Driver() driver.Driver { return &sqlite.Driver{} }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	before, err := os.Stat(c.follower.path)
	if err != nil { // SQLite says what is wrong
		before = nil
	}
	opened, err := c.Driver().Open(c.name)
	if err != nil {
		return nil, err
	}
	after, err := os.Stat(c.follower.path)
	if err == nil && (before == nil || !os.SameFile(before, after)) {
		err = fmt.Errorf("the file %s was replaced while it was opened", c.follower.path)
	}
	session, ok := opened.(session)
	if err == nil && !ok {
		err = fmt.Errorf("%T lacks methods of a connection", opened)
	}
	if err != nil {
		_ = opened.Close() // the error is known
		return nil, err
	}
	generation := c.follower.found(after)
	if c.opened != nil {
		c.opened(generation)
	}
	return connection{session, c.follower, generation}, nil
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

// connection is thrown away when another file is at the path.
type connection struct {
	session
	follower   *Follower
	generation int64
}

func (c connection) current() bool { return c.generation == c.follower.Generation() }

// IsValid implements driver.Validator, for a connection that goes back to the pool.
func (c connection) IsValid() bool { return c.session.IsValid() && c.current() }

// ResetSession implements driver.SessionResetter, for a connection that is taken from the pool.
func (c connection) ResetSession(ctx context.Context) error {
	if !c.current() {
		return driver.ErrBadConn
	}
	return c.session.ResetSession(ctx)
}
