package custom

import (
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
)

// A table without an integer has no watermarks: every claim looks everywhere, in no order. Each batch draws a block of
// numbers from outbox_numbers, which stand for its events in the relay, and its ledger row has the uuids in
// that order. The batches of several sinks have some of their claim's numbers, as members, and the uuids of these: nothing draws others for
// an event before its last sink has it, because a settle compares the numbers of the claim's batches.

const (
	stampUUIDSQL = `
WITH picked AS MATERIALIZED (
  SELECT e.custom_id AS id, e.created_at AS created_at FROM custom_events e
  WHERE e.group_id IS NULL AND custom_where AND $3::bigint < $4::bigint
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp' AND routed = ($8 = '*'))
  LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), stamped AS (
  UPDATE custom_events e SET group_id = $2::uuid
  WHERE e.custom_id = ANY (ARRAY(SELECT id FROM picked))
  RETURNING e.custom_key::text AS key, e.created_at AS created_at, e.group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, sink, events, first_id, last_id, oldest_at, claimed_at, uuids)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, $8, CASE WHEN n = (SELECT count(*) FROM stamped WHERE group_id = $2::uuid) THEN n END, first_id, first_id + n - 1, oldest_at, statement_timestamp(), uuids
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
  WHERE e.group_id IS NULL AND custom_where AND $2::bigint IS NOT NULL AND NOT e.custom_id = ANY ($6)
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

	takeOverUUIDSQL       = ledger.DueSQL + ledger.TakenSQL + takenRowsUUIDSQL
	takeOverEndingUUIDSQL = ledger.DueEndingSQL + ledger.TakenSQL + takenRowsUUIDSQL

	takenRowsUUIDSQL = `
       CASE WHEN e.group_id IS NOT NULL THEN u.n END, e.custom_key::text, t.created_at
FROM taken t
LEFT JOIN LATERAL unnest(t.uuids, CASE
  WHEN t.members IS NULL THEN ARRAY(SELECT generate_series(t.first_id, t.last_id))
  ELSE ARRAY(SELECT generate_series(lower(m), upper(m) - 1) FROM unnest(t.members) m) END) u(id, n) ON true
LEFT JOIN custom_events e ON e.custom_id = u.id AND e.group_id = coalesce(t.claim_id, t.group_id)`

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
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, uuids, sink, routes_no, history)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $5::interval, $6, $12::int,
       $7::int, $8::int, CASE WHEN n = (SELECT count(*) FROM found) THEN n END, first_id, first_id + n - 1, oldest_at, $9::uuid[], $10, $11, uuids,
       ` + ledger.SinkSQL + `, ` + ledger.RoutesNoSQL + `, ` + ledger.HistorySQL + `
FROM (SELECT count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(id ORDER BY created_at, id) AS uuids,
             min(created_at) AS oldest_at
      FROM regrouped WHERE group_id = $3::uuid HAVING EXISTS (SELECT FROM found)) block`

	recordKeptUUIDSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, uuids, delivered, sink, stamp_xid)
SELECT $2::uuid, $1, 'stamp', 'delivered', $3::bigint, clock_timestamp() + $5::interval, $4, 1,
       0, 0, n, first_id, first_id + n - 1, oldest_at, uuids, ARRAY(SELECT generate_series(first_id, first_id + n - 1)), ` + ledger.SinkSQL + `, ` + ledger.StampXidSQL + `
FROM (SELECT count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(e.custom_id ORDER BY e.created_at, e.custom_id) AS uuids,
             min(e.created_at) AS oldest_at
      FROM custom_events e WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($6) AND e.group_id = $2::uuid HAVING count(*) > 0) block
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`
)

// See package backlog. An event is found by the batches that have its uuid and stand for the group_id that it carries. One that carries the
// group_id of a batch without being in its list belongs there too; any other is an orphan. n is the event's number in the batch.
const (
	foundUUIDSQL = `
