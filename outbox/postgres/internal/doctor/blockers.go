package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// These block vacuum, by ComputeXidHorizons and GetSnapshotData of the server's procarray.c:
//   - a snapshot (backend_xmin) in its own database, a walsender's (hot_standby_feedback) in all;
//   - a writing transaction (backend_xid) or a prepared one in every database, because each new
//     snapshot reaches back to it;
//   - a slot's xmin in all databases, its catalog_xmin too, but for rows of the catalogs only.
//
// VACUUM's own snapshot does not count, and a parallel worker has its leader's. Without pg_read_all_stats only pid,
// database, user, application and both ids of other roles' sessions are visible; the rest is NULL. A lost slot
// blocks nothing any more. Each kind has a limit of its own, so that many of one kind hide none of another.
//
// Transactions that others wait for, and those that keep others from inserting into a table of this database (strong), are among them though they may block no vacuum.
// roots are the transactions that do not wait and that a session waits for in the end, as far as the first 200 that wait are concerned: pg_blocking_pids locks out all
// others for a moment. It returns 0 for a prepared transaction.
const blockersSQL = `
WITH RECURSIVE locks AS MATERIALIZED (
  SELECT locktype, database, relation, mode, granted, pid, virtualtransaction, transactionid FROM pg_locks
), waits AS MATERIALIZED (
  SELECT pid, pg_blocking_pids(pid) AS pids
  FROM (SELECT pid FROM locks WHERE NOT granted AND pid IS NOT NULL GROUP BY pid ORDER BY max((locktype = 'relation')::int) DESC, pid LIMIT 200) w
), chain(pid, holder) AS (
  SELECT w.pid, b FROM waits w, unnest(w.pids) b
  UNION
  SELECT c.pid, b FROM chain c JOIN waits w ON w.pid = c.holder, unnest(w.pids) b
), roots AS MATERIALIZED (
  SELECT pid, holder FROM chain WHERE holder NOT IN (SELECT pid FROM locks WHERE NOT granted AND pid IS NOT NULL)
), relations AS MATERIALIZED (
  SELECT l.*, n.nspname || '.' || c.relname AS name, l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') AS strong
  FROM locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE l.locktype = 'relation' AND l.mode <> 'AccessShareLock' AND c.relkind IN ('r', 'p')
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND n.nspname <> 'pg_catalog' AND n.nspname !~ '^pg_t'
), strong AS MATERIALIZED (
  SELECT pid, name FROM relations WHERE strong AND granted AND pid IS NOT NULL
  UNION
  SELECT r.holder, l.name FROM relations l JOIN roots r ON r.pid = l.pid WHERE l.strong
)
(SELECT 'transaction', '', a.pid, coalesce(a.datname, '')::text, coalesce(a.usename, '')::text, coalesce(a.application_name, ''),
        coalesce(a.state, ''), coalesce(a.backend_type, ''), coalesce(r.rolsuper, false),
        coalesce(a.application_name IN ('relay', current_setting('application_name')), false),
        coalesce(a.datname <> current_database(), false),
        a.backend_start, a.xact_start,
        (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint,
        (extract(epoch FROM clock_timestamp() - a.query_start) * 1000000)::bigint,
        coalesce(greatest(age(a.backend_xid), age(a.backend_xmin)), 0)::bigint AS behind,
        coalesce(a.backend_xid, a.backend_xmin)::text::bigint, false, 0::bigint,
        (SELECT string_agg(DISTINCT l.name, chr(10)) FROM relations l WHERE l.granted AND l.pid = a.pid),
        (SELECT string_agg(DISTINCT s.name, chr(10)) FROM strong s WHERE s.pid = a.pid),
        EXISTS (SELECT FROM locks l WHERE l.pid = a.pid AND NOT l.granted),
        (SELECT min(nullif(t.holder, 0)) FROM roots t WHERE t.pid = a.pid),
        (SELECT count(DISTINCT c.pid) FROM chain c JOIN pg_stat_activity w ON w.pid = c.pid
         WHERE c.holder = a.pid AND w.application_name IS DISTINCT FROM 'relay' AND w.application_name IS DISTINCT FROM current_setting('application_name'))::int
 FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid
 WHERE a.pid <> pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'parallel worker'
   AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND (a.datid IS NULL OR a.datname = current_database())
     OR a.pid IN (SELECT holder FROM roots) OR a.pid IN (SELECT pid FROM strong))
   AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
 ORDER BY a.pid IN (SELECT holder FROM roots) OR a.pid IN (SELECT pid FROM strong) DESC, behind DESC, a.xact_start LIMIT $1::bigint)
UNION ALL
(SELECT 'prepared transaction', p.gid, 0, p.database::text, p.owner::text, '',
        '', '', coalesce(r.rolsuper, false), false, p.database <> current_database(),
        NULL, p.prepared,
        (extract(epoch FROM clock_timestamp() - p.prepared) * 1000000)::bigint, NULL,
        age(p.transaction)::bigint AS behind, p.transaction::text::bigint, false, 0,
        (SELECT string_agg(DISTINCT l.name, chr(10)) FROM relations l WHERE l.pid IS NULL AND l.virtualtransaction IN (
           SELECT t.virtualtransaction FROM locks t WHERE t.pid IS NULL AND t.transactionid = p.transaction)),
        (SELECT string_agg(DISTINCT l.name, chr(10)) FROM relations l WHERE l.strong AND l.pid IS NULL AND l.virtualtransaction IN (
           SELECT t.virtualtransaction FROM locks t WHERE t.pid IS NULL AND t.transactionid = p.transaction)),
        false, NULL, 0
 FROM pg_prepared_xacts p LEFT JOIN pg_roles r ON r.rolname = p.owner
 ORDER BY behind DESC, p.prepared LIMIT $1::bigint)
UNION ALL
(SELECT 'replication slot', s.slot_name::text, coalesce(s.active_pid, 0), coalesce(s.database, '')::text,
        coalesce(a.usename, '')::text, coalesce(a.application_name, ''),
        CASE WHEN s.active THEN 'active' ELSE 'inactive' END, '', false, false, coalesce(s.database <> current_database(), false),
        NULL, NULL,
        CASE WHEN NOT s.active THEN
          (extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz) * 1000000)::bigint
        END, NULL,
        coalesce(greatest(age(s.xmin), age(s.catalog_xmin)), 0)::bigint AS behind,
        coalesce(s.xmin, s.catalog_xmin)::text::bigint, s.xmin IS NULL AND s.catalog_xmin IS NOT NULL,
        CASE WHEN NOT s.active AND NOT pg_is_in_recovery()
          THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint ELSE 0 END, NULL, NULL, false, NULL, 0
 FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.wal_status IS DISTINCT FROM 'lost'
   AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL OR NOT s.active AND s.restart_lsn IS NOT NULL)
 ORDER BY behind DESC, s.slot_name LIMIT $1::bigint)
ORDER BY 18, behind DESC, 14 DESC NULLS LAST`

