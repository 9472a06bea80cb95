package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

var (
	_ buffer.SpaceChecker = (*Buffer)(nil)
	_ buffer.SpaceChecker = (*sinkQueue)(nil)
)

// space remembers whether the disk of the database is full.
type space struct {
	mu    sync.Mutex
	at    time.Time // when it was asked
	full  error
	query string // spaceSQL unless a test sets it
}

// The rows do not fit into work_mem, so they are written to a temporary file of some hundred KB: that leaves no dead row and writes no WAL. A small row would still
// find room in pages that exist.
const spaceSQL = "SELECT count(*) FROM generate_series(1, 20000)"

// CheckSpace implements buffer.SpaceChecker.
func (b *Buffer) CheckSpace(ctx context.Context) error {
	s := &b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	every := time.Minute
	if s.full != nil {
		every = buffer.ReportEvery
	}
	if !s.at.IsZero() && time.Since(s.at) < every {
		return s.full
	}
	query := s.query
	if query == "" {
		query = spaceSQL
	}
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout, "work_mem", "64kB", "temp_tablespaces", ""), {SQL: query, Row: func([][]byte) error { return nil }}})
	switch s.at = time.Now(); {
	case pg.Code(err) == pg.CodeDiskFull:
		s.full = fmt.Errorf("%w: its disk is full, although what the relay writes may still find room in pages that exist (SQLSTATE %s)", buffer.ErrNoWrites, pg.CodeDiskFull)
	case err == nil:
		s.full = nil
	}
	return s.full
}

// CheckSpace implements buffer.SpaceChecker.
func (q *sinkQueue) CheckSpace(ctx context.Context) error { return q.buffer.CheckSpace(ctx) }
