package deadletter

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A page of the primary key, of which the closed and old ones are deleted. No index has closed_at: a dead letter is closed once, and a walk over all of
// them now and then costs less than such an index in each database. One with an unfinished batch of the hook stays, because the hook must be notified.
const deleteClosedSQL = `
WITH page AS MATERIALIZED (
  SELECT d.event_id, d.group_id, d.ctid AS place, d.closed_at, d.notified_at, d.hook_group_id FROM outbox_dead_letters d
  WHERE d.pipeline = $1 AND ($10::bigint IS NULL OR (d.event_id, d.group_id) > ($10::bigint, $11::uuid))
  ORDER BY d.event_id, d.group_id LIMIT $12::bigint
), gone AS (
  DELETE FROM outbox_dead_letters d
  WHERE d.ctid = ANY (ARRAY(
      SELECT place FROM page
      WHERE closed_at < (SELECT clock_timestamp() - $9::interval) AND (notified_at IS NOT NULL OR hook_group_id IS NULL)))
    AND d.closed_at IS NOT NULL AND (d.notified_at IS NOT NULL OR d.hook_group_id IS NULL) AND ` + matchSQL + `
  RETURNING 1
), last AS (
  SELECT event_id, group_id FROM page ORDER BY event_id DESC, group_id DESC LIMIT 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM page), last.event_id, last.group_id FROM last`

// DeleteClosed implements buffer.Retention.
func (l *DeadLetters) DeleteClosed(ctx context.Context, f buffer.DeadFilter, keep time.Duration, after *buffer.DeadKey, limit int) (done buffer.DeletedClosed, err error) {
	t, err := l.base.Ready(ctx)
	if err != nil {
		return done, err
	}
	eventID, groupID := pg.Null, pg.Null
	if after != nil {
		eventID, groupID = pg.Int(after.EventID), after.GroupID.String()
	}
	write := l.base.DB.WriteTx(pg.BulkTimeout, append([]string{"enable_bitmapscan", "off", "lock_timeout", "1000"}, pg.PlanByKey...)...)
	write.Row = func([][]byte) error {
		done = buffer.DeletedClosed{}
		return nil
	}
	err = l.base.DB.Transact(ctx, write, pg.Step{
		SQL: l.SQL(t, deleteClosedSQL), Args: l.Match(f, pg.Interval(keep), eventID, groupID, pg.Int(int64(limit))),
		Row: func(v [][]byte) error {
			done.DeadLetters = pg.ReadInt8(v[0])
			if pg.ReadInt8(v[1]) == int64(limit) {
				done.Next = &buffer.DeadKey{EventID: pg.ReadInt8(v[2]), GroupID: uuid.UUID(v[3])}
			}
			return nil
		},
	})
	return done, l.base.Explain(ctx, "deleting closed dead letters", err)
}
