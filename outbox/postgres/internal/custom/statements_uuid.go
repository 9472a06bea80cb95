package custom

import (
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
)

// A table without an integer has no watermarks: every claim looks everywhere, in no order. Each batch draws a block of
// numbers from outbox_numbers, which stand for its events in the relay, and its ledger row has the uuids in
// that order.

const (
	stampUUIDSQL = `
WITH picked AS MATERIALIZED (
  SELECT e.custom_id AS id, e.created_at AS created_at FROM custom_events e
  WHERE e.group_id IS NULL AND $3::bigint < $4::bigint
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp' AND NOT routed)
  LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), stamped AS (
  UPDATE custom_events e SET group_id = $2::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM picked))
  RETURNING e.custom_key::text AS key, e.created_at AS created_at, e.group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, claimed_at, uuids)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, CASE WHEN n = (SELECT count(*) FROM stamped WHERE group_id = $2::uuid) THEN n END, first_id, first_id + n - 1, oldest_at, statement_timestamp(), uuids
  FROM (SELECT count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(id ORDER BY created_at, id) AS uuids,
               min(created_at) AS oldest_at
        FROM picked HAVING count(*) > 0) block
)
SELECT 1::bigint, key, created_at FROM stamped`

	numbersUUIDSQL = `
SELECT first_id, uuids FROM outbox_batches WHERE group_id = $1::uuid AND uuids IS NOT NULL`

	peekUUIDSQL = `
WITH picked AS MATERIALIZED (
  SELECT e.custom_id AS id, e.created_at AS created_at FROM custom_events e
  WHERE e.group_id IS NULL AND $2::bigint IS NOT NULL
  LIMIT $3::bigint
  FOR UPDATE SKIP LOCKED
), stamped AS (
  UPDATE custom_events e SET group_id = $1::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM picked))
  RETURNING e.custom_key::text AS key, e.created_at AS created_at, to_json(e)::text AS event_row, e.group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, uuids)
  SELECT $1::uuid, $4, 'stamp', 'leased', 1, clock_timestamp(), $5, 1,
         0, 0, CASE WHEN n = (SELECT count(*) FROM stamped WHERE group_id = $1::uuid) THEN n END, 1, n, oldest_at, uuids
  FROM (SELECT count(*) AS n, array_agg(id ORDER BY created_at, id) AS uuids, min(created_at) AS oldest_at
        FROM picked HAVING count(*) > 0) block
)
SELECT 1::bigint, key, created_at, event_row, clock_timestamp() FROM stamped`

	takeOverUUIDSQL = ledger.DueSQL + ledger.TakenSQL + `
       CASE WHEN e.group_id IS NOT NULL THEN t.first_id + u.n - 1 END, e.custom_key::text, t.created_at
FROM taken t
LEFT JOIN LATERAL unnest(t.uuids) WITH ORDINALITY u(id, n) ON true
LEFT JOIN custom_events e ON e.custom_id = u.id AND e.group_id = t.group_id`

	regroupUUIDSQL = `
WITH found AS MATERIALIZED (
  SELECT e.custom_id AS id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($4) AND e.group_id = $2::uuid
  ORDER BY e.custom_id
  FOR NO KEY UPDATE
), regrouped AS (
  UPDATE custom_events e SET group_id = $3::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM found)) AND e.group_id = $2::uuid
  RETURNING e.custom_id AS id, e.created_at AS created_at, e.group_id
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, uuids)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $5::interval, $6, $12::int,
       $7::int, $8::int, CASE WHEN n = (SELECT count(*) FROM found) THEN n END, first_id, first_id + n - 1, oldest_at, $9::uuid[], $10, $11, uuids
FROM (SELECT count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(id ORDER BY created_at, id) AS uuids,
             min(created_at) AS oldest_at
      FROM regrouped WHERE group_id = $3::uuid HAVING EXISTS (SELECT FROM found)) block`

	recordKeptUUIDSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, uuids, delivered)
SELECT $2::uuid, $1, 'stamp', 'delivered', $3::bigint, clock_timestamp() + $5::interval, $4, 1,
       0, 0, n, first_id, first_id + n - 1, oldest_at, uuids, ARRAY(SELECT generate_series(first_id, first_id + n - 1))
FROM (SELECT count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(e.custom_id ORDER BY e.created_at, e.custom_id) AS uuids,
             min(e.created_at) AS oldest_at
      FROM custom_events e WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($6) AND e.group_id = $2::uuid HAVING count(*) > 0) block
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`
)

// See package backlog.
const (
	foundUUIDSQL = `
WITH found AS (
  SELECT e.group_id, e.custom_id AS id, e.created_at AS created_at FROM custom_events e WHERE e.group_id IS NOT NULL
)`

	auditUUIDSQL = foundUUIDSQL + `, stamped AS (
  SELECT f.group_id, count(*) AS events, count(*) FILTER (WHERE l.first_id + array_position(l.uuids, f.id) - 1 = ANY (l.delivered)) AS delivered,
         l.group_id IS NULL AS orphan
  FROM found f LEFT JOIN outbox_batches l ON l.group_id = f.group_id
  GROUP BY f.group_id, l.group_id
), ledger AS (
  SELECT l.state, l.events AS said, coalesce(s.events, 0) AS events, coalesce(s.delivered, 0) AS delivered
  FROM outbox_batches l LEFT JOIN stamped s ON s.group_id = l.group_id
  WHERE l.buffer = $1
)
SELECT (SELECT count(*) FROM custom_events WHERE group_id IS NULL),` + backlog.AuditedSQL

	// Rows keep the numbers that they have.
	correctCountsUUIDSQL = foundUUIDSQL + `
UPDATE outbox_batches l
SET events = s.events, oldest_at = s.oldest_at, uuids = l.uuids || s.more, last_id = l.first_id + cardinality(l.uuids || s.more) - 1,
    delivered = coalesce(s.delivered, l.delivered)
FROM (SELECT l.group_id, count(*) AS events, min(f.created_at) AS oldest_at,
             coalesce(array_agg(f.id) FILTER (WHERE f.id <> ALL (l.uuids)), '{}') AS more,
             array_agg(l.first_id + array_position(l.uuids, f.id) - 1 ORDER BY f.id)
               FILTER (WHERE l.first_id + array_position(l.uuids, f.id) - 1 = ANY (l.delivered)) AS delivered
      FROM found f JOIN outbox_batches l ON l.group_id = f.group_id AND l.buffer = $1
      GROUP BY l.group_id) s
WHERE l.buffer = $1 AND s.group_id = l.group_id AND s.events <> l.events
  AND $2::boolean IS NOT NULL AND NOT (l.state = 'leased' AND l.due_at > clock_timestamp())`

	adoptUUIDSQL = orphansSQL + `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, sink, uuids)
SELECT group_id, $1, 'stamp', 'waiting', 0, clock_timestamp(), $2, 0,
       0, 0, n, first_id, first_id + n - 1, oldest_at, 'found without a ledger row', $4, uuids
FROM (SELECT group_id, count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(id ORDER BY created_at, id) AS uuids,
             min(created_at) AS oldest_at
      FROM adopted GROUP BY group_id) block
RETURNING events::bigint`
)
