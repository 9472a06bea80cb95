package deadletter

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The dead letters of a batch are those that carry its hook_group_id and are not notified.
const (
	markNotifiedSQL = `
UPDATE outbox_dead_letters SET notified_at = clock_timestamp()
WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $1::uuid
  AND event_id BETWEEN $2::bigint AND $3::bigint AND pipeline = $4 AND notified_at IS NULL
  AND ($5::bigint[] IS NULL OR event_id = ANY ($5::bigint[]))`

	// Skip locked ones, of a batch whose delivery is recorded, and mark them later.
	markUnlockedSQL = `
UPDATE outbox_dead_letters SET notified_at = clock_timestamp()
WHERE hook_group_id = $1::uuid AND notified_at IS NULL AND pipeline = $4 AND event_id = ANY (ARRAY(
  SELECT event_id FROM outbox_dead_letters
  WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $1::uuid
    AND event_id BETWEEN $2::bigint AND $3::bigint AND pipeline = $4 AND notified_at IS NULL
    AND ($5::bigint[] IS NULL OR event_id = ANY ($5::bigint[]))
  ORDER BY event_id
  FOR UPDATE SKIP LOCKED))`

	regroupSQL = `
WITH regrouped AS (
  UPDATE outbox_dead_letters SET hook_group_id = $3::uuid
  WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $2::uuid AND notified_at IS NULL
    AND event_id BETWEEN $4::bigint AND $5::bigint AND pipeline = $14 AND event_id = ANY ($6::bigint[])
  RETURNING event_id, died_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, 0,
       $9::int, $10::int, count(*), min(event_id), max(event_id), min(died_at), $11::uuid[], $12, $13
FROM regrouped HAVING count(*) > 0`

	closeSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_dead_letters d
    WHERE d.event_id BETWEEN $4::bigint AND $5::bigint AND d.hook_group_id = $2::uuid AND d.notified_at IS NULL)`

	keepSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids
FROM (SELECT count(*) AS events, array_agg(event_id ORDER BY event_id) AS ids FROM outbox_dead_letters
      WHERE event_id BETWEEN $4::bigint AND $5::bigint AND hook_group_id = $2::uuid AND notified_at IS NULL) locked
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0`
)

// Settle implements buffer.Settler.
func (q *Queue) Settle(ctx context.Context, batch *buffer.Lease, results []buffer.Outcome) error {
	t, err := q.base.Ready(ctx)
	if err != nil {
		return err
	}
	set, err := outcomes.Group(batch, results)
	if err != nil {
		return err
	}
	if len(set.Dead) > 0 {
		return errors.New("settling dead letters: a dead letter cannot be buried again")
	}
	s := ledger.Settlement{Ledger: q.Ledger, Tables: t, Batch: batch}
	return s.Run(ctx, &set, q.settleSteps(&s, &set))
}

// settleSteps are the steps about the dead letters, after the fence.
func (q *Queue) settleSteps(s *ledger.Settlement, o *outcomes.Set) []pg.Step {
	if o.RetriesWhole() {
		return nil
	}
	var steps []pg.Step
	for _, r := range o.Retry {
		steps = append(steps, pg.Step{SQL: s.Tables.SQL(regroupSQL), Args: append(s.RegroupArgs(r, pg.IDArray(r.IDs)), q.base.Pipeline)})
	}
	recorded := s.Batch.DeliveryRecorded()
	if len(o.Delivered) > 0 {
		sql, ids := markNotifiedSQL, pg.Null
		if recorded {
			sql = markUnlockedSQL
		}
		if o.All == nil {
			delivered, _ := o.IDs(s.Batch)
			ids = pg.IDArray(delivered)
		}
		steps = append(steps, pg.Step{SQL: s.Tables.SQL(sql), Args: append(s.Bounds(), q.base.Pipeline, ids)})
	}
	if recorded {
		steps = append(steps, s.Closing(closeSQL, &s.Closed), s.Closing(keepSQL, nil))
	}
	return steps
}
