package claim

import "github.com/outboxrelay/relay/outbox/postgres/internal/ledger"

// With several sinks, a claim takes all keys: each sink keeps its own order, by the numbers that claims give themselves
// (see package ledger). Otherwise a sink that is behind would hold back the others.
const orderRoutedSQL = `
WITH waits AS MATERIALIZED (
  SELECT id, hashtext(key) AS lane FROM outbox_events
  WHERE id > $3::bigint AND id <= $8::bigint AND group_id IS NULL AND ` + ledger.AvailableSQL + `
    AND ($9::boolean IS FALSE OR available_at IS NOT NULL)
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp key' AND routed)
  ORDER BY id LIMIT $4::bigint
), picked AS MATERIALIZED (
  SELECT id, lane FROM waits LIMIT $5::bigint
), locked AS MATERIALIZED (
  SELECT id FROM outbox_events
  WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND group_id IS NULL
  ORDER BY id
  FOR UPDATE SKIP LOCKED
), free AS MATERIALIZED (
  SELECT id FROM picked
  WHERE id IN (SELECT id FROM locked) AND (lane IS NULL OR lane NOT IN (
    SELECT lane FROM picked WHERE lane IS NOT NULL AND id NOT IN (SELECT id FROM locked)))
), stamped AS (
  UPDATE outbox_events SET group_id = $2::uuid
  WHERE id = ANY (ARRAY(SELECT id FROM free))
  RETURNING id, key, greatest(created_at, available_at) AS created_at, group_id
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, sink, seq, lanes)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, CASE WHEN count(*) = (SELECT count(*) FROM free) THEN count(*) END, min(id), max(id), min(created_at), '*',
         nextval('outbox_numbers'), ARRAY(SELECT DISTINCT hashtext(key) FROM stamped WHERE key IS NOT NULL)
  FROM stamped WHERE group_id = $2::uuid HAVING EXISTS (SELECT FROM free)
)
SELECT (SELECT count(*) FROM stamped), 0::bigint, 0::bigint`
