package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// What holds vacuum back, by ComputeXidHorizons and GetSnapshotData of the server's
// procarray.c:
//   - a snapshot (backend_xmin) in its own database, a walsender's without one
//     (hot_standby_feedback) in all;
//   - what writes (backend_xid) in every database: each new snapshot, wherever it is
//     taken, reaches back to it, and prepared transactions likewise;
//   - a slot's xmin in all, its catalog_xmin in all, but for the catalogs' rows only.
//
// VACUUM itself has a snapshot that does not count, and a parallel worker its leader's.
// Without pg_read_all_stats, of other roles' sessions are seen pid, database, user,
// application and both ids; the rest is NULL. Transactions and slots come apart, so
// that many of one hide none of the other. The WAL of a lost slot is gone, and with it
// what it held.
const horizonSQL = `
(SELECT 'transaction', '', a.pid, coalesce(a.datname, '')::text, coalesce(a.usename, '')::text, coalesce(a.application_name, ''),
        coalesce(a.state, ''), coalesce(a.backend_type, ''), coalesce(r.rolsuper, false),
        coalesce(a.application_name IN ('relay', current_setting('application_name')), false),
        coalesce(a.datname <> current_database(), false),
        a.backend_start, a.xact_start,
        (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint,
        (extract(epoch FROM clock_timestamp() - a.query_start) * 1000000)::bigint,
        greatest(age(a.backend_xid), age(a.backend_xmin))::bigint AS behind,
        coalesce(a.backend_xid, a.backend_xmin)::text::bigint, false, 0::bigint
 FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid
 WHERE a.pid <> pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'parallel worker'
   AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND (a.datid IS NULL OR a.datname = current_database()))
   AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
 ORDER BY behind DESC, a.xact_start LIMIT $1::bigint)
UNION ALL
(SELECT 'prepared transaction', p.gid, 0, p.database::text, p.owner::text, '',
        '', '', coalesce(r.rolsuper, false), false, p.database <> current_database(),
        NULL, p.prepared,
        (extract(epoch FROM clock_timestamp() - p.prepared) * 1000000)::bigint, NULL,
        age(p.transaction)::bigint AS behind, p.transaction::text::bigint, false, 0
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
          THEN pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint ELSE 0 END
 FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.wal_status IS DISTINCT FROM 'lost'
   AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL OR NOT s.active AND s.restart_lsn IS NOT NULL)
 ORDER BY behind DESC, s.slot_name LIMIT $1::bigint)
ORDER BY 18, behind DESC, 14 DESC NULLS LAST`

// mostHolders is how many are looked at of each kind.
const mostHolders = 100

// Blockers returns what holds the database back now, those that keep only the catalogs'
// rows last and else those that are furthest behind first, at most a hundred of each kind. A session that only reads in another database
// is none, nor is this one. It asks for no table, and works before Migrate.
func (b *Buffer) Blockers(ctx context.Context) ([]buffer.VacuumBlocker, error) {
	var all []buffer.VacuumBlocker
	err := b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL: horizonSQL, Args: []string{pg.Int(mostHolders)},
		Row: func(v [][]byte) error {
			all = append(all, holderOf(v))
			return nil
		},
	}})
	if err != nil {
		return nil, fmt.Errorf("looking at what holds the database back: %w", b.db.ConnectError(err))
	}
	return all, nil
}

func holderOf(v [][]byte) buffer.VacuumBlocker {
	h := buffer.VacuumBlocker{
		Kind: buffer.BlockerKind(v[0]), Name: string(v[1]), PID: pg.ReadInt4(v[2]),
		Database: string(v[3]), User: string(v[4]), Application: string(v[5]), State: string(v[6]), Backend: string(v[7]),
		Superuser: pg.ReadBool(v[8]), Own: pg.ReadBool(v[9]), Elsewhere: pg.ReadBool(v[10]),
		Age: pg.ReadAge(v[13]), QueryAge: pg.ReadAge(v[14]),
		Behind: pg.ReadInt8(v[15]), Horizon: pg.ReadInt8(v[16]), Catalogs: pg.ReadBool(v[17]), WAL: pg.ReadInt8(v[18]),
	}
	if v[11] != nil {
		h.StartedAt = pg.ReadTime(v[11])
	}
	if v[12] != nil {
		h.BeganAt = pg.ReadTime(v[12])
	}
	return h
}

// A process id is used again, and a session goes on to its next transaction. So what
// was seen has to be there still, and is looked for by the statement that ends it. It
// is MATERIALIZED so that nothing is ended before all of the conditions were tried.
const endSQL = `
WITH culprit AS MATERIALIZED (
  SELECT pid FROM pg_stat_activity
  WHERE pid = $1::int AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    AND backend_start = $2::timestamptz AND xact_start = $3::timestamptz
    AND application_name = $4 AND application_name NOT IN ('relay', current_setting('application_name'))
    AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
    AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = $1::int)
)
SELECT pg_terminate_backend(pid) FROM culprit`

// Terminate ends the session of a transaction if it is still the one that Blockers saw: same
// session, same transaction, same application, and still blocking. Otherwise, and for other
// kinds of blockers, it ends nothing and returns false. It never ends a session of the server
// itself or of a relay.
func (b *Buffer) Terminate(ctx context.Context, h buffer.VacuumBlocker) (ended bool, err error) {
	if h.Kind != buffer.BlockedByTransaction || h.BeganAt.IsZero() {
		return false, nil
	}
	found := false
	err = b.db.RoundTrip(ctx, []pg.Step{pg.ReadTx(b.db.StatementTimeout), {
		SQL:  endSQL,
		Args: []string{pg.Int(int64(h.PID)), pg.Timestamp(h.StartedAt), pg.Timestamp(h.BeganAt), h.Application},
		Row: func(v [][]byte) error {
			found, ended = true, pg.ReadBool(v[0])
			return nil
		},
	}})
	switch {
	case err != nil:
		return false, fmt.Errorf("ending a session: %w", b.db.ConnectError(err))
	case found && !ended:
		return false, errors.New("ending a session: the server could not signal it")
	}
	return ended, nil
}
