package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// The last value is read by a statement of its own, before the one that looks:
// see marks. It also keeps the planner to the primary key's order (see inOrder),
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

// Look is described by buffertest.Buffer.
func (b *Buffer) Look(ctx context.Context, limit int) (outbox.Backlog, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return outbox.Backlog{}, err
	}
	began := time.Now()
	r := b.marks.nextLook(began, limit)
	var (
		seen    looked
		backlog outbox.Backlog
	)
	err = b.roundTrip(ctx, []step{
		{sql: t.sql(lastValueSQL), args: []string{t.sequence, milliseconds(b.patience), milliseconds(b.patience * 2 / 3)}, row: func(v [][]byte) error {
			seen.lastValue = int8Of(v[0])
			return nil
		}},
		{
			sql: t.either(lookSQL, lookOwnSQL),
			args: []string{
				t.buffer, itoa(r.lateAfter), itoa(r.lastValue), itoa(int64(limit)), timestamp(r.dueAfter),
				boolean(r.sweep), t.sequence, itoa(r.cursor), itoa(r.lateUpTo),
			},
			row: func(v [][]byte) error {
				seen.fresh, seen.late = int(int8Of(v[0])), int(int8Of(v[1]))
				arrayOf(v[2], func(holder []byte) { seen.holders = append(seen.holders, string(holder)) })
				seen.now = timeOf(v[3])
				backlog.Due, backlog.Waiting, backlog.Delivered = int(int8Of(v[4])), int(int8Of(v[5])), int(int8Of(v[6]))
				if v[7] != nil {
					seen.oldestDue = timeOf(v[7])
				}
				return nil
			},
		},
	})
	if err != nil {
		return outbox.Backlog{}, b.explain(ctx, "counting events", err)
	}
	now := time.Now()
	seen.took = now.Sub(began)
	b.marks.saw(r, seen, now)
	backlog.Unclaimed = min(limit, seen.fresh+seen.late)
	if b.config.Ordered && backlog.Due > 0 {
		if backlog.Due, err = b.countDue(ctx, t); err != nil {
			return outbox.Backlog{}, b.explain(ctx, "counting batches", err)
		}
	}
	if limit == 0 {
		return backlog, nil
	}
	late, orphans, err := b.fullSweep(ctx, t, limit, backlog.Unclaimed == limit)
	if err != nil {
		return outbox.Backlog{}, b.explain(ctx, "sweeping", err)
	}
	backlog.Unclaimed = min(limit, backlog.Unclaimed+late)
	backlog.Due += orphans
	if floor, ok := b.marks.floorToStore(now); ok {
		return backlog, b.storeFloor(ctx, t, floor)
	}
	return backlog, nil
}

const storeFloorSQL = `
UPDATE outbox_buffers SET floor = $2::bigint WHERE buffer = $1`

func (b *Buffer) storeFloor(ctx context.Context, t *table, floor int64) error {
	err := b.transact(ctx, t.writing(b.patience, "synchronous_commit", "off"),
		step{sql: t.sql(storeFloorSQL), args: []string{t.buffer, itoa(floor)}})
	return b.explain(ctx, "writing down the floor", err)
}

// timestamp is t as PostgreSQL reads it; the zero time is as old as can be.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return "-infinity"
	}
	return t.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
}

func boolean(v bool) string {
	if v {
		return "t"
	}
	return "f"
}
