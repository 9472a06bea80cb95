package claim

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// A range claim leaves the events as they are: the ledger row has the exact set of ids that were visible. Claims on a
// buffer are made one after the other (see ledger.LockClaiming), each with a snapshot that is later than the lock. So a claim
// sees every batch that was claimed before, and an event that it sees is in a live batch or
// unclaimed: delivered events are deleted in the same transaction as their ledger row.

// Most batches have no gaps. Gaps come from roll-backs and from transactions that are still open; then the ids are
// read once more, in the same snapshot. A range that ends with the highest possible id has no upper bound.
//
// The sequence is read once more, after the snapshot: while a claim waits for the lock, events commit beyond the value
// that it began with, and a cursor that stops there would leave a gap in what this process knows to be claimed.
const rangeSQL = `
WITH` + ledger.HeldSQL + `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, sink, members)
SELECT $7::uuid, $1, 'range', 'leased', 1, clock_timestamp() + $8::interval, $9, 1,
       0, 0, n, first_id, last_id, oldest_at, newest_at, $11,
       CASE WHEN last_id::numeric - first_id < n THEN int8multirange(int8range(first_id, nullif(last_id, 9223372036854775807), '[]'))
            ELSE (SELECT range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) FROM outbox_events
                  WHERE id BETWEEN first_id AND last_id AND group_id IS NULL AND NOT id <@ (SELECT members FROM held) AND ` + ledger.AvailableSQL + `) END
FROM (
  SELECT count(*) AS n, min(id) AS first_id, max(id) AS last_id, min(greatest(created_at, available_at)) AS oldest_at,
         max(created_at) AS newest_at
  FROM (
    SELECT id, created_at, available_at FROM outbox_events
    WHERE id > CASE WHEN $5::boolean THEN $2::bigint ELSE (SELECT upto FROM held) END AND id <= $4::bigint
      AND group_id IS NULL AND NOT id <@ (SELECT members FROM held) AND ` + ledger.AvailableSQL + `
      AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'range' AND routed = ($11 = '*'))
    ORDER BY id LIMIT $6::bigint) picked
) batch WHERE n > 0
RETURNING first_id, last_id, events::bigint, coalesce(pg_sequence_last_value($10::regclass), 0)`

// The batch is read after the lock was released, because a client that stops reading must not hold it. (members +
// '{}' is the same set in one piece: otherwise one with many gaps would be unpacked for each row. Most have no gaps, and need
// no set.)
const rangeEventsSQL = `
WITH l AS MATERIALIZED (
  SELECT first_id, last_id, last_id::numeric - first_id < events AS whole, members + '{}' AS members, newest_at
  FROM outbox_batches WHERE group_id = $1::uuid
)
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at, e.available_at
FROM l JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id AND e.group_id IS NULL AND (l.whole OR e.id <@ l.members) AND e.created_at <= l.newest_at`

// claimRange claims in a range of ids. committed is called when other claims see that these events are taken.
func (c *Claimer) claimRange(
	ctx context.Context, t *ledger.Tables, limit int, lease time.Duration, in watermark.Range, committed func(events int),
) (*buffer.Lease, *Start, error) {
	var (
		groupID     = buffer.NewGroupID()
		rows        = pg.EventDecoder{PayloadOID: t.PayloadOID}
		first, last int64
		claimed     int
		_, known    = c.watermarks.Span()
	)
	rows.Reserve(limit)
	readCtx, reading := ledger.NewReading(ctx, c.base.ReadLimit(lease))
	defer reading.End()
	start, settings, begin := c.Begin(t, lease, func([][]byte) error {
		claimed = 0
		return rows.Reset(nil)
	})
	read := reading.Step(c.base.DB.BatchTx)
	read.Row = func(v [][]byte) error {
		if claimed > 0 {
			committed(claimed)
		}
		return reading.Begin(v)
	}
	err := c.base.DB.Transact(
		readCtx, settings, begin,
		ledger.LockClaiming(t),
		pg.Step{
			Prepare: true, SQL: t.SQL(rangeSQL),
			Args: []string{
				t.Buffer, pg.Int(in.After), pg.Int(known), pg.Int(in.UpTo), pg.Bool(in.Late), pg.Int(int64(limit)),
				groupID.String(), pg.Interval(lease), c.base.Owner, t.Sequence, c.base.ClaimsFor(),
			},
			Row: func(v [][]byte) error {
				first, last, claimed = pg.ReadInt8(v[0]), pg.ReadInt8(v[1]), int(pg.ReadInt8(v[2]))
				start.LastValue = pg.ReadInt8(v[3])
				return nil
			},
		},
		pg.Step{SQL: "COMMIT"},
		pg.Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		read,
		pg.Step{Prepare: true, SQL: t.SQL(rangeEventsSQL), Args: []string{groupID.String()}, Columns: rows.Columns, Row: rows.Append},
	)
	batch := start.Lease(groupID)
	batch.FirstID, batch.LastID = first, last
	cause := reading.Cause(readCtx, err, rows.Fitted())
	switch {
	case cause != nil && claimed > 0:
		listed, err := c.base.List(ctx, t, batch, cause, rows.Fitted())
		return listed, start, err
	case err != nil:
		return nil, nil, err
	case start.Differs(c.base, claimmode.Range) != nil:
		return nil, nil, start.Differs(c.base, claimmode.Range)
	case claimed == 0:
		return nil, start, nil
	}
	return c.base.Complete(&rows, batch), start, nil
}