// Which rows are locked, pg_locks does not say: a row's lock is in the row. relations are the locks that SELECT ... FOR UPDATE, INSERT, UPDATE and DELETE take, and
// stronger ones. A relation of another database has no entry in pg_class that counts.

// maxBlockers bounds each kind.
const maxBlockers = 100

// Blockers returns what blocks vacuum now, furthest behind first, and last those that block it in
// the catalogs only; at most a hundred of each kind. Neither this session nor one that only reads in
// another database is among them. Also among them are transactions that others wait for, or that keep others from inserting into a table. It reads none of the relay's tables.
func Blockers(ctx context.Context, db *pg.DB) ([]buffer.VacuumBlocker, error) {
	var all []buffer.VacuumBlocker
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: blockersSQL, Args: []string{pg.Int(maxBlockers)},
		Row: func(v [][]byte) error {
			all = append(all, readBlocker(v))
			return nil
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("looking for vacuum blockers: %w", db.ConnectError(err))
	}
	for i := range all {
		if b := &all[i]; b.Waits {
			b.Fix = fmt.Sprintf("end what it waits for: SELECT pg_blocking_pids(%d) names it", b.PID)
			if root := buffer.Root(all, b); root != nil {
				b.Fix = root.Fix
			}
		}
	}
	return all, nil
}

func readBlocker(v [][]byte) buffer.VacuumBlocker {
	b := buffer.VacuumBlocker{
		Kind: buffer.BlockerKind(v[0]), Name: string(v[1]), PID: pg.ReadInt4(v[2]),
		Database: string(v[3]), User: string(v[4]), Application: string(v[5]), State: string(v[6]), Backend: string(v[7]),
		Superuser: pg.ReadBool(v[8]), IsRelay: pg.ReadBool(v[9]), Elsewhere: pg.ReadBool(v[10]),
		Age: pg.ReadAge(v[13]), QueryAge: pg.ReadAge(v[14]),
		Behind: pg.ReadInt8(v[15]), Horizon: pg.ReadInt8(v[16]), Catalogs: pg.ReadBool(v[17]), WAL: pg.ReadInt8(v[18]),
	}
	if v[11] != nil {
		b.StartedAt = pg.ReadTime(v[11])
	}
	if v[12] != nil {
		b.BeganAt = pg.ReadTime(v[12])
	}
	if v[19] != nil {
		b.Locks = strings.Split(string(v[19]), "\n")
	}
	if v[20] != nil {
		b.NoInserts = strings.Split(string(v[20]), "\n")
	}
	b.Waits, b.WaitsFor, b.Waiting = pg.ReadBool(v[21]), pg.ReadInt4(v[22]), pg.ReadInt4(v[23])
	b.Fix = blockerFix(&b)
	return b
}

