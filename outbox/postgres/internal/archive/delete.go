package archive

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	// tryFlagSQL sets a flag for the statement after it, in the same round trip, unless another relay deletes: two would wait for each other's rows.
	tryFlagSQL = `
SELECT set_config('relay.deletes', pg_try_advisory_xact_lock(hashtextextended('relay archive retention ' || $1, 0))::int::text, true)`

	// A row of the archive never changes, so its place is enough to find it: no index is searched again. What another transaction has deleted meanwhile is
	// passed over. The subquery is one value, which the index is searched with; clock_timestamp() alone would be compared row by row.
	deleteSQL = `
WITH gone AS (
  DELETE FROM outbox_archive
  WHERE current_setting('relay.deletes') = '1' AND ctid = ANY (ARRAY(
    SELECT ctid FROM outbox_archive
    WHERE archived_at >= $1::timestamptz AND archived_at < (SELECT clock_timestamp() - $2::interval)
    ORDER BY archived_at LIMIT $3::bigint))
  RETURNING archived_at
)
SELECT count(*), max(archived_at) FROM gone`
)

// planInOrder makes the planner walk the index of archived_at, whatever its statistics are.
var planInOrder = []string{"enable_seqscan", "off", "enable_bitmapscan", "off", "enable_sort", "off", "enable_incremental_sort", "off", "lock_timeout", "1000"}

// Delete deletes the oldest events of the archive; see buffer.Retention.
func Delete(ctx context.Context, base *ledger.Base, t *ledger.Tables, keep time.Duration, from time.Time, limit int) (done buffer.DeletedArchived, err error) {
	const doing = "deleting old events of the archive"
	if t.ArchiveMaintain != "" {
		if limit == 0 {
			return done, mayMaintain(ctx, base, t)
		}
		done, err = maintain(ctx, base, t, keep)
		return done, base.Explain(ctx, doing, err)
	}
	if _, err := begin(ctx, base, t); err != nil {
		return done, err
	}
	if err := mayDelete(ctx, base, t); err != nil {
		return done, err
	}
	var mine bool
	write := base.DB.WriteTx(pg.BulkTimeout, planInOrder...)
	write.Row = func([][]byte) error {
		done, mine = buffer.DeletedArchived{Next: from}, false
		return nil
	}
	err = base.DB.Transact(ctx, write,
		pg.Step{SQL: tryFlagSQL, Args: []string{t.Buffer}, Row: func(v [][]byte) error {
			mine = string(v[0]) == "1"
			return nil
		}},
		pg.Step{SQL: t.SQL(deleteSQL), Args: []string{pg.Timestamp(from), pg.Interval(keep), pg.Int(int64(limit))}, Row: func(v [][]byte) error {
			if done.Events = pg.ReadInt8(v[0]); v[1] != nil {
				done.Next = pg.ReadTime(v[1])
			}
			return nil
		}})
	done.More = mine && done.Events == int64(limit)
	return done, base.Explain(ctx, doing, err)
}

const mayDeleteSQL = `
SELECT has_table_privilege($1::regclass, 'DELETE'), quote_ident(current_user)`

// mayDelete returns a buffer.ErrNotReady if the role may not delete from the archive. Only keeping events for a time needs that, so Check does not require it.
func mayDelete(ctx context.Context, base *ledger.Base, t *ledger.Tables) error {
	var (
		may  bool
		role string
		name = t.SQL("outbox_archive")
	)
	err := base.DB.Transact(ctx, pg.ReadTx(base.DB.StatementTimeout), pg.Step{SQL: mayDeleteSQL, Args: []string{name}, Row: func(v [][]byte) error {
		may, role = pg.ReadBool(v[0]), string(v[1])
		return nil
	}})
	if err == nil && !may {
		return fmt.Errorf("%w: role %s may not DELETE on table %s: GRANT DELETE ON %s TO %s", buffer.ErrNotReady, role, name, name, role)
	}
	return base.Explain(ctx, "examining the archive", err)
}

// maintainSQL calls the function that makes and drops partitions; see archive_maintain.sql.
const (
	maintainSettingSQL = `
SELECT set_config('relay.archive_keep', $1, true)`

	mayMaintainSQL = `
SELECT p.oid IS NOT NULL, coalesce(has_function_privilege(p.oid, 'EXECUTE'), false), quote_ident(current_user) FROM (SELECT to_regprocedure($1 || '()') AS oid) p`
)

