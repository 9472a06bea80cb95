package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"github.com/jackc/pgx/v5"
)

// DDL that waits for a table stands in front of everybody who comes after it: behind
// one long reader of the ledger (a dump, an audit) no batch could be claimed any more.
// So it waits for a lock no longer than this, makes way, and tries again.
const giveWaySQL = "SET LOCAL lock_timeout = '2s';\n"

const (
	makeWay     = time.Second     // for those who came after it
	ddlPatience = 2 * time.Minute // with those who hold a table
)

// giveWay repeats do, which ran into giveWaySQL's time or a deadlock, until it is
// through, ctx is done or patience is over. It returns do's last error.
func giveWay(ctx context.Context, patience time.Duration, do func() error) error {
	over := time.NewTimer(patience)
	defer over.Stop()
	for {
		err := do()
		if !inTheWay(err) {
			return err
		}
		again := time.NewTimer(makeWay)
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

// inTheWay tells whether others hold what is wanted. A replay locks letters first and
// the ledger then, a migration the other way round.
func inTheWay(err error) bool {
	c := pg.Code(err)
	return c == pg.CodeLockTimeout || c == pg.CodeDeadlock
}

// The relay's own transactions are shorter than the wait was. What others do is seen
// with pg_read_all_stats only.
const holdersSQL = `
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

// held says who holds the tables, when err is that somebody does.
func held(ctx context.Context, tx pgx.Tx, c SchemaConfig, err error) error {
	if !inTheWay(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pg.BulkTimeout)
	defer cancel()
	const says = "a transaction holds a table that is to be changed (%s); end it or wait for its end, and run relay migrate again: %w"
	rows, askErr := tx.Query(ctx, holdersSQL, c.tables())
	var holders []string
	if askErr == nil {
		holders, askErr = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if askErr != nil || len(holders) == 0 { // it ended just now, or was prepared
		return fmt.Errorf(says, "pg_locks and pg_prepared_xacts show which", err)
	}
	return fmt.Errorf(says, strings.Join(holders, "; "), err)
}