// Process ids are reused, and a session begins other transactions. So the statement that terminates a session looks
// for the one that was seen. It is MATERIALIZED so that nothing is terminated before all conditions were evaluated.
const terminateSQL = `
WITH blocker AS MATERIALIZED (
  SELECT pid FROM pg_stat_activity
  WHERE pid = $1::int AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND backend_start = $2::timestamptz AND xact_start = $3::timestamptz
    AND application_name = $4 AND application_name NOT IN ('relay', current_setting('application_name'))
    AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = $1::int)
)
SELECT pg_terminate_backend(pid) FROM blocker`

// Terminate ends the session of a transaction if it is still the one that Blockers saw: same session, same
// transaction, same application, and still blocking. Otherwise, and for other kinds of blockers, it ends nothing and
// returns false. It never ends a session of the server itself or of a relay.
func Terminate(ctx context.Context, db *pg.DB, b buffer.VacuumBlocker) (terminated bool, err error) {
	if b.Kind != buffer.BlockedByTransaction || b.BeganAt.IsZero() {
		return false, nil
	}
	found := false
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL:  terminateSQL,
		Args: []string{pg.Int(int64(b.PID)), pg.Timestamp(b.StartedAt), pg.Timestamp(b.BeganAt), b.Application},
		Row: func(v [][]byte) error {
			found, terminated = true, pg.ReadBool(v[0])
			return nil
		},
	}})
	switch {
	case err != nil:
		return false, fmt.Errorf("terminating a session: %w", db.ConnectError(err))
	case found && !terminated:
		return false, errors.New("terminating a session: the server could not signal it")
	}
	return terminated, nil
}

// aboutHorizon is the subject of what blocks vacuum.
const aboutHorizon = "vacuum horizon"

// blockers adds those that are older than warn_after, or keep WAL. A role that does not see how old those of other roles are is told which are
// open for some seconds at least.
func (d *diagnosis) blockers(ctx context.Context, sees bool) {
	const about = aboutHorizon
	all, err := Blockers(ctx, d.DB)
	if d.failed(about, err) {
		return
	}
	found := false
	var locker, tableLocker *buffer.VacuumBlocker
	if d.state != nil {
		locker = buffer.Locker(all, d.state.Tables.Buffer)
		if locked := buffer.TableLocker(all, LockableTables(d.state.Tables)...); locked != nil {
			tableLocker = locked.Holder
			if d.timeouts == nil { // otherwise they are explained by it
				d.findings = append(d.findings, d.lockFinding(locked))
			}
		}
	}
	if locker != nil && locker != tableLocker {
		d.warn(buffer.RowLocks, d.holds(all, locker)+", which is where the events wait. "+d.locksPrevent(ctx), locker.Fix)
	}
	for i := range all {
		switch b := &all[i]; {
		case b == locker || b == tableLocker || d.locked != nil && b.PID == d.locked.Holder.PID && b.Name == d.locked.Holder.Name:
			found = true
		case b.Waits && buffer.Root(all, b) != nil: // that is the cause
		case b.Beyond(d.Policy.WarnAfter):
			found = true
			d.findings = append(d.findings, buffer.Finding{
				Level: buffer.LevelWarning, Subject: about, Text: b.String(), Fix: b.Fix,
				About: fmt.Sprint(d.started, " ", b.Kind, " ", b.Name, " ", b.PID, " ", b.Horizon),
			})
		}
	}
	if !sees {
		hidden, err := Hidden(ctx, d.DB, d.Policy, all)
		if d.failed(about, err) {
			return
		}
		for _, f := range hidden {
			found, f.About = true, d.started+" "+f.About
			d.findings = append(d.findings, f)
		}
	}
	switch {
	case found:
	case sees:
		d.ok(about, "nothing older than "+d.Policy.WarnAfter.String()+" blocks vacuum")
	default:
		d.ok(about, "nothing older than "+d.Policy.WarnAfter.String()+" that this role sees blocks vacuum")
	}
}

// holds says which transaction holds locks in the event table: locker, or one that waits for it.
func (d *diagnosis) holds(all []buffer.VacuumBlocker, locker *buffer.VacuumBlocker) string {
	table := d.state.Tables.Buffer
	if locker.Holds(table) {
		return locker.String()
	}
	for i := range all {
		if b := &all[i]; b.Holds(table) && buffer.Root(all, b) == locker {
			return fmt.Sprintf("%s. Pid %d (application %q) waits for it, and holds locks in table %s", locker, b.PID, b.Application, table)
		}
	}
	return locker.String()
}

const undeletedSQL = `
SELECT count(*)::text FROM outbox_batches WHERE buffer = $1 AND state = 'delivered'`

