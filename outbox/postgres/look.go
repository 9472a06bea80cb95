package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// The last value is read by a statement of its own, before the one that looks:
// see package watermark. It also keeps the planner to the primary key's order (see pg.PlanByPrimaryKey),
// and locks the table before the sequence (see claimBeginSQL).
const lastValueSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0),
       set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('statement_timeout', $2, true), set_config('lock_timeout', $3, true),
       set_config('idle_in_transaction_session_timeout', '30000', true)
WHERE NOT EXISTS (SELECT FROM outbox_events WHERE false)`

// Every count is bounded, and every scan begins at a mark.
const lookSQL = `
WITH` + heldSQL + `
SELECT
  (SELECT count(*) FROM (
     SELECT FROM outbox_events WHERE id > greatest($8::bigint, (SELECT upto FROM held))
       AND group_id IS NULL AND NOT id <@ (SELECT members FROM held)
     ORDER BY id LIMIT $4::bigint) fresh),
  (SELECT count(*) FROM (
     SELECT FROM outbox_events WHERE id > $2::bigint AND id <= $9::bigint
       AND group_id IS NULL AND NOT id <@ (SELECT members FROM held)
     ORDER BY id LIMIT $4::bigint) late),
  CASE WHEN $6::boolean THEN (
     SELECT array_agg(virtualtransaction) FROM pg_locks
     WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = $7::regclass
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) END,
  clock.now,
  count(*) FILTER (WHERE due_at <= clock.now),
  count(*) FILTER (WHERE state = 'waiting'),
  count(*) FILTER (WHERE state = 'delivered'),
  min(due_at)
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN outbox_batches ON buffer = $1 AND due_at > $5::timestamptz
GROUP BY clock.now`

// CountBacklog is described by buffertest.Buffer.
func (b *Buffer) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return buffer.Backlog{}, err
	}
	began := time.Now()
	r := b.watermarks.NextCount(began, limit)
	var (
		count   watermark.Count
		backlog buffer.Backlog
	)
	err = b.db.RoundTrip(ctx, []pg.Step{
		{SQL: t.sql(lastValueSQL), Args: []string{t.sequence, pg.Milliseconds(b.db.StatementTimeout), pg.Milliseconds(b.db.StatementTimeout * 2 / 3)}, Row: func(v [][]byte) error {
			count.LastValue = pg.ReadInt8(v[0])
			return nil
		}},
		{
			SQL: t.either(lookSQL, lookOwnSQL),
			Args: []string{
				t.buffer, pg.Int(r.LateAfter), pg.Int(r.LastValue), pg.Int(int64(limit)), pg.Timestamp(r.DueAfter),
				pg.Bool(r.Sweep), t.sequence, pg.Int(r.Cursor), pg.Int(r.LateUpTo),
			},
			Row: func(v [][]byte) error {
				count.Fresh, count.Late = int(pg.ReadInt8(v[0])), int(pg.ReadInt8(v[1]))
				pg.ReadArray(v[2], func(holder []byte) { count.Holders = append(count.Holders, string(holder)) })
				count.Now = pg.ReadTime(v[3])
				backlog.Due, backlog.Waiting, backlog.Delivered = int(pg.ReadInt8(v[4])), int(pg.ReadInt8(v[5])), int(pg.ReadInt8(v[6]))
				if v[7] != nil {
					count.OldestDue = pg.ReadTime(v[7])
				}
				return nil
			},
		},
	})
	if err != nil {
		return buffer.Backlog{}, b.explain(ctx, "counting events", err)
	}
	now := time.Now()
	count.Took = now.Sub(began)
	b.watermarks.Counted(r, count, now)
	backlog.Unclaimed = min(limit, count.Fresh+count.Late)
	if b.config.Ordered && backlog.Due > 0 {
		if backlog.Due, err = b.countDue(ctx, t); err != nil {
			return buffer.Backlog{}, b.explain(ctx, "counting batches", err)
		}
	}
	if limit == 0 {
		return backlog, nil
	}
	late, orphans, err := b.fullSweep(ctx, t, limit, backlog.Unclaimed == limit)
	if err != nil {
		return buffer.Backlog{}, b.explain(ctx, "sweeping", err)
	}
	backlog.Unclaimed = min(limit, backlog.Unclaimed+late)
	backlog.Due += orphans
	if floor, ok := b.watermarks.FloorToStore(now); ok {
		return backlog, b.storeFloor(ctx, t, floor)
	}
	return backlog, nil
}

const storeFloorSQL = `
UPDATE outbox_buffers SET floor = $2::bigint WHERE buffer = $1`

func (b *Buffer) storeFloor(ctx context.Context, t *table, floor int64) error {
	err := b.db.Transact(ctx, b.db.WriteTx(b.db.StatementTimeout, "synchronous_commit", "off"),
		pg.Step{SQL: t.sql(storeFloorSQL), Args: []string{t.buffer, pg.Int(floor)}})
	return b.explain(ctx, "writing down the floor", err)
}