// mayMaintain returns a buffer.ErrNotReady if the function is missing, or the role may not call it.
func mayMaintain(ctx context.Context, base *ledger.Base, t *ledger.Tables) error {
	var (
		exists, may bool
		role        string
	)
	err := base.DB.Transact(ctx, pg.ReadTx(base.DB.StatementTimeout), pg.Step{SQL: mayMaintainSQL, Args: []string{t.ArchiveMaintain}, Row: func(v [][]byte) error {
		exists, may, role = pg.ReadBool(v[0]), pg.ReadBool(v[1]), string(v[2])
		return nil
	}})
	switch {
	case err != nil:
		return base.Explain(ctx, "examining the archive", err)
	case !exists:
		return fmt.Errorf("%w: the archive %s has partitions, and no function %s() that makes and drops them: set archive.partition: day and run relay migrate, or drop them yourself and remove archive.keep",
			buffer.ErrNotReady, t.SQL("outbox_archive"), t.ArchiveMaintain)
	case !may:
		return fmt.Errorf("%w: role %s may not EXECUTE function %s: GRANT EXECUTE ON FUNCTION %s() TO %s", buffer.ErrNotReady, role, t.ArchiveMaintain, t.ArchiveMaintain, role)
	}
	return nil
}

// maintain makes the partitions of the next days, drops one that is old, and deletes old events that are in none.
func maintain(ctx context.Context, base *ledger.Base, t *ledger.Tables, keep time.Duration) (done buffer.DeletedArchived, err error) {
	if err := mayMaintain(ctx, base, t); err != nil {
		return done, err
	}
	err = base.DB.Transact(ctx, base.DB.WriteTx(pg.BulkTimeout),
		pg.Step{SQL: maintainSettingSQL, Args: []string{pg.Interval(keep)}},
		pg.Step{SQL: "SELECT " + t.ArchiveMaintain + "()", Row: func(v [][]byte) error {
			var made int
			var more string
			done = buffer.DeletedArchived{}
			_, err := fmt.Sscan(string(v[0]), &made, &done.Partitions, &done.Events, &more)
			done.More = more == "t"
			return err
		}})
	return done, err
}

// sizeSQL reads the catalog and one entry of an index. Partitions count.
const sizeSQL = `
SELECT coalesce(sum(pg_total_relation_size(p.oid)), 0)::bigint,
       CASE WHEN bool_or(p.reltuples >= 0) THEN sum(greatest(p.reltuples, 0)) ELSE -1 END::bigint,
       (SELECT min(archived_at) FROM outbox_archive), clock_timestamp(),
       count(*) FILTER (WHERE p.relispartition AND p.oid IS DISTINCT FROM d.partdefid),
       coalesce(sum(pg_relation_size(p.oid)) FILTER (WHERE p.oid = d.partdefid), 0)::bigint
FROM (SELECT $1::regclass AS relid UNION SELECT relid FROM pg_partition_tree($1::regclass)) tree JOIN pg_class p ON p.oid = tree.relid AND p.relkind <> 'p'
     LEFT JOIN pg_partitioned_table d ON d.partrelid = $1::regclass`

// Size returns the size of the archive.
func Size(ctx context.Context, base *ledger.Base, t *ledger.Tables) (s buffer.ArchiveSize, err error) {
	name := t.SQL("outbox_archive")
	err = base.DB.Transact(ctx, pg.ReadTx(base.DB.StatementTimeout, "enable_seqscan", "off"), pg.Step{SQL: t.SQL(sizeSQL), Args: []string{name}, Row: func(v [][]byte) error {
		s = buffer.ArchiveSize{Table: name, Bytes: pg.ReadInt8(v[0]), Events: pg.ReadInt8(v[1]), Now: pg.ReadTime(v[3]), Partitions: int(pg.ReadInt8(v[4])), DefaultBytes: pg.ReadInt8(v[5])}
		if v[2] != nil {
			s.Oldest = pg.ReadTime(v[2])
		}
		return nil
	}})
	return s, base.Explain(ctx, "reading the size of the archive", err)
}
