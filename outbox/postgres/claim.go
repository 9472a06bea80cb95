package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"

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

// Claim is described by buffertest.Buffer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*outbox.Batch, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	// Late commits that a sweep has seen come first, they have waited longest;
	// when there is nothing fresh either, it is time for a sweep.
	for _, where := range b.marks.claimRanges() {
		batch, lastValue, err := b.claim(ctx, t, limit, lease, where)
		if err != nil {
			return nil, b.explain(ctx, "claiming a batch", err)
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
       set_config('synchronous_commit', 'on', true), set_config('jit', 'off', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true)
WHERE NOT EXISTS (SELECT FROM outbox_events WHERE false)`

func (b *Buffer) claim(ctx context.Context, t *table, limit int, lease time.Duration, where claimRange) (
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
	err = b.transact(
		ctx,
		step{sql: t.sql(claimBeginSQL), args: []string{t.sequence, t.buffer}, row: func(v [][]byte) error {
			lastValue, clock, mode = int8Of(v[0]), timeOf(v[1]), string(v[2])
			return nil
		}},
		step{
			sql: t.sql(claimSQL),
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
	case mode == "": // its row was lost, with a TRUNCATE for one
		return nil, lastValue, b.register(ctx, t)
	case mode != ClaimStamp:
		return nil, 0, otherMode(t, mode)
	case len(rows.events) == 0:
		return nil, lastValue, nil
	}
	return b.leased(t, outbox.Batch{
		GroupID: groupID, LeaseNo: 1, LeaseEnd: leaseEnd, Starts: 1,
		ClaimedAt: clock, ClaimedLocal: time.Now(),
	}, rows.sorted()), lastValue, nil
}

// leased completes a batch.
func (b *Buffer) leased(t *table, batch outbox.Batch, events []outbox.Event) *outbox.Batch {
	batch.Pipeline = b.config.Pipeline
	batch.PayloadIsJSON = t.payloadIsJSON()
	batch.Events = events
	if len(events) > 0 && batch.FirstID == 0 && batch.LastID == 0 {
		batch.FirstID, batch.LastID = events[0].ID, events[len(events)-1].ID
	}
	return &batch
}

const takeOverSQL = `
WITH due AS (
  SELECT group_id FROM outbox_batches
  WHERE buffer = $1 AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE outbox_batches l
  SET lease_no = lease_no + 1, starts = starts + 1, owner = $4,
      state = CASE state WHEN 'delivered' THEN state ELSE 'leased' END,
      due_at = clock_timestamp() + $3::interval
  FROM due WHERE l.group_id = due.group_id
  RETURNING l.*
)
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at,
       t.group_id, t.lease_no, t.starts, t.attempts, t.outages, t.first_id, t.last_id, t.origins, t.delivered,
       clock_timestamp()
FROM taken t
LEFT JOIN outbox_events e ON e.id BETWEEN t.first_id AND t.last_id AND e.group_id = t.group_id`

// TakeOver is described by buffertest.Buffer.
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration) (*outbox.Batch, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return nil, err
	}
	var (
		rows  = decoder{payloadOID: t.payloadOID}
		batch outbox.Batch
	)
	leaseEnd := time.Now().Add(lease)
	err = b.transact(
		ctx,
		settings("synchronous_commit", "on", "jit", "off", "enable_seqscan", "off"),
		step{
			sql:  t.sql(takeOverSQL),
			args: []string{t.buffer, timestamp(b.marks.dueAfter()), interval(lease), b.config.Owner},
			row: func(v [][]byte) error {
				if batch.LeaseNo == 0 {
					batch = outbox.Batch{
						GroupID: uuid.UUID(v[6]), LeaseNo: int8Of(v[7]),
						Starts: int4Of(v[8]), Attempts: int4Of(v[9]), Outages: int4Of(v[10]),
						FirstID: int8Of(v[11]), LastID: int8Of(v[12]),
						LeaseEnd: leaseEnd, ClaimedAt: timeOf(v[15]), ClaimedLocal: time.Now(),
					}
					arrayOf(v[13], func(id []byte) { batch.Origins = append(batch.Origins, uuid.UUID(id)) })
					arrayOf(v[14], func(id []byte) { batch.Delivered = append(batch.Delivered, int8Of(id)) })
				}
				if v[0] == nil { // its rows are gone
					return nil
				}
				return rows.add(v)
			},
		},
	)
	if err != nil {
		return nil, b.explain(ctx, "taking over a batch", err)
	}
	if batch.LeaseNo == 0 {
		return nil, nil
	}
	return b.leased(t, batch, rows.sorted()), nil
}

const renewSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $4::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state IN ('leased', 'delivered')`

// Renew is described by buffertest.Buffer.
func (b *Buffer) Renew(ctx context.Context, batch *outbox.Batch, lease time.Duration) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	var held int64
	leaseEnd := time.Now().Add(lease)
	err = b.transact(ctx, step{
		sql:      t.sql(renewSQL),
		args:     []string{t.buffer, batch.GroupID.String(), itoa(batch.LeaseNo), interval(lease)},
		affected: &held,
	})
	if err != nil {
		return b.explain(ctx, "renewing a lease", err)
	}
	if held == 0 {
		return outbox.ErrLeaseLost
	}
	batch.LeaseEnd = leaseEnd
	return nil
}
