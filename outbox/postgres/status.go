package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The ledger says exactly what is claimed; what is not is counted from the floor
// on, to buffer.PendingExact and no further.
const statusSQL = `
WITH` + heldSQL + `, ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint AS claimed,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at
  FROM outbox_batches WHERE buffer = $1
), fresh AS (
  SELECT count(*) AS events, min(created_at) FILTER (WHERE isfinite(created_at)) AS oldest_at FROM (
    SELECT created_at FROM outbox_events
    WHERE id > $2::bigint AND group_id IS NULL AND NOT id <@ (SELECT members FROM held)
    ORDER BY id LIMIT $6::bigint) counted
)
SELECT leased, waiting, delivered, claimed, fresh.events,
       coalesce(extract(epoch FROM clock_timestamp() - least(ledger.oldest_at, fresh.oldest_at)) * 1000000, 0)::bigint,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $4 AND closed_at IS NULL),
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) * 1000000, 0)::bigint
        FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'),
       greatest((SELECT reltuples FROM pg_class WHERE oid = $5::regclass), 0)::bigint,
       $3::bigint - $2::bigint,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $4 AND closed_at IS NULL AND notified_at IS NULL)
FROM ledger, fresh`

// Status is described by buffertest.Buffer.
func (b *Buffer) Status(ctx context.Context) (buffer.Status, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return buffer.Status{}, err
	}
	var s buffer.Status
	floor, lastValue := b.watermarks.Span()
	err = b.db.Transact(ctx,
		pg.ReadTx(b.db.StatementTimeout, pg.PlanByPrimaryKey...),
		pg.Step{
			SQL: t.either(statusSQL, statusOwnSQL),
			Args: []string{
				t.buffer, pg.Int(floor), pg.Int(lastValue), b.config.Pipeline, t.events, pg.Int(buffer.PendingExact + 1),
			},
			Row: func(v [][]byte) error {
				s.Leased, s.Waiting, s.Delivered = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]), pg.ReadInt8(v[2])
				claimed, fresh := pg.ReadInt8(v[3]), pg.ReadInt8(v[4])
				if fresh > buffer.PendingExact {
					// The statistics' count of rows, or the ids drawn since the
					// floor, whichever is nearer to what was seen.
					fresh = max(fresh, min(pg.ReadInt8(v[8]), pg.ReadInt8(v[9])))
				}
				s.Pending = claimed + fresh
				s.OldestPending = max(0, time.Duration(pg.ReadInt8(v[5]))*time.Microsecond)
				s.Dead, s.Unnotified = pg.ReadInt8(v[6]), pg.ReadInt8(v[10])
				s.OldestTransaction = max(0, time.Duration(pg.ReadInt8(v[7]))*time.Microsecond)
				return nil
			},
		},
	)
	if err != nil {
		return buffer.Status{}, b.explain(ctx, "reading the status", err)
	}
	return s, nil
}
