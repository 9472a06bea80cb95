package postgres

import "github.com/outboxrelay/relay/outbox/postgres/internal/pg"

import "context"

// The parts of one batch may share keys. They have the first of their origins in
// common, and those that do are gone through in the order of their first ids: the
// sink's worker divides so that this is the order of the keys that they share. What
// was delivered is only deleted, and waits for nobody.
const dueInOrder = `
  FROM outbox_batches d
  WHERE buffer = $1 AND due_at > $2::timestamptz AND due_at <= (SELECT clock_timestamp())
    AND (state = 'delivered' OR origins = '{}' OR NOT EXISTS (
      SELECT FROM outbox_batches s
      WHERE s.buffer = $1 AND s.origins[1] = d.origins[1] AND s.first_id < d.first_id AND s.lanes && d.lanes))`

// dueInOrderSQL is dueSQL where order is kept.
const dueInOrderSQL = `
WITH due AS (
  SELECT group_id` + dueInOrder + `
  ORDER BY due_at LIMIT 1
  FOR UPDATE SKIP LOCKED
)`

const takeOverInOrderSQL = dueInOrderSQL + takenSQL + eventsTakenSQL

const countDueInOrderSQL = `
SELECT count(*)` + dueInOrder

// countDue is how many batches are due and wait for no other: the pipeline would be
// taken for one that stands still else.
func (b *Buffer) countDue(ctx context.Context, t *table) (due int, err error) {
	err = b.db.Transact(ctx, pg.ReadTx(b.db.StatementTimeout, "enable_seqscan", "off"), pg.Step{
		SQL: t.sql(countDueInOrderSQL), Args: []string{t.buffer, pg.Timestamp(b.watermarks.DueAfter())},
		Row: func(v [][]byte) error {
			due = int(pg.ReadInt8(v[0]))
			return nil
		},
	})
	return due, err
}
