package postgres

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The letters of a batch are found by their stamp while they are untold.
const (
	tellSQL = `
UPDATE outbox_dead_letters SET notified_at = clock_timestamp()
WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $1::uuid
  AND event_id BETWEEN $2::bigint AND $3::bigint AND pipeline = $4 AND notified_at IS NULL
  AND ($5::bigint[] IS NULL OR event_id = ANY ($5::bigint[]))`

	tellFreeSQL = `
UPDATE outbox_dead_letters SET notified_at = clock_timestamp()
WHERE hook_group_id = $1::uuid AND notified_at IS NULL AND pipeline = $4 AND event_id = ANY (ARRAY(
  SELECT event_id FROM outbox_dead_letters
  WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $1::uuid
    AND event_id BETWEEN $2::bigint AND $3::bigint AND pipeline = $4 AND notified_at IS NULL
    AND ($5::bigint[] IS NULL OR event_id = ANY ($5::bigint[]))
  ORDER BY event_id
  FOR UPDATE SKIP LOCKED))`

	moveLettersSQL = `
WITH moved AS (
  UPDATE outbox_dead_letters SET hook_group_id = $3::uuid
  WHERE current_setting('relay.fenced') = '1' AND hook_group_id = $2::uuid AND notified_at IS NULL
    AND event_id BETWEEN $4::bigint AND $5::bigint AND pipeline = $14 AND event_id = ANY ($6::bigint[])
  RETURNING event_id, died_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, 0,
       $9::int, $10::int, count(*), min(event_id), max(event_id), min(died_at), $11::uuid[], $12, $13
FROM moved HAVING count(*) > 0`

	closeHookLedgerSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_dead_letters d
    WHERE d.event_id BETWEEN $4::bigint AND $5::bigint AND d.hook_group_id = $2::uuid AND d.notified_at IS NULL)`

	keepHookLedgerSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids
FROM (SELECT count(*) AS events, array_agg(event_id ORDER BY event_id) AS ids FROM outbox_dead_letters
      WHERE event_id BETWEEN $4::bigint AND $5::bigint AND hook_group_id = $2::uuid AND notified_at IS NULL) locked
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0`
)

// Settle is described by buffertest.Hook.
func (h *Hook) Settle(ctx context.Context, batch *buffer.Lease, results []buffer.Outcome) error {
	t, err := h.b.ready(ctx)
	if err != nil {
		return err
	}
	set, err := outcomes.Group(batch, results)
	if err != nil {
		return err
	}
	if len(set.Dead) > 0 {
		return errors.New("settling dead letters: an outcome is dead, and a dead letter does not die again")
	}
	s := telling{ledger.Settlement{Ledger: h.Ledger, Tables: &t.Tables, Batch: batch}, h.b.config.Pipeline}
	return s.Run(ctx, &set, s.work(&set))
}

// telling is the settlement of a hook's batch.
type telling struct {
	ledger.Settlement
	pipeline string
}

// work is what is done to the letters, behind the fence.
func (s *telling) work(o *outcomes.Set) []pg.Step {
	if o.RetriesWhole() {
		return nil
	}
	var work []pg.Step
	for _, r := range o.Retry {
		work = append(work, pg.Step{SQL: s.Tables.SQL(moveLettersSQL), Args: append(s.RegroupArgs(r, pg.IDArray(r.IDs)), s.pipeline)})
	}
	if len(o.Delivered) > 0 {
		work = append(work, s.tell(o))
	}
	if s.Batch.DeliveryRecorded() {
		work = append(work, s.Closing(closeHookLedgerSQL, &s.Closed), s.Closing(keepHookLedgerSQL, nil))
	}
	return work
}

func (s *telling) tell(o *outcomes.Set) pg.Step {
	sql := tellSQL
	if s.Batch.DeliveryRecorded() {
		sql = tellFreeSQL
	}
	ids := pg.Null
	if o.All == nil {
		told, _ := o.IDs(s.Batch)
		ids = pg.IDArray(told)
	}
	return pg.Step{SQL: s.Tables.SQL(sql), Args: append(s.Bounds(), s.pipeline, ids)}
}
