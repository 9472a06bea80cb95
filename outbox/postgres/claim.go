package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
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
// to the primary key's order (see inOrder), whatever the statistics say.
const claimSQL = `
WITH picked AS MATERIALIZED (
  SELECT id, created_at FROM outbox_events
  WHERE id > $3::bigint AND id <= $4::bigint AND group_id IS NULL
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp')
  ORDER BY id LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, starts,
                              attempts, outages, events, first_id, last_id, oldest_at)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, count(*), min(id), max(id), min(created_at)
  FROM picked HAVING count(*) > 0
)
UPDATE outbox_events SET group_id = $2::uuid
WHERE id = ANY (ARRAY(SELECT id FROM picked))
RETURNING id, topic, key, payload, headers, created_at`

// claimWhere claims in a range of ids. lastValue is the sequence's, read before it
// looked. The error is storedMode when another mode is stored.
type claimWhere func(ctx context.Context, t *table, limit int, lease time.Duration, where claimRange) (
	batch *outbox.Batch, lastValue int64, err error)

// claimAcross claims in one range after the other. Late commits that a sweep has seen
// come first, they have waited longest; when there is nothing fresh either, it is time
// for a sweep.
func (b *Buffer) claimAcross(
	ctx context.Context, t *table, limit int, lease time.Duration, claim claimWhere,
) (*outbox.Batch, error) {
	for _, where := range b.marks.claimRanges() {
		batch, lastValue, err := claim(ctx, t, limit, lease, where)
		if err != nil {
			return nil, err
		}
		b.marks.claimed(where, batch, lastValue)
		if batch != nil {
			return batch, nil
		}
	}
	return nil, nil
}

// claimBeginSQL reads the sequence before the claim's own snapshot is taken. Reading
// it locks it, and TRUNCATE ... RESTART IDENTITY locks table and sequence in this
// order: naming the table here does so too, and neither deadlocks with the other.
const claimBeginSQL = `
SELECT coalesce(pg_sequence_last_value($1::regclass), 0), clock_timestamp(),
       (SELECT claim FROM outbox_buffers WHERE buffer = $2),
       set_config('synchronous_commit', 'on', true), set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('statement_timeout', $3, true), set_config('lock_timeout', ($3::int * 2 / 3)::text, true),
       set_config('idle_in_transaction_session_timeout', '30000', true),
       set_config('tcp_keepalives_idle', '15', true), set_config('tcp_keepalives_interval', '5', true),
       set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', $4, true)
WHERE NOT EXISTS (SELECT FROM outbox_events WHERE false)`

// stampAtOnce is how many claims of this process stamp at the same time: one reads
// while the other writes. More would walk over the rows that each other has locked,
// for a quarter more of the server's time.
const stampAtOnce = 2

func (b *Buffer) claimStamped(ctx context.Context, t *table, limit int, lease time.Duration, where claimRange) (
	batch *outbox.Batch, lastValue int64, err error,
) {
	var (
		groupID  = outbox.NewGroupID()
		rows     = decoder{payloadOID: t.payloadOID}
		clock    time.Time
		mode     string
		leaseEnd = time.Now().Add(lease)
	)
	rows.reserve(limit)
	select {
	case b.stamping <- struct{}{}:
		defer func() { <-b.stamping }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	err = b.transact(
		ctx,
		step{often: true, sql: t.sql(claimBeginSQL), args: []string{
			t.sequence, t.buffer, milliseconds(b.patience), t.userTimeout,
		}, row: func(v [][]byte) error {
			lastValue, clock, mode = int8Of(v[0]), timeOf(v[1]), string(v[2])
			return rows.forget(nil)
		}},
		step{
			often: true, sql: t.sql(claimSQL),
			args: []string{
				t.buffer, groupID.String(), itoa(where.after), itoa(where.upTo), itoa(int64(limit)), interval(lease),
				b.config.Owner,
			},
			row: rows.add,
		},
	)
	switch {
	case err != nil:
		return nil, 0, err
	case mode != claimStamp:
		return nil, 0, storedMode(mode)
	case len(rows.events) == 0:
		return nil, lastValue, nil
	}
	return b.leased(&rows, outbox.Batch{
		GroupID: groupID, LeaseNo: 1, LeaseEnd: leaseEnd, Starts: 1,
		ClaimedAt: clock, ClaimedLocal: time.Now(),
	}), lastValue, nil
}

// leased completes a batch.
func (b *Buffer) leased(rows *decoder, batch outbox.Batch) *outbox.Batch {
	events := rows.sorted()
	batch.Pipeline = b.config.Pipeline
	batch.PayloadIsJSON = isJSON(rows.payloadOID)
	batch.Events = events
	if len(events) > 0 && batch.FirstID == 0 && batch.LastID == 0 {
		batch.FirstID, batch.LastID = events[0].ID, events[len(events)-1].ID
	}
	return &batch
}
