package backlog

import (
	"context"
	"math"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const fullSweepSQL = `
WITH` + ledger.HeldSQL + `
SELECT count(*) FROM (
  SELECT FROM outbox_events e
  WHERE e.id <= $3::bigint AND e.group_id IS NULL AND NOT e.id::bigint <@ (SELECT members FROM held)
  ORDER BY e.id LIMIT $4::bigint) late`

// fullSweepTimeout bounds a scan from the beginning: if a snapshot was pinned for hours, there may be
// hundreds of millions of dead entries. Then the next sweep tries again.
const fullSweepTimeout = 2 * time.Second

// fullSweep scans everything up to the cursor, every few minutes, for ids that the watermarks cannot know:
// given by hand, drawn in an earlier transaction, or from a sequence with CACHE.
//
// It also finds orphans: events that carry a group_id without a ledger row (a restore, a manual change). They
// are leased again under that group_id, which may have reached the sink before.
func (b *Backlog) fullSweep(ctx context.Context, t *ledger.Tables, limit int, more bool) (late, orphans int, err error) {
	upTo, due := b.watermarks.FullSweepDue(time.Now(), more)
	if !due {
		return 0, 0, nil
	}
	begin := b.base.DB.WriteTx(fullSweepTimeout, append([]string{"synchronous_commit", "on"}, pg.PlanByPrimaryKey...)...)
	err = b.base.DB.Transact(ctx, begin,
		pg.Step{SQL: t.Statements.FullSweep, Args: []string{t.Buffer, pg.Int(math.MinInt64), pg.Int(upTo), pg.Int(int64(limit))}, Row: func(v [][]byte) error {
			late = int(pg.ReadInt8(v[0]))
			return nil
		}})
	if err == nil {
		b.watermarks.FullySwept(late, time.Now())
		var adopted buffer.Count
		begin.Row = func([][]byte) error {
			adopted = buffer.Count{}
			return nil
		}
		err = b.base.DB.Transact(ctx, begin, b.adopt(t, &adopted))
		orphans = int(adopted.Batches)
	}
	if c := pg.Code(err); (c == pg.CodeCancelled || c == pg.CodeLockTimeout) && ctx.Err() == nil {
		err = nil // out of time: the next one tries again
	}
	return late, orphans, err
}

// Orphans are found by their group_id in every mode: a ledger row says for itself how its events are found. lease_no
// begins at the clock's microseconds, so that it is higher than any that was lost.
const adoptSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, lanes)
SELECT e.group_id, $1, 'stamp', 'waiting', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp(), $2, 0,
       0, 0, count(*), min(e.id), max(e.id), min(e.created_at), 'found without a ledger row',
       CASE WHEN $3::boolean THEN coalesce(array_agg(DISTINCT hashtext(e.key)) FILTER (WHERE e.key IS NOT NULL), '{}') END
FROM outbox_events e
WHERE e.group_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = e.group_id)
  AND NOT e.id::bigint <@ (SELECT coalesce(range_agg(m), '{}') FROM outbox_batches, unnest(members) m WHERE buffer = $1)
GROUP BY e.group_id
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`

// adopt is the step that gives orphans a ledger row.
func (b *Backlog) adopt(t *ledger.Tables, adopted *buffer.Count) pg.Step {
	return pg.Step{SQL: t.Statements.Adopt, Args: []string{t.Buffer, b.base.Owner, pg.Bool(b.base.Ordered)}, Row: func(v [][]byte) error {
		adopted.Batches++
		adopted.Events += pg.ReadInt8(v[0])
		return nil
	}}
}
