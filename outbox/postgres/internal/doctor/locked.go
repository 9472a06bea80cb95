package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The modes are $2. A statement that waits for such a lock blocks all later ones, so
// what it waits for is what blocks them. pg_locks needs no privilege; without pg_read_all_stats, state and age of other roles' sessions are NULL.
const lockedSQL = `
WITH strong AS (
  SELECT name, l.pid, l.granted, l.virtualtransaction
  FROM unnest($1::text[]) name JOIN pg_locks l ON l.relation = to_regclass(name)
  WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode = ANY ($2::text[])
), holders(name, pid, gid) AS (
  SELECT name, coalesce(pid, 0), CASE WHEN pid IS NULL THEN (
    SELECT p.gid FROM pg_prepared_xacts p JOIN pg_locks t ON t.pid IS NULL AND t.transactionid = p.transaction
    WHERE t.virtualtransaction = strong.virtualtransaction LIMIT 1) END
  FROM strong WHERE granted
  UNION
  SELECT s.name, b, NULL FROM strong s, unnest(pg_blocking_pids(s.pid)) b
  WHERE NOT s.granted AND b <> 0 AND b NOT IN (SELECT pid FROM strong WHERE NOT granted AND pid IS NOT NULL)
)
SELECT h.name, h.pid, coalesce(h.gid, ''), coalesce(a.usename, '')::text, coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.backend_type, ''),
       coalesce(a.application_name IN ('relay', current_setting('application_name')), false),
       (extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000000)::bigint,
       quote_ident(current_user), coalesce(r.rolsuper, false)
FROM holders h LEFT JOIN pg_stat_activity a ON a.pid = h.pid LEFT JOIN pg_prepared_xacts p ON p.gid = h.gid LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE h.pid <> pg_backend_pid() AND (h.gid IS NOT NULL OR a.pid IS NOT NULL)
ORDER BY a.xact_start NULLS LAST, h.pid, h.name LIMIT 1`

// IsTimeout reports whether a statement may have waited for a lock: the server ended it for its lock_timeout or statement_timeout, or the caller gave up.
func IsTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || slices.Contains([]string{pg.CodeLockTimeout, pg.CodeCancelled}, pg.Code(err))
}

var (
	// keepsReads is the mode that conflicts with a SELECT.
	keepsReads = []string{"AccessExclusiveLock"}
	// keepsAny are those that conflict with what the relay does.
	keepsAny = []string{"ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}
)

// lookTimeout bounds the look for a lock.
const lookTimeout = 5 * time.Second

// Locked returns the transaction that has locked the event table or one of the relay's own as a whole, nil if none has. It touches none of these tables. schema and name are those of the event table, "" for a schema that the search path gives; ledger is the schema of
// the relay's tables, "" for the event table's.
func Locked(ctx context.Context, db *pg.DB, schema, name, ledger string) *buffer.Finding {
	return locked(ctx, db, keepsAny, schema, name, ledger)
}

// LockedForReads is Locked for a transaction that lets nobody read.
func LockedForReads(ctx context.Context, db *pg.DB, schema, name, ledger string) *buffer.Finding {
	return locked(ctx, db, keepsReads, schema, name, ledger)
}

func locked(ctx context.Context, db *pg.DB, modes []string, schema, name, ledger string) *buffer.Finding {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	events, err := catalog.Find(ctx, db, schema, name)
	if err != nil || !events.Exists {
		return nil
	}
	if ledger == "" {
		ledger = events.Schema
	}
	var names, wanted pg.Array
	for _, mode := range modes {
		wanted.Append([]byte(mode))
	}
	names.Append([]byte(events.Quoted))
	for _, table := range []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_sinks", "outbox_relays", "outbox_rates"} {
		names.Append([]byte(pg.Ident(ledger, table)))
	}
	var found *buffer.Finding
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(lookTimeout), {SQL: lockedSQL, Args: []string{names.String(), wanted.String()}, Row: func(v [][]byte) error {
		b := buffer.VacuumBlocker{
			Kind: buffer.BlockedByTransaction, PID: pg.ReadInt4(v[1]), Name: string(v[2]), User: string(v[3]), Application: string(v[4]), State: string(v[5]),
			Backend: string(v[6]), IsRelay: pg.ReadBool(v[7]), Age: pg.ReadAge(v[8]), Superuser: pg.ReadBool(v[10]),
		}
		if b.Name != "" {
			b.Kind = buffer.BlockedByPrepared
		}
		found = &buffer.Finding{
			Level: buffer.LevelError, Subject: "tables",
			Text: "table " + string(v[0]) + " is locked: statements wait for " + lockerText(&b, string(v[9])), Fix: blockerFix(&b),
		}
		return nil
	}}})
	if err != nil {
		return nil
	}
	return found
}

// lockerText describes a session that holds a lock.
func lockerText(b *buffer.VacuumBlocker, role string) string {
	age := b.Age.Round(time.Second).String()
	if b.Kind == buffer.BlockedByPrepared {
		return fmt.Sprintf("the transaction prepared as %q, which is open for %s", b.Name, age)
	}
	facts := []string{"user " + b.User, fmt.Sprintf("application %q", b.Application)}
	if b.State != "" {
		facts = append(facts, b.State)
	}
	text := fmt.Sprintf("pid %d (%s), whose transaction ", b.PID, strings.Join(facts, ", "))
	if b.Age == 0 {
		return text + "is open; since when, role " + role + " may not see without GRANT pg_read_all_stats TO " + role
	}
	return text + "is open for " + age
}

// explainTimeouts replaces what took too long by the lock that it waited for, if there is one.
func (d *diagnosis) explainTimeouts(ctx context.Context) {
	if d.timeouts == nil {
		return
	}
	schema, name := d.Table()
	locked := Locked(context.WithoutCancel(ctx), d.DB, schema, name, d.LedgerSchema)
	if locked == nil {
		return
	}
	d.findings[d.timeouts[0]] = *locked
	for _, i := range slices.Backward(d.timeouts[1:]) {
		d.findings = slices.Delete(d.findings, i, i+1)
	}
}