// locksPrevent says what locks in the event table prevent: that events are deleted that were sent, that they are claimed, or both. Which rows are locked is not known.
func (d *diagnosis) locksPrevent(ctx context.Context) string {
	var says []string
	d.query(ctx, buffer.RowLocks, d.state.Tables.SQL(undeletedSQL), func(v []string) {
		switch v[0] {
		case "0":
		case "1":
			says = append(says, "1 batch was sent, and is deleted when no other transaction locks its rows; it is not sent again")
		default:
			says = append(says, v[0]+" batches were sent, and are deleted when no other transaction locks their rows; they are not sent again")
		}
	}, d.state.Tables.Buffer)
	if next, err := d.Peek(ctx, 1); says == nil || err != nil || next != nil && next.Len() > 0 {
		says = append(says, "A relay does not claim rows that are locked; with order: key it claims no later event of their keys either, so everything may stand still")
	}
	return strings.Join(says, ". ")
}

// secondLook is how long a transaction of unknown age is observed: most are over by then.
const secondLook = 2 * time.Second

// isHidden reports whether the role does not see how old a transaction in this database is.
func isHidden(b *buffer.VacuumBlocker, p buffer.SupervisorPolicy) bool {
	return b.Kind == buffer.BlockedByTransaction && b.Age == 0 && b.State == "" && !b.IsRelay && !b.Elsewhere && !b.Beyond(p.WarnAfter)
}

// Hidden returns a finding if transactions whose age the role does not see are open for some seconds at least, the one furthest behind first. before
// is what Blockers returned just now.
func Hidden(ctx context.Context, db *pg.DB, p buffer.SupervisorPolicy, before []buffer.VacuumBlocker) ([]buffer.Finding, error) {
	if !slices.ContainsFunc(before, func(b buffer.VacuumBlocker) bool { return isHidden(&b, p) }) {
		return nil, nil
	}
	select {
	case <-time.After(secondLook):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now, err := Blockers(ctx, db)
	if err != nil {
		return nil, err
	}
	var hidden []buffer.VacuumBlocker
	for i := range now {
		b := &now[i]
		if isHidden(b, p) && slices.ContainsFunc(before, func(was buffer.VacuumBlocker) bool { return was.PID == b.PID && was.Horizon == b.Horizon }) {
			hidden = append(hidden, *b)
		}
	}
	if hidden == nil {
		return nil, nil
	}
	role := ""
	if err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: roleSQL, Row: func(v [][]byte) error {
		role = string(v[0])
		return nil
	}}}); err != nil {
		return nil, fmt.Errorf("reading the role's name: %w", db.ConnectError(err))
	}
	first, more := hidden[0], ""
	first.Age, first.AtLeast = secondLook, true
	if n := len(hidden) - 1; n > 0 {
		more = fmt.Sprintf(", and %d others", n)
	}
	return []buffer.Finding{{
		Level: buffer.LevelWarning, Subject: aboutHorizon,
		Text:  first.String() + more + "; role " + role + " may not see since when, so nobody knows whether it was forgotten",
		Fix:   "GRANT pg_read_all_stats TO " + role,
		About: fmt.Sprint("hidden ", first.PID, " ", first.Horizon),
	}}, nil
}

const roleSQL = `
SELECT quote_ident(current_user)`

// blockerFix is how to end a blocker.
func blockerFix(b *buffer.VacuumBlocker) string {
	where := ""
	if b.Elsewhere {
		where = "in database " + pg.Quote(b.Database) + ": "
	}
	switch {
	case b.Kind == buffer.BlockedByPrepared:
		return where + "ROLLBACK PREPARED " + pg.Literal(b.Name)
	case b.Unread():
		return where + "SELECT pg_drop_replication_slot(" + pg.Literal(b.Name) + ")"
	case b.Kind == buffer.BlockedBySlot:
		return fmt.Sprintf("find out why its reader (pid %d) does not advance", b.PID)
	case b.IsRelay:
		return "wait: it is a relay's and ends by itself"
	case b.Backend == "walsender":
		return "end the long query on the standby, or set hot_standby_feedback = off there"
	case b.Backend == "autovacuum worker":
		return "wait: it ends by itself"
	}
	return "SELECT pg_terminate_backend(" + pg.Int(int64(b.PID)) + ") -- as " + mayTerminate(b)
}

// mayTerminate says which role may terminate a session; for the end of a line of SQL.
func mayTerminate(b *buffer.VacuumBlocker) string {
	switch {
	case b.Superuser:
		return "a superuser"
	case b.User == "":
		return "a superuser or a member of pg_signal_backend"
	}
	return oneLine.Replace(pg.Quote(b.User)) + ", a superuser or a member of pg_signal_backend"
}

// oneLine keeps a name in a line.
var oneLine = strings.NewReplacer("\n", " ", "\r", " ")
