package supervisor

import (
	"context"
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Tables are those of a pipeline, which stops if a transaction has locked one of them as a whole.
type Tables struct {
	// Names returns them as "schema.table", the event table first; nil while they are unknown. Each poll calls it.
	Names func() []string
	// Log takes a line when a table is locked, and another when none is any more.
	Log *slog.Logger
}

// watchedTables are tables, and what the last poll that succeeded found.
type watchedTables struct {
	Tables
	locked *buffer.LockedError // nil: none is locked
	since  time.Time           // of the poll that found it first
}

// logLocks logs which tables are locked now, and which are no longer.
func (s *Supervisor) logLocks(ctx context.Context, blockers []buffer.VacuumBlocker, now time.Time) {
	for _, t := range s.tables {
		locked := buffer.TableLocker(blockers, t.Names()...)
		switch {
		case locked != nil && t.locked == nil:
			t.since = now
			t.Log.WarnContext(ctx, "table locked by another transaction", append(append([]any{"table", locked.Table}, attrs(locked.Holder)...), "fix", locked.Fix)...)
		case locked == nil && t.locked != nil:
			t.Log.InfoContext(ctx, "table no longer locked", "table", t.locked.Table, "after", now.Sub(t.since).Round(time.Millisecond))
		}
		t.locked = locked
	}
}