WITH found AS (
  SELECT l.group_id, e.custom_id AS id, e.created_at AS created_at, u.n
  FROM outbox_batches l, unnest(l.uuids, CASE
    WHEN l.members IS NULL THEN ARRAY(SELECT generate_series(l.first_id, l.last_id))
    ELSE ARRAY(SELECT generate_series(lower(m), upper(m) - 1) FROM unnest(l.members) m) END) u(id, n)
  JOIN custom_events e ON e.custom_id = u.id
  WHERE l.buffer = $1 AND e.group_id = coalesce(l.claim_id, l.group_id)
  UNION ALL
  SELECT e.group_id, e.custom_id, e.created_at, NULL FROM custom_events e
  WHERE e.group_id IS NOT NULL AND ` + unlistedUUIDSQL + `
)`

	// unlistedUUIDSQL reports whether no batch has the event.
	unlistedUUIDSQL = `NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = e.group_id AND e.custom_id = ANY (l.uuids))
    AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.claim_id = e.group_id AND e.custom_id = ANY (l.uuids))`

	auditUUIDSQL = foundUUIDSQL + `, stamped AS (
  SELECT f.group_id, count(*) AS events, count(*) FILTER (WHERE f.n = ANY (l.delivered)) AS delivered, l.group_id IS NULL AS orphan
  FROM found f LEFT JOIN outbox_batches l ON l.group_id = f.group_id
  GROUP BY f.group_id, l.group_id
), ledger AS (
  SELECT l.state, l.events AS said, coalesce(s.events, 0) AS events, coalesce(s.delivered, 0) AS delivered,
         l.sink = '*' AND l.state = 'waiting' AND l.due_at = 'infinity' AS kept
  FROM outbox_batches l LEFT JOIN stamped s ON s.group_id = l.group_id
  WHERE l.buffer = $1
)
SELECT (SELECT count(*) FROM custom_events e WHERE e.group_id IS NULL AND custom_where), 0::bigint,` + backlog.AuditedSQL

	// Events carry one claim_id, so claims share none. Two batches of a sink under one claim_id may.
	auditSinksUUIDSQL = `
WITH sent AS (
  SELECT count(*) AS rows FROM outbox_batches l, unnest(l.uuids) u(id) JOIN custom_events e ON e.custom_id = u.id
  WHERE l.buffer = $1 AND l.state <> 'delivered' AND e.group_id = l.claim_id
  GROUP BY l.sink, l.claim_id, u.id
)
SELECT 0::bigint, (SELECT coalesce(sum(rows - 1), 0)::bigint FROM sent),` + backlog.AuditedSinksSQL

	removeEmptyUUIDSQL = foundUUIDSQL + backlog.RemoveEmptySQL

	// Rows keep the numbers that they have.
	correctCountsUUIDSQL = foundUUIDSQL + `
UPDATE outbox_batches l
SET events = s.events, oldest_at = s.oldest_at, uuids = l.uuids || s.more,
    last_id = CASE WHEN l.members IS NULL THEN l.first_id + cardinality(l.uuids || s.more) - 1 ELSE l.last_id END,
    delivered = coalesce(s.delivered, l.delivered)
FROM (SELECT l.group_id, count(*) AS events, min(f.created_at) AS oldest_at,
             coalesce(array_agg(f.id) FILTER (WHERE f.n IS NULL), '{}') AS more,
             array_agg(f.n ORDER BY f.id) FILTER (WHERE f.n = ANY (l.delivered)) AS delivered
      FROM found f JOIN outbox_batches l ON l.group_id = f.group_id AND l.buffer = $1
      GROUP BY l.group_id) s
WHERE l.buffer = $1 AND s.group_id = l.group_id AND s.events <> l.events
  AND $2::boolean IS NOT NULL AND NOT (l.state = 'leased' AND l.due_at > clock_timestamp())`

	adoptUUIDSQL    = orphansSQL + ` AND custom_where` + adoptedSQL + adoptedRowsUUIDSQL
	adoptAllUUIDSQL = orphansSQL + adoptedSQL + adoptedRowsUUIDSQL

	adoptedRowsUUIDSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, sink, uuids)
SELECT group_id, $1, 'stamp', 'waiting', 0, clock_timestamp(), $2, 0,
       0, 0, n, first_id, first_id + n - 1, oldest_at, 'found without a ledger row', $4, uuids
FROM (SELECT group_id, count(*) AS n, nextval('outbox_numbers') + 1 AS first_id, array_agg(id ORDER BY created_at, id) AS uuids,
             min(created_at) AS oldest_at
      FROM adopted GROUP BY group_id) block
RETURNING events::bigint`
)
