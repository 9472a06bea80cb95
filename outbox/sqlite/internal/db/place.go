package db

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"maps"
	"os"
	"sync"
	"time"
)

// place is the path of a database, with what this process has open there. SQLite keeps one state of a file for all
// connections of a process, so all that use an old file are closed before another is opened.
type place struct {
	path string

	// looking is held from a look at the files until the connections that it found out of date are closed, and while
	// a connection to the files that are there is closed.
	looking sync.Mutex

	mu         sync.Mutex
	files      files
	generation int64         // rises with every database
	open, old  int           // connections of this generation, and of earlier ones
	closed     chan struct{} // is closed when old is 0 again
	pools      map[*sql.DB]int
}

// files are the database, its write-ahead log and the index of the log; nil: not there. In WAL mode a connection keeps the
// -wal and -shm files that it was opened with. If they are removed it goes on with them, and sees no change by others.
type files [3]os.FileInfo

var suffixes = [len(files{})]string{"", "-wal", "-shm"}

// places are by path. A process has a handful of them.
var places sync.Map

func placeOf(path string) *place {
	p, _ := places.LoadOrStore(path, &place{path: path, pools: map[*sql.DB]int{}})
	return p.(*place)
}

// look returns an error if there is no database.
func (p *place) look() (now files, err error) {
	for i, suffix := range suffixes {
		switch file, err := os.Stat(p.path + suffix); {
		case err == nil:
			now[i] = file
		case i == 0 || !errors.Is(err, fs.ErrNotExist):
			return files{}, err
		}
	}
	return now, nil
}

// replaced reports whether one of the files is not there any more.
func (was files) replaced(now files) bool {
	for i, one := range was {
		if one != nil && (now[i] == nil || !os.SameFile(one, now[i])) {
			return true
		}
	}
	return false
}

// check looks which files are at the path. If the database was replaced it closes the idle connections to the old one.
func (p *place) check() (now files, generation int64, err error) {
	p.looking.Lock()
	defer p.looking.Unlock()
	if now, err = p.look(); err != nil {
		return now, 0, err
	}
	generation, outdated := p.found(now)
	for pool, idle := range outdated {
		pool.SetMaxIdleConns(0) // closes them
		pool.SetMaxIdleConns(idle)
	}
	return now, generation, nil
}

// found records which files are there. It returns their generation and the pools with connections to earlier ones.
func (p *place) found(now files) (generation int64, outdated map[*sql.DB]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.files
	p.files = now
	if p.open == 0 { // SQLite removes the other files with its last connection
		was[1], was[2] = nil, nil
	}
	if was[0] != nil && !was.replaced(now) {
		return p.generation, nil
	}
	p.generation++
	if p.open > 0 {
		if p.old == 0 {
			p.closed = make(chan struct{})
		}
		p.old, p.open = p.old+p.open, 0
		outdated = maps.Clone(p.pools)
	}
	return p.generation, outdated
}

// wait waits until the connections to earlier databases are closed.
func (p *place) wait(ctx context.Context) error {
	p.mu.Lock()
	old, closed := p.old, p.closed
	p.mu.Unlock()
	if old == 0 {
		return nil
	}
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// opened counts a new connection, unless the files were replaced while it was opened.
func (p *place) opened(before files, generation int64) bool {
	p.looking.Lock()
	defer p.looking.Unlock()
	now, err := p.look()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || generation != p.generation || before.replaced(now) {
		return false
	}
	p.files = now
	p.open++
	return true
}

// current returns the generation of the database that is at the path, as far as is known; 0 before the first check.
func (p *place) current() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// close closes a connection.
func (p *place) close(s session, generation int64) error {
	if generation == p.current() {
		p.looking.Lock()
		defer p.looking.Unlock()
	}
	outdated := generation != p.current()
	if outdated {
		interrupt(s)
	}
	err := s.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !outdated {
		p.open--
		return err
	}
	if p.old--; p.old == 0 {
		close(p.closed)
	}
	return err
}

const endlessSQL = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n`

// interrupt leaves an interrupt pending. SQLite then copies nothing from the log into the database while it closes the
// connection: the log is of the old database, and a backup that was copied over it would be damaged.
func interrupt(s session) {
	for tries := 0; tries < 100 && s.IsValid(); tries++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		if rows, err := s.QueryContext(ctx, endlessSQL, nil); err == nil {
			_ = rows.Close() // never: the query has no end
		}
		cancel()
	}
}
