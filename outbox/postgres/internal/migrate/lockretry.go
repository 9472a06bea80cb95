package migrate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// DDL that waits for a table blocks every later statement on it: behind one long reader of the
// ledger (a dump, an audit) no batch could be claimed. So DDL waits for a lock no longer than
// this, lets the others pass, and tries again.
const lockTimeoutSQL = "SET LOCAL lock_timeout = '2s';\nSET LOCAL search_path = " + pg.SearchPath + ";\n"

const (
	retryDelay  = time.Second     // lets the others pass
	lockTimeout = 2 * time.Minute // for all tries
)

// retryOnLock repeats do after a lock conflict until it succeeds, ctx is done or the timeout is
// over. It returns do's last error.
func retryOnLock(ctx context.Context, timeout time.Duration, do func() error) error {
	over := time.NewTimer(timeout)
	defer over.Stop()
	for {
		err := do()
		if !isLockConflict(err) {
			return err
		}
		again := time.NewTimer(retryDelay)
		select {
		case <-again.C:
			continue
		case <-over.C:
		case <-ctx.Done():
		}
		again.Stop()
		return err
	}
}

// isLockConflict reports whether others hold a lock. A replay locks dead letters and then the
// ledger, a migration the other way round, so they may deadlock.
func isLockConflict(err error) bool {
	c := pg.Code(err)
	return c == pg.CodeLockTimeout || c == pg.CodeDeadlock
}

// The relay's own transactions are shorter than the wait was. Without pg_read_all_stats the
// queries of other roles are not visible.
const lockHoldersSQL = `
SELECT format('pid %s, application "%s"%s', a.pid, a.application_name,
              ', query started at ' || to_char(a.query_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC')
FROM pg_stat_activity a
WHERE a.pid <> pg_backend_pid()
  AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - interval '2 seconds')
  AND EXISTS (
    SELECT FROM pg_locks l
    WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.relation = ANY (SELECT to_regclass(name)::oid FROM unnest($1::text[]) name))
ORDER BY a.xact_start LIMIT 3`

// nameLockHolders adds to a lock conflict which sessions hold the tables.
func nameLockHolders(ctx context.Context, tx pgx.Tx, c Config, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pg.BulkTimeout)
	defer cancel()
	rows, askErr := tx.Query(ctx, lockHoldersSQL, c.tables())
	var holders []string
	if askErr == nil {
		holders, askErr = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if askErr != nil || len(holders) == 0 { // its session just ended, or it is a prepared transaction
		holders = []string{"see pg_locks and pg_prepared_xacts"}
	}
	return fmt.Errorf("another transaction holds a table that must be changed (%s); end it or wait, then run relay migrate again: %w",
		strings.Join(holders, "; "), err)
}
