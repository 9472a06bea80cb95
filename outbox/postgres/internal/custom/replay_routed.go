package custom

import (
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
)

// See package deadletter: a replay joins the claim that still holds the event, under that claim's lock. $11 and $12 are the dead letter after
// which it begins, $13 the claim_id of events that go back for sinks, $14 the group_id of those that are routed again.
const (
	pickRoutedSQL = deadletter.PickReplayedSQL + deadletter.ReplayableSQL + afterRoutedSQL + `
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
  FOR UPDATE OF d SKIP LOCKED` + deadletter.FitSQL + `)`

	afterRoutedSQL = `
    AND d.event_row IS NOT NULL` + deadletter.AfterSQL

	nextRoutedSQL = pickRoutedSQL + `
SELECT event_id, group_id, d.event_uuid FROM picked JOIN outbox_dead_letters d USING (event_id, group_id) WHERE d.pipeline = $1`

	lockRoutedSQL = deadletter.LockPickedSQL + afterRoutedSQL + deadletter.LockClaimsSQL

	// lockRoutedUUIDSQL finds the claim by the group_id that the event carries: the number of the dead letter is that of the claim in which the
	// event died, and an event that was put back since has another.
	lockRoutedUUIDSQL = deadletter.PickUnlockedSQL + afterRoutedSQL + `
  ORDER BY d.event_id, d.group_id LIMIT $9::bigint
), holding AS MATERIALIZED (
  SELECT DISTINCT b.claim_id FROM picked p
  JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = p.event_id AND d.group_id = p.group_id
  JOIN custom_events e ON e.custom_id = d.custom_id JOIN outbox_batches b ON b.claim_id = e.group_id
  WHERE b.buffer = $10
)` + deadletter.LockHoldingSQL

	// groupOfRow is how the group_id is taken out of the text of a row. What is left tells whether the row is the dead letter's: an id may be used again.
	groupOfRow = `'"group_id":("[^"]*"|null)', ''`

	replayRoutedSQL = replayRoutedHeadSQL + putRoutedSQL + replayRoutedTailSQL + deadletter.ClosedRoutedSQL

	replayRoutedHeadSQL = pickRoutedSQL + `, named AS MATERIALIZED (
  SELECT event_id, group_id, coalesce((
           SELECT s.sink FROM outbox_sinks s WHERE s.buffer = $10 AND s.dropped_at IS NULL AND d.sink IN (SELECT unnest(s.sink || s.formerly))
           ORDER BY s.sink <> d.sink LIMIT 1), '*') AS sink
  FROM picked p JOIN outbox_dead_letters d USING (event_id, group_id) WHERE d.pipeline = $1
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (event_id, sink) event_id, group_id, sink FROM named ORDER BY event_id, sink, group_id
), holders AS MATERIALIZED (
  SELECT claim_id, sink, members, stamp_xid FROM outbox_batches
  WHERE buffer = $10 AND claim_id = ANY (current_setting('relay.locked')::uuid[])
), joining AS MATERIALIZED (
  SELECT c.event_id, c.group_id, c.sink, h.claim_id, bool_or(h.sink = c.sink) AS has
  FROM chosen c JOIN holders h ON c.event_id <@ h.members
  WHERE c.sink <> '*' AND EXISTS (
    SELECT FROM custom_events e JOIN outbox_dead_letters d ON d.event_id = e.custom_id
    WHERE e.custom_id = c.event_id AND e.group_id = h.claim_id AND d.pipeline = $1 AND d.group_id = c.group_id
      AND regexp_replace(to_json(e)::text, ` + groupOfRow + `) = regexp_replace(d.event_row::text, ` + groupOfRow + `))
  GROUP BY c.event_id, c.group_id, c.sink, h.claim_id
), joined AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, stamp_xid)
  SELECT ` + backlog.NewGroupSQL + `, $10, 'range', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(j.event_id), max(j.event_id), min(e.created_at), '-infinity', 'replayed',
         range_agg(int8range(j.event_id, nullif(j.event_id, 9223372036854775807), '[]')), j.sink, j.claim_id,
         (SELECT stamp_xid FROM holders h WHERE h.claim_id = j.claim_id LIMIT 1)
  FROM joining j JOIN custom_events e ON e.custom_id = j.event_id
  WHERE NOT j.has GROUP BY j.sink, j.claim_id
), gone AS MATERIALIZED (
  SELECT c.event_id, c.group_id, c.sink FROM chosen c JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id
  WHERE NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = c.event_id AND custom_held)
), letters AS MATERIALIZED (
  SELECT DISTINCT ON (g.event_id) g.event_id AS id, d.event_row, CASE g.sink WHEN '*' THEN $14::uuid ELSE $13::uuid END AS stamp
  FROM gone g JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = g.event_id AND d.group_id = g.group_id
  ORDER BY g.event_id, g.sink
)`

	putRoutedSQL = `, put AS (
  INSERT INTO custom_events AS e (custom_columns)
  OVERRIDING SYSTEM VALUE
  SELECT custom_values FROM letters c, json_populate_record(NULL::custom_events, c.event_row) r
  ON CONFLICT DO NOTHING
  RETURNING e.custom_id::bigint AS id, e.created_at AS created_at, e.group_id
)`

	replayRoutedTailSQL = `, back AS MATERIALIZED (
  SELECT g.event_id, g.group_id, g.sink, p.created_at FROM gone g JOIN put p ON p.id = g.event_id
  WHERE p.group_id = CASE g.sink WHEN '*' THEN $14::uuid ELSE $13::uuid END
), claimed AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id)
  SELECT ` + backlog.NewGroupSQL + `, $10, 'range', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(event_id), max(event_id), min(created_at), '-infinity', 'replayed',
         range_agg(int8range(event_id, nullif(event_id, 9223372036854775807), '[]')), sink, $13::uuid
  FROM back WHERE sink <> '*' GROUP BY sink
), unrouted AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, sink)
  SELECT $14::uuid, $10, 'stamp', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(event_id), max(event_id), min(created_at), 'replayed', '*'
  FROM back WHERE sink = '*' HAVING count(*) > 0
)`

	// replayRoutedUUIDSQL is replayRoutedSQL for events that are found by their uuids. Those that go back get new numbers, one for each event:
	// its dead letters may have several, each from another claim. One that still waits has the number of its claim.
	replayRoutedUUIDSQL = replayRoutedHeadUUIDSQL + putRoutedUUIDSQL + replayRoutedTailUUIDSQL + deadletter.ClosedRoutedSQL

	replayRoutedHeadUUIDSQL = pickRoutedSQL + `, named AS MATERIALIZED (
  SELECT event_id, group_id, d.custom_id AS id, coalesce((
           SELECT s.sink FROM outbox_sinks s WHERE s.buffer = $10 AND s.dropped_at IS NULL AND d.sink IN (SELECT unnest(s.sink || s.formerly))
           ORDER BY s.sink <> d.sink LIMIT 1), '*') AS sink
  FROM picked p JOIN outbox_dead_letters d USING (event_id, group_id) WHERE d.pipeline = $1
), chosen AS MATERIALIZED (
  SELECT DISTINCT ON (id, sink) id, event_id, group_id, sink FROM named ORDER BY id, sink, event_id DESC, group_id
), held AS MATERIALIZED (
  SELECT h.claim_id, h.sink, h.stamp_xid, u.id, u.n FROM outbox_batches h, unnest(h.uuids, ARRAY(
    SELECT generate_series(lower(m), upper(m) - 1) FROM unnest(h.members) m)) u(id, n)
  WHERE h.buffer = $10 AND h.claim_id = ANY (current_setting('relay.locked')::uuid[]) AND u.n IS NOT NULL
), joining AS MATERIALIZED (
  SELECT c.id, c.event_id, c.group_id, c.sink, h.claim_id, h.n, bool_or(h.sink = c.sink) AS has
  FROM chosen c JOIN held h ON h.id = c.id
  WHERE c.sink <> '*' AND EXISTS (SELECT FROM custom_events e WHERE e.custom_id = c.id AND e.group_id = h.claim_id)
  GROUP BY c.id, c.event_id, c.group_id, c.sink, h.claim_id, h.n
), joined AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, uuids, stamp_xid)
  SELECT ` + backlog.NewGroupSQL + `, $10, 'range', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(j.n), max(j.n), min(e.created_at), '-infinity', 'replayed',
         range_agg(int8range(j.n, j.n, '[]')), j.sink, j.claim_id, array_agg(j.id ORDER BY j.n),
         (SELECT stamp_xid FROM held h WHERE h.claim_id = j.claim_id LIMIT 1)
  FROM joining j JOIN custom_events e ON e.custom_id = j.id
  WHERE NOT j.has GROUP BY j.sink, j.claim_id
), gone AS MATERIALIZED (
  SELECT c.id, c.event_id, c.group_id, c.sink FROM chosen c JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = c.event_id AND d.group_id = c.group_id
  WHERE NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = c.id AND custom_held)
), letters AS MATERIALIZED (
  SELECT DISTINCT ON (g.id) g.id, d.event_row, CASE g.sink WHEN '*' THEN $14::uuid ELSE $13::uuid END AS stamp
  FROM gone g JOIN outbox_dead_letters d ON d.pipeline = $1 AND d.event_id = g.event_id AND d.group_id = g.group_id
  ORDER BY g.id, g.sink
)`

	putRoutedUUIDSQL = `, put AS (
  INSERT INTO custom_events AS e (custom_columns)
  OVERRIDING SYSTEM VALUE
  SELECT custom_values FROM letters c, json_populate_record(NULL::custom_events, c.event_row) r
  ON CONFLICT DO NOTHING
  RETURNING e.custom_id AS id, e.created_at AS created_at, e.group_id
)`

	replayRoutedTailUUIDSQL = `, block AS MATERIALIZED (
  SELECT nextval('outbox_numbers') + 1 AS first
), numbered AS MATERIALIZED (
  SELECT id, created_at, group_id, first + row_number() OVER (ORDER BY group_id, created_at, id) - 1 AS n FROM put, block
), back AS MATERIALIZED (
  SELECT g.id, g.event_id, g.group_id, g.sink, p.n, p.created_at FROM gone g JOIN numbered p ON p.id = g.id
  WHERE p.group_id = CASE g.sink WHEN '*' THEN $14::uuid ELSE $13::uuid END
), claimed AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members, sink, claim_id, uuids)
  SELECT ` + backlog.NewGroupSQL + `, $10, 'range', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(n), max(n), min(created_at), '-infinity', 'replayed',
         range_agg(int8range(n, n, '[]')), sink, $13::uuid, array_agg(id ORDER BY n)
  FROM back WHERE sink <> '*' GROUP BY sink
), unrouted AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, error, sink, uuids)
  SELECT $14::uuid, $10, 'stamp', 'waiting', 0, clock_timestamp(), $15, 0,
         0, 0, count(*), min(n), max(n), min(created_at), 'replayed', '*', array_agg(id ORDER BY n)
  FROM back WHERE sink = '*' HAVING count(*) > 0
)`
)
