package ledger

// HeldSQL are the ids that live batches hold beyond $2. Nothing is '{}' and not NULL, because NOT (id <@ NULL) is
// not true. ORDER BY makes the plan use the index on last_id whatever the statistics say.
// upto is where fresh events begin. An id that was given by hand may lie far beyond the sequence's last
// value, $3, with unclaimed events before it; a sweep finds the events between the others.
const HeldSQL = `
held AS MATERIALIZED (
  SELECT coalesce(range_agg(m), '{}') AS members,
         greatest($2::bigint, max(last_id) FILTER (WHERE last_id <= $3::bigint)) AS upto
  FROM (SELECT last_id, members FROM outbox_batches
        WHERE buffer = $1 AND last_id > $2::bigint AND members IS NOT NULL
        ORDER BY last_id) beyond, unnest(members) m
)`
