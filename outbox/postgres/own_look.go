package postgres

// What a look, a sweep and the status see of a table of the user's own: as lookSQL,
// fullSweepSQL and statusSQL (which see), where no batch holds what it has not stamped.
const (
	lookOwnSQL = `
SELECT
  (SELECT count(*) FROM (
     SELECT FROM outbox_events e WHERE own_id > $8::bigint AND e.group_id IS NULL
     ORDER BY own_id LIMIT $4::bigint) fresh),
  (SELECT count(*) FROM (
     SELECT FROM outbox_events e WHERE own_id > $2::bigint AND own_id <= $9::bigint AND e.group_id IS NULL
     ORDER BY own_id LIMIT $4::bigint) late),
  CASE WHEN $6::boolean THEN (
     SELECT array_agg(virtualtransaction) FROM pg_locks
     WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND relation = $7::regclass
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) END,
  clock.now,
  count(*) FILTER (WHERE due_at <= clock.now),
  count(*) FILTER (WHERE state = 'waiting'),
  count(*) FILTER (WHERE state = 'delivered'),
  min(due_at)
FROM (SELECT clock_timestamp() AS now) clock
LEFT JOIN outbox_batches ON buffer = $1 AND due_at > $5::timestamptz
WHERE $3::bigint IS NOT NULL
GROUP BY clock.now`

	fullSweepOwnSQL = `
SELECT count(*) FROM (
  SELECT FROM outbox_events e
  WHERE own_id > $2::bigint AND own_id <= $3::bigint AND e.group_id IS NULL AND $1::text IS NOT NULL
  ORDER BY own_id LIMIT $4::bigint) late`

	statusOwnSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(greatest(events - cardinality(delivered), 0)), 0)::bigint AS claimed,
         min(oldest_at) FILTER (WHERE events > cardinality(delivered) AND isfinite(oldest_at)) AS oldest_at
  FROM outbox_batches WHERE buffer = $1
), fresh AS (
  SELECT count(*) AS events, min(created_at) AS oldest_at FROM (
    SELECT own_created AS created_at FROM outbox_events e
    WHERE own_id > $2::bigint AND e.group_id IS NULL
    ORDER BY own_id LIMIT $6::bigint) counted
)
SELECT leased, waiting, delivered, claimed, fresh.events,
       coalesce(extract(epoch FROM clock_timestamp() - least(ledger.oldest_at, fresh.oldest_at)) * 1000000, 0)::bigint,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $4 AND closed_at IS NULL),
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)) * 1000000, 0)::bigint
        FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'),
       greatest((SELECT reltuples FROM pg_class WHERE oid = $5::regclass), 0)::bigint,
       CASE WHEN $3::bigint > 0 THEN $3::bigint - $2::bigint ELSE 9223372036854775807 END,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = $4 AND closed_at IS NULL AND notified_at IS NULL)
FROM ledger, fresh`
)

// Ledger and buffer are compared, and mended, as in audit.go and sweep.go.
const (
	foundOwnSQL = `
WITH found AS (
  SELECT e.group_id, own_find AS find, own_created AS created_at FROM outbox_events e WHERE e.group_id IS NOT NULL
)`

	auditOwnSQL = foundOwnSQL + `, stamped AS (
  SELECT e.group_id, count(*) AS events, count(*) FILTER (WHERE own_marked = ANY (l.delivered)) AS delivered, l.group_id IS NULL AS orphan
  FROM found e LEFT JOIN outbox_batches l ON l.group_id = e.group_id
  GROUP BY e.group_id, l.group_id
), ledger AS (
  SELECT l.state, l.events AS said, coalesce(s.events, 0) AS events, coalesce(s.delivered, 0) AS delivered
  FROM outbox_batches l LEFT JOIN stamped s ON s.group_id = l.group_id
  WHERE l.buffer = $1
)
SELECT (SELECT count(*) FROM outbox_events WHERE group_id IS NULL),` + auditedSQL

	removeHollowOwnSQL = foundOwnSQL + `
DELETE FROM outbox_batches l
WHERE buffer = $1 AND NOT (state = 'leased' AND due_at > clock_timestamp())
  AND NOT EXISTS (SELECT FROM found f WHERE f.group_id = l.group_id)`

	correctUnevenOwnSQL = foundOwnSQL + `
UPDATE outbox_batches l
SET events = s.events, oldest_at = s.oldest_at, own_corrected,
    delivered = coalesce(s.delivered, l.delivered)
FROM (SELECT l.group_id, count(*) AS events, min(f.created_at) AS oldest_at, own_more,
             array_agg(own_marked ORDER BY find) FILTER (WHERE own_marked = ANY (l.delivered)) AS delivered
      FROM found f JOIN outbox_batches l ON l.group_id = f.group_id AND l.buffer = $1
      GROUP BY l.group_id) s
WHERE l.buffer = $1 AND s.group_id = l.group_id AND s.events <> l.events
  AND $2::boolean IS NOT NULL AND NOT (l.state = 'leased' AND l.due_at > clock_timestamp())`

	adoptOwnSQL = foundOwnSQL + `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, uuids)
SELECT group_id, $1, 'stamp', 'waiting', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp(), $2, 0,
       0, 0, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, 'found without a ledger row', uuids
FROM (SELECT f.group_id, count(*) AS events, min(created_at) AS oldest_at, own_block FROM found f
      WHERE $3::boolean IS NOT NULL AND NOT EXISTS (SELECT FROM outbox_batches l WHERE l.group_id = f.group_id)
      GROUP BY f.group_id) block
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`
)

// either is the statement for a table of the user's own where it is one.
func (t *table) either(relays, own string) string {
	if t.own != nil {
		return t.sql(own)
	}
	return t.sql(relays)
}
