package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// A range claim leaves the events as they are: what a batch holds is said by its
// ledger row, as the exact set of ids that could be seen. Claims on a buffer are made
// one after the other (see claimLockSQL), each with a snapshot that is later than the
// lock. So it sees every batch that was claimed before it, and an event that it can
// see is in a live batch, or nobody's: what was delivered goes in the same transaction
// as its ledger row.

// Most batches have no gaps. Those that do have theirs from roll-backs and from
// transactions that were still open, and are looked at once more, by the same snapshot.
// A range has no end beyond the highest id there can be.
const claimRangeSQL = `
WITH` + ledger.HeldSQL + `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, members)
SELECT $7::uuid, $1, 'range', 'leased', 1, clock_timestamp() + $8::interval, $9, 1,
       0, 0, n, first_id, last_id, oldest_at,
       CASE WHEN last_id::numeric - first_id < n THEN int8multirange(int8range(first_id, nullif(last_id, 9223372036854775807), '[]'))
            ELSE (SELECT range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) FROM outbox_events
                  WHERE id BETWEEN first_id AND last_id AND group_id IS NULL AND NOT id <@ (SELECT members FROM held)) END
FROM (
  SELECT count(*) AS n, min(id) AS first_id, max(id) AS last_id, min(created_at) AS oldest_at
  FROM (
    SELECT id, created_at FROM outbox_events
    WHERE id > CASE WHEN $5::boolean THEN $2::bigint ELSE (SELECT upto FROM held) END AND id <= $4::bigint
      AND group_id IS NULL AND NOT id <@ (SELECT members FROM held)
      AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'range')
    ORDER BY id LIMIT $6::bigint) picked
) batch WHERE n > 0
RETURNING first_id, last_id`

// The batch is read when the lock was given back: a client that stops reading must
// not sit on it. (members + '{}' is the same set in one piece: else one of many gaps
// would be unpacked again for each row.)
const claimedRangeSQL = `
WITH l AS MATERIALIZED (
  SELECT first_id, last_id, members + '{}' AS members FROM outbox_batches WHERE group_id = $1::uuid
)
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at
FROM l JOIN outbox_events e ON e.id BETWEEN l.first_id AND l.last_id AND e.id <@ l.members`

// claimRanged is a rangeClaimer.
func (b *Buffer) claimRanged(ctx context.Context, t *table, limit int, lease time.Duration, in watermark.Range) (
	batch *buffer.Lease, lastValue int64, err error,
) {
	var (
		fresh    = buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID()}, LeaseNo: 1, Ends: time.Now().Add(lease), UnfinishedLeases: 1}
		rows     = pg.EventDecoder{PayloadOID: t.PayloadOID}
		mode     string
		claimed  bool
		_, known = b.watermarks.Span()
	)
	rows.Reserve(limit)
	err = b.db.Transact(
		ctx,
		pg.Step{Prepare: true, SQL: t.SQL(claimBeginSQL), Args: []string{
			t.Sequence, t.Buffer, pg.Milliseconds(b.db.StatementTimeout), b.db.UserTimeout(),
		}, Row: func(v [][]byte) error {
			lastValue, fresh.ClaimedAt, mode = pg.ReadInt8(v[0]), pg.ReadTime(v[1]), string(v[2])
			claimed = false
			return rows.Reset(nil)
		}},
		pg.Step{Prepare: true, SQL: claimLockSQL, Args: []string{t.Buffer}},
		pg.Step{
			Prepare: true, SQL: t.SQL(claimRangeSQL),
			Args: []string{
				t.Buffer, pg.Int(in.After), pg.Int(known), pg.Int(in.UpTo), pg.Bool(in.Late), pg.Int(int64(limit)),
				fresh.GroupID.String(), pg.Interval(lease), b.config.Owner,
			},
			Row: func(v [][]byte) error {
				claimed, fresh.FirstID, fresh.LastID = true, pg.ReadInt8(v[0]), pg.ReadInt8(v[1])
				return nil
			},
		},
		pg.Step{SQL: "COMMIT"},
		pg.Step{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		b.db.WriteTx(b.db.StatementTimeout, pg.PlanGeneric...),
		pg.Step{Prepare: true, SQL: t.SQL(claimedRangeSQL), Args: []string{fresh.GroupID.String()}, Row: rows.Append},
	)
	switch {
	case err != nil:
		return nil, 0, err
	case mode != claimmode.Range:
		return nil, 0, modeChanged(mode)
	case !claimed:
		return nil, lastValue, nil
	}
	fresh.ClaimedLocal = time.Now()
	return b.base.Complete(&rows, fresh), lastValue, nil
}
