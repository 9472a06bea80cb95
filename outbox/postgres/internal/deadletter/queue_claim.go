package deadletter

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A claim by stamp, with hook_group_id. Two dead letters of one event are never in one batch, whose
// events differ by id, or by uuid: the older one is claimed first. A later dead letter of a uuid
// has a higher number, so the earlier one is picked first.
const claimSQL = `
WITH picked AS MATERIALIZED (
  SELECT d.event_id, d.group_id, d.died_at, d.event_uuid FROM outbox_dead_letters d
  WHERE d.pipeline = $3 AND d.closed_at IS NULL AND d.notified_at IS NULL AND d.hook_group_id IS NULL
    AND NOT EXISTS (
      SELECT FROM outbox_dead_letters o
      WHERE o.pipeline = $3 AND o.event_id = d.event_id AND o.closed_at IS NULL AND o.notified_at IS NULL
        AND o.hook_group_id IS NULL AND (o.died_at, o.group_id) < (d.died_at, d.group_id))
  ORDER BY d.event_id, d.group_id LIMIT $4::bigint
  FOR UPDATE OF d SKIP LOCKED
), distinct_events AS MATERIALIZED (
  SELECT event_id, group_id, died_at
  FROM (SELECT *, row_number() OVER (PARTITION BY event_uuid ORDER BY event_id) AS n FROM picked) p
  WHERE n = 1 OR event_uuid IS NULL
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $5::interval, $6, 1,
         0, 0, count(*), min(event_id), max(event_id), min(died_at)
  FROM distinct_events HAVING count(*) > 0
)
UPDATE outbox_dead_letters d SET hook_group_id = $2::uuid
FROM distinct_events p WHERE d.pipeline = $3 AND d.event_id = p.event_id AND d.group_id = p.group_id
RETURNING ` + columnsSQL + `, clock_timestamp()`

// Claim implements buffer.Claimer.
func (q *Queue) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	var (
		groupID  = buffer.NewGroupID()
		rows     = newDecoder(q.base, t)
		clock    time.Time
		leaseEnd = time.Now().Add(lease)
	)
	begin := q.base.DB.WriteTx(q.base.DB.StatementTimeout, append([]string{"enable_bitmapscan", "off", "enable_sort", "off"}, pg.PlanByKey...)...)
	begin.Row = rows.Reset
	err = q.base.DB.Transact(ctx, begin, pg.Step{
		SQL: t.SQL(claimSQL),
		Args: []string{
			t.Buffer + suffix, groupID.String(), q.base.Pipeline, pg.Int(int64(limit)), pg.Interval(lease), q.base.Owner,
		},
		Row: func(v [][]byte) error {
			clock = pg.ReadTime(v[14])
			return rows.add(v)
		},
	})
	if err != nil {
		return nil, q.base.Explain(ctx, "claiming dead letters", err)
	}
	if len(rows.Events) == 0 {
		return nil, nil
	}
	batch := q.base.Complete(&rows.EventDecoder, buffer.Lease{
		Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: leaseEnd, UnfinishedLeases: 1,
		ClaimedAt: clock, ClaimedLocal: time.Now(),
	})
	rows.complete(batch)
	return batch, nil
}

const takeOverSQL = ledger.DueSQL + ledger.TakenSQL + `
       ` + columnsSQL + `
FROM taken t
LEFT JOIN outbox_dead_letters d ON d.pipeline = $5 AND d.event_id BETWEEN t.first_id AND t.last_id
  AND d.hook_group_id = t.group_id AND d.notified_at IS NULL`

// TakeOver implements buffer.Claimer.
func (q *Queue) TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error) {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return nil, err
	}
	rows := newDecoder(q.base, t)
	batch, err := ledger.TakeOver(ctx, q.Ledger, t, lease, &rows.EventDecoder, rows.add, []string{"synchronous_commit", "on", "enable_seqscan", "off"},
		takeOverSQL, q.base.Pipeline)
	if batch != nil {
		rows.complete(batch)
	}
	return batch, err
}
