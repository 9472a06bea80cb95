package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// As replaySQL (which see), with the row as it was: whatever generates a column of it by
// itself is left to, and whatever does not get in, for a constraint of the user's too,
// leaves its letter open. The last letter that was looked at comes with how many went back.
const replayOwnSQL = pickOpenSQL + `
    AND d.event_row IS NOT NULL AND ($13::bigint IS NULL OR (d.event_id, d.group_id) > ($13::bigint, $14::uuid))
    AND NOT EXISTS (SELECT FROM outbox_events e WHERE own_find = d.own_letter)
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (d.own_letter) d.own_letter AS find, d.event_id, d.group_id, d.event_row
  FROM picked p JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id
  ORDER BY d.own_letter, d.event_id, d.group_id
), put AS (
  INSERT INTO outbox_events AS e (own_columns)
  OVERRIDING SYSTEM VALUE
  SELECT own_values FROM chosen c, jsonb_populate_record(NULL::outbox_events, c.event_row) r
  ON CONFLICT DO NOTHING
  RETURNING own_find AS find, own_created AS created_at
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, starts,
                              attempts, outages, events, first_id, last_id, oldest_at, error, uuids)
  SELECT $10::uuid, $11, 'stamp', 'waiting', 0, clock_timestamp(), $12, 0,
         0, 0, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, 'replayed', uuids
  FROM (SELECT count(*) AS events, min(created_at) AS oldest_at, own_block FROM put HAVING count(*) > 0) block
), closed AS (
  UPDATE outbox_dead_letters d SET closed_at = clock_timestamp()
  FROM put JOIN chosen c USING (find)
  WHERE d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id
  RETURNING 1
)
SELECT event_id, group_id, (SELECT count(*) FROM closed) FROM picked ORDER BY event_id DESC, group_id DESC LIMIT 1`

// replayOwn is Replay for a table of the user's own. Letters whose rows do not go in do
// not hold up those behind them.
func (b *Buffer) replayOwn(ctx context.Context, t *table, f outbox.DeadFilter, limit int) (int, error) {
	eventID, groupID := null, null
	for {
		var n, picked int64
		begin := t.writing(aWhile, byKey...)
		begin.row = func([][]byte) error {
			n, picked = 0, 0
			return nil
		}
		args := b.matching(f, itoa(int64(limit)), outbox.NewGroupID().String(), t.buffer, b.config.Owner, eventID, groupID)
		err := b.transact(ctx, begin, step{sql: t.sql(replayOwnSQL), args: args, row: func(v [][]byte) error {
			eventID, groupID, n = itoa(int8Of(v[0])), uuid.UUID(v[1]).String(), int8Of(v[2])
			picked++
			return nil
		}})
		if err != nil || n > 0 || picked == 0 {
			return int(n), b.explain(ctx, "replaying dead letters", err)
		}
	}
}
