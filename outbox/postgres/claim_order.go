package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Order is kept by key: a live batch holds its keys' lanes, and nothing of theirs is
// claimed while it lives. A lane is a key's hash: two keys in one lane wait for each
// other, and no harm is done.
//
// Claims on a buffer are made one after the other, each with a snapshot that is later
// than the lock. So it sees every batch that was claimed before it, and whatever
// committed before an event that it sees; it begins at the floor, where the cursor
// would have it pass over those that committed late.
const claimLockSQL = `
SELECT pg_advisory_xact_lock(hashtextextended('relay claims ' || $1, 0))`

// Of the events that wait, up to $4 are looked at, in id order; CTEs are read as far
// as they are asked for. NOT IN over a subquery is a hash, whatever the statistics
// say. What the application has locked is left where it is, and so is whatever of the
// same keys was picked. The last line counts what was looked at in vain.
const claimInOrderSQL = `
WITH held AS MATERIALIZED (
  SELECT DISTINCT unnest(lanes) AS lane FROM outbox_batches WHERE buffer = $1
), unordered AS MATERIALIZED (
  SELECT count(*) AS batches FROM outbox_batches WHERE buffer = $1 AND lanes IS NULL
), waits AS MATERIALIZED (
  SELECT id, hashtext(key) AS lane FROM outbox_events
  WHERE id > $3::bigint AND group_id IS NULL
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp key')
    AND (SELECT batches FROM unordered) = 0
  ORDER BY id LIMIT $4::bigint
), picked AS MATERIALIZED (
  SELECT id, lane FROM waits WHERE lane IS NULL OR lane NOT IN (SELECT lane FROM held)
  LIMIT $5::bigint
), locked AS MATERIALIZED (
  SELECT id FROM outbox_events
  WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND group_id IS NULL
  ORDER BY id
  FOR UPDATE SKIP LOCKED
), free AS MATERIALIZED (
  SELECT id FROM picked
  WHERE id IN (SELECT id FROM locked) AND (lane IS NULL OR lane NOT IN (
    SELECT lane FROM picked WHERE lane IS NOT NULL AND id NOT IN (SELECT id FROM locked)))
), stamped AS (
  UPDATE outbox_events SET group_id = $2::uuid
  WHERE id = ANY (ARRAY(SELECT id FROM free))
  RETURNING id, key, created_at
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, lanes)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, count(*), min(id), max(id), min(created_at),
         ARRAY(SELECT DISTINCT hashtext(key) FROM stamped WHERE key IS NOT NULL)
  FROM stamped HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM stamped), (SELECT batches FROM unordered),
       CASE WHEN EXISTS (SELECT FROM picked) THEN 0 ELSE (SELECT count(*) FROM waits) END`

// The batch is read when the lock was given back: a client that stops reading must
// not sit on it.
const claimedSQL = `
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at
FROM outbox_batches l
JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id AND e.group_id = l.group_id
WHERE l.group_id = $1::uuid`

// claimInOrder is Claim for `order: key`.
func (b *Buffer) claimInOrder(ctx context.Context, t *table, limit int, lease time.Duration) (batch *buffer.Lease, err error) {
	err = b.window.Scan(limit, func(size int) (found bool, seen int, err error) {
		batch, seen, err = b.claimWithin(ctx, t, limit, lease, size)
		return batch != nil, seen, err
	})
	return batch, err
}

// claimWithin looks at no more than size waiting events. If it claims none, seen is how many it looked at.
func (b *Buffer) claimWithin(ctx context.Context, t *table, limit int, lease time.Duration, size int) (
	batch *buffer.Lease, seen int, err error,
) {
	var (
		groupID            = buffer.NewGroupID()
		rows               = pg.EventDecoder{PayloadOID: t.PayloadOID}
		clock              time.Time
		mode               string
		lastValue          int64
		stamped, unordered int64
		from               = b.watermarks.OrderedFrom()
		leaseEnd           = time.Now().Add(lease)
	)
	rows.Reserve(limit)
	err = b.db.Transact(
		ctx,
		pg.Step{SQL: t.SQL(claimBeginSQL), Args: []string{
			t.Sequence, t.Buffer, pg.Milliseconds(b.db.StatementTimeout), b.db.UserTimeout(),
		}, Row: func(v [][]byte) error {
			lastValue, clock, mode = pg.ReadInt8(v[0]), pg.ReadTime(v[1]), string(v[2])
			return rows.Reset(nil)
		}},
		pg.Step{SQL: claimLockSQL, Args: []string{t.Buffer}},
		pg.Step{
			SQL: t.SQL(claimInOrderSQL),
			Args: []string{
				t.Buffer, groupID.String(), pg.Int(from), pg.Int(int64(size)), pg.Int(int64(limit)), pg.Interval(lease), b.config.Owner,
			},
			Row: func(v [][]byte) error {
				stamped, unordered, seen = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]), int(pg.ReadInt8(v[2]))
				return nil
			},
		},
		pg.Step{SQL: "COMMIT"},
		pg.Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		b.db.WriteTx(b.db.StatementTimeout, "enable_seqscan", "off"),
		pg.Step{SQL: t.SQL(claimedSQL), Args: []string{groupID.String()}, Row: rows.Append},
	)
	switch {
	case err != nil:
		return nil, 0, err
	case mode != claimmode.StampKey:
		return nil, 0, modeChanged(mode)
	case unordered > 0:
		return nil, 0, errUnorderedBatches(t, unordered)
	}
	if stamped > 0 {
		batch = b.base.Complete(&rows, buffer.Lease{
			Batch: buffer.Batch{GroupID: groupID}, LeaseNo: 1, Ends: leaseEnd, UnfinishedLeases: 1,
			ClaimedAt: clock, ClaimedLocal: time.Now(),
		})
	}
	b.watermarks.ClaimedInOrder(from, batch, lastValue)
	return batch, seen, nil
}
