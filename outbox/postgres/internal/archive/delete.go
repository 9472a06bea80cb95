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

// sizeSQL reads the catalog and one entry of an index. Partitions count.
const sizeSQL = `
SELECT coalesce(sum(pg_total_relation_size(p.oid)), 0)::bigint,
       CASE WHEN bool_or(p.reltuples >= 0) THEN sum(greatest(p.reltuples, 0)) ELSE -1 END::bigint,
       (SELECT min(archived_at) FROM outbox_archive), clock_timestamp(), $1::text
FROM (SELECT $1::regclass AS relid UNION SELECT relid FROM pg_partition_tree($1::regclass)) tree JOIN pg_class p ON p.oid = tree.relid AND p.relkind <> 'p'`

// Size returns the size of the archive.
func Size(ctx context.Context, base *ledger.Base, t *ledger.Tables) (s buffer.ArchiveSize, err error) {
	name := t.SQL("outbox_archive")
	err = base.DB.Transact(ctx, pg.ReadTx(base.DB.StatementTimeout, "enable_seqscan", "off"), pg.Step{SQL: t.SQL(sizeSQL), Args: []string{name}, Row: func(v [][]byte) error {
		s = buffer.ArchiveSize{Table: name, Bytes: pg.ReadInt8(v[0]), Events: pg.ReadInt8(v[1]), Now: pg.ReadTime(v[3])}
		if v[2] != nil {
			s.Oldest = pg.ReadTime(v[2])
		}
		return nil
	}})
	return s, base.Explain(ctx, "reading the size of the archive", err)
}
