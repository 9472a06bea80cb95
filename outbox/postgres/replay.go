package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// An event goes back under its old id only where no other has it: two letters of one
// event can be replayed at the same time, and the second must not be closed for the
// first one's sake. So whatever did not get into the buffer stays open.
const replaySQL = pickOpenSQL + `
    AND NOT EXISTS (SELECT FROM outbox_events e WHERE e.id = d.event_id)
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (event_id) event_id, group_id FROM picked ORDER BY event_id, group_id
), put AS (
  INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
  OVERRIDING SYSTEM VALUE
  SELECT d.event_id, d.topic, d.key, d.payload, d.headers, d.created_at, $10::uuid
  FROM chosen c JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id
  ON CONFLICT (id) DO NOTHING
  RETURNING id, key, created_at
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, lanes)
  SELECT $10::uuid, $11, 'stamp', 'waiting', 0, clock_timestamp(), $12, 0,
         0, 0, count(*), min(id), max(id), min(created_at), 'replayed',
         CASE WHEN $13::boolean THEN ARRAY(SELECT DISTINCT hashtext(key) FROM put WHERE key IS NOT NULL) END
  FROM put HAVING count(*) > 0
)
UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'replayed'
FROM put JOIN chosen c ON c.event_id = put.id
WHERE d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id`

// Replay is described by buffertest.Buffer.
func (b *Buffer) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return 0, err
	}
	if t.own != nil {
		return b.replayOwn(ctx, t, f, limit)
	}
	var n int64
	err = b.db.Transact(ctx, b.db.WriteTx(pg.BulkTimeout, pg.PlanByKey...), pg.Step{
		SQL:      t.SQL(replaySQL),
		Args:     b.matching(f, pg.Int(int64(limit)), buffer.NewGroupID().String(), t.Buffer, b.config.Owner, pg.Bool(b.config.Ordered)),
		Affected: &n,
	})
	return int(n), b.explain(ctx, "replaying dead letters", err)
}
