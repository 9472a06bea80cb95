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
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The modes are $2. A statement that waits for such a lock blocks all later ones, so
// what it waits for is what blocks them. Who waits, too, blocks nothing by itself: what it waits for in the end does. pg_locks needs no privilege; without
// pg_read_all_stats, state and age of other roles' sessions are NULL.
const lockedSQL = `
WITH RECURSIVE locks AS MATERIALIZED (
  SELECT locktype, database, relation, mode, granted, pid, virtualtransaction, transactionid FROM pg_locks
), waits AS MATERIALIZED (
  SELECT pid, pg_blocking_pids(pid) AS pids
  FROM (SELECT pid FROM locks WHERE NOT granted AND pid IS NOT NULL GROUP BY pid ORDER BY max((mode = ANY ($2::text[]))::int) DESC, pid LIMIT 200) w
), chain(name, pid, gid) AS (
  SELECT name, coalesce(l.pid, 0), CASE WHEN l.pid IS NULL THEN (
    SELECT p.gid FROM pg_prepared_xacts p JOIN locks t ON t.pid IS NULL AND t.transactionid = p.transaction
    WHERE t.virtualtransaction = l.virtualtransaction LIMIT 1) END
  FROM unnest($1::text[]) name JOIN locks l ON l.relation = to_regclass(name)
  WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode = ANY ($2::text[])
  UNION
  SELECT c.name, b, NULL FROM chain c JOIN waits w ON w.pid = c.pid, unnest(w.pids) b WHERE b <> 0
)
SELECT h.name, h.pid, coalesce(h.gid, ''), coalesce(a.usename, '')::text, coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(a.backend_type, ''),
       coalesce(a.application_name IN ('relay', current_setting('application_name')), false),
       (extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) * 1000000)::bigint,
       quote_ident(current_user), coalesce(r.rolsuper, false), h.name = ($1::text[])[1]
FROM chain h LEFT JOIN pg_stat_activity a ON a.pid = h.pid LEFT JOIN pg_prepared_xacts p ON p.gid = h.gid LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE h.pid <> pg_backend_pid() AND (h.gid IS NOT NULL OR a.pid IS NOT NULL) AND NOT EXISTS (SELECT FROM locks l WHERE l.pid = h.pid AND NOT l.granted)
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

// LockableTables are the tables that a relay writes in as "schema.table", the event table first: it stops if a transaction has locked one of them as a whole.
func LockableTables(t *ledger.Tables) []string {
	names := []string{t.Buffer}
	for _, name := range ledgerTables {
		names = append(names, t.Schema+"."+name)
	}
	return names
}

var ledgerTables = []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_sinks", "outbox_relays", "outbox_rates"}

// lookTimeout bounds the look for a lock.
const lookTimeout = 5 * time.Second

// Locked returns the transaction that has locked the event table or one of the relay's own as a whole, nil if none has. It touches none of these tables. schema and name are those of the event table, "" for a schema that the search path gives; ledger is the schema of
// the relay's tables, "" for the event table's.
func Locked(ctx context.Context, db *pg.DB, schema, name, ledger string) *buffer.LockedError {
	return locked(ctx, db, keepsAny, schema, name, ledger)
}

// LockedForReads is Locked for a transaction that lets nobody read.
func LockedForReads(ctx context.Context, db *pg.DB, schema, name, ledger string) *buffer.LockedError {
	return locked(ctx, db, keepsReads, schema, name, ledger)
}

func locked(ctx context.Context, db *pg.DB, modes []string, schema, name, ledger string) *buffer.LockedError {
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
	for _, table := range ledgerTables {
		names.Append([]byte(pg.Ident(ledger, table)))
	}
	var found *buffer.LockedError
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(lookTimeout), {SQL: lockedSQL, Args: []string{names.String(), wanted.String()}, Row: func(v [][]byte) error {
		b := &buffer.VacuumBlocker{
			Kind: buffer.BlockedByTransaction, PID: pg.ReadInt4(v[1]), Name: string(v[2]), User: string(v[3]), Application: string(v[4]), State: string(v[5]),
			Backend: string(v[6]), IsRelay: pg.ReadBool(v[7]), Age: pg.ReadAge(v[8]), Superuser: pg.ReadBool(v[10]),
		}
		if b.Name != "" {
			b.Kind = buffer.BlockedByPrepared
		}
		b.Fix = blockerFix(b)
		found = &buffer.LockedError{Table: string(v[0]), Holder: b, Text: b.LockText(string(v[0]), pg.ReadBool(v[11]), string(v[9])), Fix: b.Fix}
		return nil
	}}})
	if err != nil {
		return nil
	}
	return found
}

// lockFinding is what doctor says of a locked table.
func (d *diagnosis) lockFinding(e *buffer.LockedError) buffer.Finding {
	return buffer.Finding{Level: buffer.LevelError, Subject: buffer.TableLock, Text: e.Text, Fix: e.Fix, About: fmt.Sprint(d.started, " ", e.Table, " ", e.Holder.PID, " ", e.Holder.Name)}
}

// lockLasts is for how long a table is locked at least that nobody can read: most such locks are over by then.
const lockLasts = time.Second

// noReads adds the transaction that lets nobody read a table of the relay. Every other look at these tables would wait for it.
func (d *diagnosis) noReads(ctx context.Context) bool {
	schema, name := d.Table()
	look := func() *buffer.LockedError { return LockedForReads(ctx, d.DB, schema, name, d.LedgerSchema) }
	first := look()
	if first == nil {
		return false
	}
	select {
	case <-time.After(lockLasts):
	case <-ctx.Done():
		return false
	}
	d.locked = look()
	if d.locked == nil || d.locked.Holder.PID != first.Holder.PID || d.locked.Holder.Name != first.Holder.Name {
		d.locked = nil
		return false
	}
	f := d.lockFinding(d.locked)
	f.Text += "; the relay's tables were not examined, because that would wait, too"
	d.findings = append(d.findings, f)
	return true
}

// explainTimeouts replaces what took too long by the lock that it waited for, if there is one. Otherwise the first stands for all.
func (d *diagnosis) explainTimeouts(ctx context.Context) {
	if d.timeouts == nil {
		return
	}
	first := &d.findings[d.timeouts[0]]
	schema, name := d.Table()
	if locked := Locked(context.WithoutCancel(ctx), d.DB, schema, name, d.LedgerSchema); locked != nil {
		*first = d.lockFinding(locked)
	} else if len(d.timeouts) > 1 {
		var more []string
		for _, i := range d.timeouts[1:] {
			more = append(more, d.findings[i].Subject)
		}
		first.Text += "; nor was there time for: " + strings.Join(slices.Compact(more), ", ")
	}
	for _, i := range slices.Backward(d.timeouts[1:]) {
		d.findings = slices.Delete(d.findings, i, i+1)
	}
}
