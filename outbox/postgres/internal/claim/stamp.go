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

// A claim is one statement. It picks by the primary key, from the cursor on, so that neither dead rows nor wrong
// statistics matter. FOR UPDATE SKIP LOCKED keeps claims apart, and PostgreSQL checks group_id again after a row
// has changed. The update finds its rows by id and not by ctid: a row that the application changed between
// snapshot and lock has another ctid, and would be in the ledger without its stamp.
//
// An UPDATE that a trigger undoes is no error to PostgreSQL. The ledger row has no number of events then, which the table
// refuses: see ledger.Tables.Unstamped.
//
// It waits for the disk (beginSQL): a claim that a crash forgets after its batch was sent would come back under
// another group_id. And the planner is kept to the primary key's order (see pg.PlanByPrimaryKey).
const stampSQL = `
WITH picked AS MATERIALIZED (
  SELECT id, greatest(created_at, available_at) AS created_at FROM outbox_events
  WHERE id > $3::bigint AND id <= $4::bigint AND group_id IS NULL AND ` + ledger.AvailableSQL + `
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp' AND routed = ($8 = '*'))
  ORDER BY id LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), stamped AS (
  UPDATE outbox_events SET group_id = $2::uuid
  WHERE id = ANY (ARRAY(SELECT id FROM picked))
  RETURNING group_id
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, sink, events, first_id, last_id, oldest_at)
SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
       0, 0, $8, CASE WHEN count(*) = (SELECT count(*) FROM stamped WHERE group_id = $2::uuid) THEN count(*) END, min(id), max(id), min(created_at)
FROM picked HAVING count(*) > 0`

// maxStamping is how many claims of this process stamp at the same time: one reads while the other writes. More
// would walk over rows that the others have locked, for a quarter more of the server's time.
const maxStamping = 2

// Stamp is an InRange for the relay's own table.
func (c *Claimer) Stamp(ctx context.Context, t *ledger.Tables, limit int, lease time.Duration, in watermark.Range) (
	*buffer.Lease, *Start, error,
) {
	done, err := c.Stamping(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	groupID, rows := buffer.NewGroupID(), pg.EventDecoder{PayloadOID: t.PayloadOID}
	rows.Reserve(limit)
	readCtx, reading := ledger.NewReading(ctx, c.base.ReadLimit(lease))
	defer reading.End()
	var leased int64
	start, settings, begin := c.Begin(t, lease, rows.Reset)
	err = c.base.DB.Transact(
		readCtx, settings, begin,
		pg.Step{
			Prepare: true, SQL: t.SQL(stampSQL),
			Args: []string{
				t.Buffer, groupID.String(), pg.Int(in.After), pg.Int(in.UpTo), pg.Int(int64(limit)), pg.Interval(lease), c.base.Owner, c.base.ClaimsFor(),
			},
			Affected: &leased,
		},
		start.Seen(t),
		pg.Commit, pg.Begin,
		reading.Step(c.base.DB.BatchTx),
		pg.Step{Prepare: true, SQL: t.SQL(stampedEventsSQL), Args: []string{groupID.String()}, Columns: rows.Columns, Row: rows.Append},
	)
	cause := reading.Cause(readCtx, err, rows.Fitted())
	switch {
	case cause != nil && leased > 0:
		batch, err := c.base.List(ctx, t, start.Lease(groupID), cause, rows.Fitted())
		return batch, start, err
	case err != nil:
		return nil, nil, err
	case start.Differs(c.base, claimmode.Stamp) != nil:
		return nil, nil, start.Differs(c.base, claimmode.Stamp)
	case leased == 0:
		return nil, start, nil
	}
	return c.base.Complete(&rows, start.Lease(groupID)), start, nil
}
