package postgres

// dueInOrderSQL is dueSQL where order is kept. The parts of one batch may share keys.
// They have the first of their origins in common, and those that do are gone through
// in the order of their first ids: the sink's worker divides so that this is the order
// of the keys that they share. What was delivered is only deleted, and waits for
// nobody.
const dueInOrderSQL = `
WITH due AS (
  SELECT group_id FROM outbox_batches d
  WHERE buffer = $1 AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
    AND (state = 'delivered' OR origins = '{}' OR NOT EXISTS (
      SELECT FROM outbox_batches s
      WHERE s.buffer = $1 AND s.origins[1] = d.origins[1] AND s.first_id < d.first_id AND s.lanes && d.lanes))
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
)`

const takeOverInOrderSQL = dueInOrderSQL + takenSQL + eventsTakenSQL
