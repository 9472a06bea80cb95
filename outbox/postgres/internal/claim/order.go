package claim

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// Order by key: a live batch holds the lanes of its keys, and no event in them is claimed meanwhile. A lane is a key's
// hash; two keys in one lane wait for each other, which does no harm.
//
// Claims on a buffer are made one after the other, each with a snapshot that is later than the lock. So a claim sees
// every batch that was claimed before, and everything that committed before an event that it sees. It begins at
// the floor, because the cursor would make it pass over late commits. A delayed event holds up no other: it is claimed when it is
// due and its key is free.
// Up to $4 waiting events are read, in id order. NOT IN over a subquery is a hash, even with wrong statistics. What the
// application has locked is left, and so are picked events of the same keys. The last line counts the
// events that were read in vain.
const orderSQL = orderHeldSQL + `
waits AS MATERIALIZED (
  SELECT id, hashtext(key) AS lane FROM outbox_events
  WHERE id > $3::bigint AND group_id IS NULL AND ` + ledger.AvailableSQL + `
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp key' AND NOT routed)
    AND (SELECT batches FROM unordered) = 0
  ORDER BY id LIMIT $4::bigint
)` + orderPickedSQL

// orderDueSQL claims delayed events that are due ($3), and nothing else: an earlier event of its key may wait.
const orderDueSQL = orderHeldSQL + `
waits AS MATERIALIZED (
  SELECT id, hashtext(key) AS lane FROM outbox_events
  WHERE id = ANY ($3::bigint[]) AND group_id IS NULL AND available_at IS NOT NULL AND ` + ledger.AvailableSQL + `
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp key' AND NOT routed)
    AND (SELECT batches FROM unordered) = 0
  ORDER BY id LIMIT $4::bigint
)` + orderPickedSQL

const orderHeldSQL = `
WITH held AS MATERIALIZED (
  SELECT DISTINCT unnest(lanes) AS lane FROM outbox_batches WHERE buffer = $1
), unordered AS MATERIALIZED (
  SELECT count(*) AS batches FROM outbox_batches WHERE buffer = $1 AND lanes IS NULL
),`

const orderPickedSQL = `, picked AS MATERIALIZED (
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
  RETURNING id, key, greatest(created_at, available_at) AS created_at, group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, lanes)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, CASE WHEN count(*) = (SELECT count(*) FROM free) THEN count(*) END, min(id), max(id), min(created_at),
         ARRAY(SELECT DISTINCT hashtext(key) FROM stamped WHERE key IS NOT NULL)
  FROM stamped WHERE group_id = $2::uuid HAVING EXISTS (SELECT FROM free)
)
SELECT (SELECT count(*) FROM stamped), (SELECT batches FROM unordered),
       CASE WHEN EXISTS (SELECT FROM picked) THEN 0 ELSE (SELECT count(*) FROM waits) END`

// The batch is read after the lock was released; see rangeEventsSQL.
const stampedEventsSQL = `
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at, e.available_at
FROM outbox_batches l
JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id AND e.group_id = l.group_id
WHERE l.group_id = $1::uuid`

// claimInOrder claims for `order: key`.
func (c *Claimer) claimInOrder(ctx context.Context, t *ledger.Tables, limit int, lease time.Duration) (batch *buffer.Lease, err error) {
	claimDue := func(r watermark.Range) (batch *buffer.Lease, err error) {
		batch, _, err = c.claimWithin(ctx, t, limit, lease, dueSpan, r)
		return batch, err
	}
	look := c.lookForDue(ctx, t, limit)
	if c.watermarks.LookAgain() {
		if err := look(); err != nil {
			return nil, err
		}
	}
	if batch, _, err = c.firstDue(claimDue); batch != nil || err != nil {
		return batch, err
	}
	err = c.window.Scan(limit, func(size int) (found bool, seen int, err error) {
		batch, seen, err = c.claimWithin(ctx, t, limit, lease, size, watermark.Range{After: c.watermarks.OrderedFrom(), UpTo: math.MaxInt64})
		return batch != nil, seen, err
	})
	if batch != nil || err != nil {
		return batch, err
	}
	return c.restDue(claimDue, look)
}

// dueSpan is how many rows a claim of delayed events that are due reads.
const dueSpan = 20_000

// claimWithin reads no more than size waiting events in a range. If it claims none, seen is how many it read.
func (c *Claimer) claimWithin(ctx context.Context, t *ledger.Tables, limit int, lease time.Duration, size int, in watermark.Range) (
	batch *buffer.Lease, seen int, err error,
) {
	var (
		groupID            = buffer.NewGroupID()
		rows               = pg.EventDecoder{PayloadOID: t.PayloadOID}
		stamped, unordered int64
		sql                = orderSQL
		args               = []string{t.Buffer, groupID.String(), pg.Int(in.After), pg.Int(int64(size)), pg.Int(int64(limit)), pg.Interval(lease), c.base.Owner}
	)
	switch {
	case c.base.Sinks != nil:
		sql, args = orderRoutedSQL, append(args, pg.Int(in.UpTo), pg.Bool(in.Due))
	case in.Due:
		sql, args[2] = orderDueSQL, pg.IDArray(in.IDs)
	}
	rows.Reserve(limit)
	readCtx, reading := ledger.NewReading(ctx, c.base.ReadLimit(lease))
	defer reading.End()
	start, settings, begin := c.Begin(t, lease, rows.Reset)
	begin.Prepare = false
	err = c.base.DB.Transact(
		readCtx, settings, begin,
		ledger.LockClaiming(t),
		pg.Step{
			SQL: t.SQL(sql), Args: args,
			Row: func(v [][]byte) error {
				stamped, unordered, seen = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]), int(pg.ReadInt8(v[2]))
				return nil
			},
		},
		pg.Step{SQL: "COMMIT"},
		pg.Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		reading.Step(c.base.DB.WriteTx, "enable_seqscan", "off"),
		pg.Step{SQL: t.SQL(stampedEventsSQL), Args: []string{groupID.String()}, Columns: rows.Columns, Row: rows.Append},
	)
	cause := reading.Cause(readCtx, err, rows.Fitted())
	switch {
	case cause != nil && stamped > 0:
		if batch, err = c.base.List(ctx, t, start.Lease(groupID), cause, rows.Fitted()); err != nil {
			return nil, 0, err
		}
	case err != nil:
		return nil, 0, err
	case start.Differs(c.base, claimmode.StampKey) != nil:
		return nil, 0, start.Differs(c.base, claimmode.StampKey)
	case unordered > 0: // their keys are unknown
		return nil, 0, fmt.Errorf("%w: batches of buffer %s were claimed by a relay without order: key (%d of them); claiming resumes when they are done. Stop that relay",
			buffer.ErrNotReady, t.Buffer, unordered)
	}
	if stamped > 0 && batch == nil {
		batch = c.base.Complete(&rows, start.Lease(groupID))
	}
	if in.Due {
		c.watermarks.Claimed(in, batch, start.Sequence)
		return batch, seen, nil
	}
	if c.watermarks.ClaimedInOrder(in.After, batch, start.Sequence) && batch == nil && in.After > 0 {
		in.After = c.watermarks.OrderedFrom()
		return c.claimWithin(ctx, t, limit, lease, size, in)
	}
	return batch, seen, nil
}
