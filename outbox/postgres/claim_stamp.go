package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// A claim is one statement. It picks by the primary key, from the cursor on, so
// that neither dead rows nor wrong statistics matter; FOR UPDATE SKIP LOCKED
// keeps claimers off each other, and after a lock was waited for or a row had
// changed PostgreSQL looks at group_id again. The update finds its rows by id
// and not by ctid: a row that the application touched between snapshot and lock
// has another ctid, and would be in the ledger without its stamp.
//
// It waits for the disk (claimBeginSQL): a claim that a crash forgets after its
// batch was sent would come back under another group_id. And the planner is kept
// to the primary key's order (see pg.PlanByPrimaryKey), whatever the statistics say.
const claimSQL = `
WITH picked AS MATERIALIZED (
  SELECT id, created_at FROM outbox_events
  WHERE id > $3::bigint AND id <= $4::bigint AND group_id IS NULL
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp')
  ORDER BY id LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, count(*), min(id), max(id), min(created_at)
  FROM picked HAVING count(*) > 0
)
UPDATE outbox_events SET group_id = $2::uuid
WHERE id = ANY (ARRAY(SELECT id FROM picked))
RETURNING id, topic, key, payload, headers, created_at`

// stampAtOnce is how many claims of this process stamp at the same time: one reads
// while the other writes. More would walk over the rows that each other has locked,
// for a quarter more of the server's time.
const stampAtOnce = 2

func (b *Buffer) claimStamped(ctx context.Context, t *table, limit int, lease time.Duration, in watermark.Range) (
	batch *buffer.Lease, lastValue int64, err error,
) {
	var (
		groupID  = buffer.NewGroupID()
		rows     = pg.EventDecoder{PayloadOID: t.PayloadOID}
		clock    time.Time
		mode     string
		leaseEnd = time.Now().Add(lease)
	)
	rows.Reserve(limit)
	select {
	case b.stamping <- struct{}{}:
		defer func() { <-b.stamping }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	err = b.db.Transact(
		ctx,
		pg.Step{Prepare: true, SQL: t.SQL(claimBeginSQL), Args: []string{
			t.Sequence, t.Buffer, pg.Milliseconds(b.db.StatementTimeout), b.db.UserTimeout(),
		}, Row: func(v [][]byte) error {
			lastValue, clock, mode = pg.ReadInt8(v[0]), pg.ReadTime(v[1]), string(v[2])
			return rows.Reset(nil)
		}},
		pg.Step{
			Prepare: true, SQL: t.SQL(claimSQL),
			Args: []string{
				t.Buffer, groupID.String(), pg.Int(in.After), pg.Int(in.UpTo), pg.Int(int64(limit)), pg.Interval(lease),
				b.config.Owner,
			},
			Row: rows.Append,
		},
	)
	switch {
	case err != nil:
		return nil, 0, err
	case mode != claimmode.Stamp:
		return nil, 0, modeChanged(mode)
	case len(rows.Events) == 0:
		return nil, lastValue, nil
	}
	return b.base.Complete(&rows, buffer.Lease{
		Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: leaseEnd, UnfinishedLeases: 1,
		ClaimedAt: clock, ClaimedLocal: time.Now(),
	}), lastValue, nil
}
