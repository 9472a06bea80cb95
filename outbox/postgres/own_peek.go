package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A projection asks for what carries a group_id, so that is stamped and has a row in the
// ledger, all of which is taken back.
const stampToPeekSQL = `
WITH picked AS MATERIALIZED (
  SELECT own_find AS find, own_created AS created_at FROM outbox_events e
  WHERE own_id > $2::bigint AND e.group_id IS NULL
  ORDER BY own_id LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, uuids)
  SELECT $1::uuid, $4, 'stamp', 'leased', 1, clock_timestamp(), $5, 1,
         0, 0, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, uuids
  FROM (SELECT count(*) AS events, min(created_at) AS oldest_at, own_block FROM picked HAVING count(*) > 0) block
)
UPDATE outbox_events e SET group_id = $1::uuid
WHERE own_find = ANY (ARRAY(SELECT find FROM picked))
RETURNING own_id::bigint, own_name, own_created, (own_json || '{"group_id": null}')::text, clock_timestamp()`

func (b *Buffer) peekOwn(ctx context.Context, t *table, limit int) (*buffer.Lease, error) {
	var (
		p        = newProjecting(t, buffer.NewGroupID())
		clock    time.Time
		rows     = map[int64][]byte{}
		floor, _ = b.watermarks.Span()
	)
	begin := b.db.WriteTx(b.db.StatementTimeout, pg.PlanByPrimaryKey...)
	begin.Row = p.Reset
	steps := []pg.Step{
		{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		begin,
		{SQL: t.SQL(stampToPeekSQL), Args: []string{p.groupID.String(), pg.Int(floor), pg.Int(int64(limit)), t.Buffer, b.config.Owner}, Row: func(v [][]byte) error {
			clock = pg.ReadTime(v[4])
			if err := p.claimed(v); err != nil {
				return err
			}
			e := &p.Events[len(p.Events)-1]
			if !t.own.numbered() {
				e.ID = int64(len(p.Events))
			}
			rows[e.ID] = slices.Clone(v[3])
			return nil
		}},
	}
	// The planner and the right to write are given back before what is the user's.
	plan := pg.SetLocal("transaction_read_only", "on", "enable_seqscan", "on", "enable_bitmapscan", "on", "enable_sort", "on")
	steps = append(steps, plan)
	steps = append(steps, b.projectSteps(p)[1:3]...)
	steps = append(steps, pg.Step{SQL: "ROLLBACK"})
	if err := b.project(ctx, p, steps); err != nil {
		return nil, b.explain(ctx, "peeking", err)
	}
	if len(p.Events) == 0 {
		return nil, nil
	}
	for i := range p.Events {
		if e := &p.Events[i]; p.ran && p.err == nil && p.rows.Missing(i) {
			e.Payload = rows[e.ID]
		}
	}
	return b.projected(p, buffer.Lease{Batch: buffer.Batch{GroupID: p.groupID}, ClaimedAt: clock, ClaimedLocal: time.Now()}), nil
}
