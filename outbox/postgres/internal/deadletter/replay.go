package deadletter

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// PickReplayedSQL begins a statement that replays dead letters, and FitSQL follows it: of those that are picked and locked, the first ones
// go back, with up to buffer.MaxBytes, and those of the first event in any case. They are cut by what the database stores before anything is
// decompressed. A bytea counts twice, as its text does. Of several dead letters of one event at one sink, which earlier versions made, only one goes back, ever: the
// others stay open. If the event dies again, that is a later dead letter. Another event may have the same id.
const (
	PickReplayedSQL = `
WITH open AS MATERIALIZED (
  SELECT d.event_id, d.group_id,
         coalesce(pg_column_size(d.event_row), pg_column_size(d.payload) + coalesce(pg_column_size(d.headers), 0) + coalesce(pg_column_size(d.key), 0)) AS bytes
  FROM outbox_dead_letters d
  WHERE d.closed_at IS NULL AND ` + matchSQL + `
    AND NOT EXISTS (
      SELECT FROM outbox_dead_letters o
      WHERE o.pipeline = $1 AND o.event_id = d.event_id AND o.group_id <> d.group_id AND o.closed_as = 'replayed' AND o.closed_at > d.died_at
        AND o.sink = d.sink AND o.topic = d.topic AND o.created_at = d.created_at AND o.event_uuid IS NOT DISTINCT FROM d.event_uuid)`

	FitSQL = `
), stored AS MATERIALIZED (
  SELECT event_id, group_id FROM (
    SELECT event_id, group_id, sum(bytes) OVER (ORDER BY event_id) AS total, min(event_id) OVER () AS first FROM open) o
  WHERE total <= ` + maxBytesSQL + ` OR event_id = first
), picked AS MATERIALIZED (
  SELECT event_id, group_id FROM (
    SELECT event_id, group_id, min(event_id) OVER () AS first,
           sum(coalesce(octet_length(d.event_row::text),
                        octet_length(d.payload::text) + coalesce(octet_length(d.headers::text), 0) + coalesce(octet_length(d.key), 0)))
             OVER (ORDER BY event_id) AS total
    FROM stored s JOIN outbox_dead_letters d USING (event_id, group_id) WHERE d.pipeline = $1) s
  WHERE total <= ` + maxBytesSQL + ` OR event_id = first
`

	maxBytesSQL = "4194304" // buffer.MaxBytes
)

// An event goes back under its old id only if that is free. Two dead letters of one event can be
// replayed at the same time; the one whose event was not inserted stays open.
const replaySQL = PickReplayedSQL + `
    AND NOT EXISTS (SELECT FROM outbox_events e WHERE e.id = d.event_id)
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED` + FitSQL + `), chosen AS MATERIALIZED (
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
UPDATE outbox_dead_letters d SET closed_at = clock_timestamp(), closed_as = 'replayed', closed_by = nullif(($3::text[])[4], ''), closed_reason = nullif(($3::text[])[5], '')
FROM put JOIN chosen c ON c.event_id = put.id
WHERE d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id`

// Replay implements buffer.DeadLetters for the relay's own table.
func (l *DeadLetters) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	if l.base.Sinks != nil {
		return l.replayRouted(ctx, f, limit)
	}
	t, err := l.base.Ready(ctx)
	if err != nil {
		return 0, err
	}
	var n int64
	err = l.base.DB.Transact(ctx, l.base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...), l.LockForReplay(), pg.Step{
		SQL:      l.SQL(t, replaySQL),
		Args:     l.Match(f, pg.Int(int64(limit)), buffer.NewGroupID().String(), t.Buffer, l.base.Owner, pg.Bool(l.base.Ordered)),
		Affected: &n,
	})
	return int(n), l.base.Explain(ctx, "replaying dead letters", err)
}
