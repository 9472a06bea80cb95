package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// Each delete has a companion that copies what it deletes to the archive, in the same
// statement.
const (
	deleteAllSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.holds') = '1' AND group_id = $1::uuid
  AND id BETWEEN $2::bigint AND $3::bigint`

	deleteSomeSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.holds') = '1' AND group_id = $1::uuid
  AND id = ANY ($2::bigint[])`

	// What the application has locked is left for the next time: in a deadlock
	// between the two it must not be the application that is shot.
	deleteFreeSQL = `
DELETE FROM outbox_events
WHERE id = ANY (ARRAY(
  SELECT id FROM outbox_events
  WHERE current_setting('relay.holds') = '1' AND group_id = $1::uuid AND id = ANY ($2::bigint[])
  ORDER BY id
  FOR UPDATE SKIP LOCKED))`

	archiveAllSQL  = `WITH gone AS (` + deleteAllSQL + archiveSQL
	archiveSomeSQL = `WITH gone AS (` + deleteSomeSQL + archiveSQL
	archiveFreeSQL = `WITH gone AS (` + deleteFreeSQL + archiveSQL

	closeLedgerSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.holds') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_events e
    WHERE e.id BETWEEN $4::bigint AND $5::bigint AND e.group_id = $2::uuid)`

	// Whatever a marked batch has left was locked, and is to be deleted next time.
	keepLedgerSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids
FROM (SELECT count(*) AS events, array_agg(id ORDER BY id) AS ids FROM outbox_events
      WHERE id BETWEEN $4::bigint AND $5::bigint AND group_id = $2::uuid) locked
WHERE current_setting('relay.holds') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0`

	// A restored buffer brings an event back under a group_id that it died under
	// before. A letter that was closed since is no place for it: it is opened anew.
	burySQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error)
SELECT $1, e.id, e.topic, e.key, e.payload, e.headers, e.created_at, e.group_id, $5::int, $6
FROM outbox_events e
WHERE current_setting('relay.holds') = '1' AND e.group_id = $2::uuid
  AND e.id BETWEEN $3::bigint AND $4::bigint AND ($7::bigint[] IS NULL OR e.id = ANY ($7::bigint[]))
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = EXCLUDED.topic, key = EXCLUDED.key, payload = EXCLUDED.payload, headers = EXCLUDED.headers,
    created_at = EXCLUDED.created_at, attempts = EXCLUDED.attempts, error = EXCLUDED.error,
    died_at = clock_timestamp(), told_at = NULL, closed_at = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	// A new group_id: the events change over, with a ledger row that names where
	// they came from.
	moveSQL = `
WITH moved AS (
  UPDATE outbox_events SET group_id = $3::uuid
  WHERE current_setting('relay.holds') = '1' AND group_id = $2::uuid
    AND id BETWEEN $4::bigint AND $5::bigint AND id = ANY ($6::bigint[])
  RETURNING id, key, created_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, starts,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, lanes)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, 0,
       $9::int, $10::int, count(*), min(id), max(id), min(created_at), $11::uuid[], $12, $13,
       CASE WHEN $14::boolean THEN ARRAY(SELECT DISTINCT hashtext(key) FROM moved WHERE key IS NOT NULL) END
FROM moved HAVING count(*) > 0`
)

// Settle is described by buffertest.Buffer.
func (b *Buffer) Settle(ctx context.Context, batch *outbox.Batch, outcomes []outbox.Outcome) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	kinds, err := sortOutcomes(outcomes)
	if err != nil {
		return err
	}
	s := settlement{ledger: b.ledger, table: t, batch: batch}
	return s.run(ctx, kinds, s.work(kinds))
}

// work is what is done to the events, behind the fence.
func (s *settlement) work(o kinds) []step {
	if o.back() {
		return nil
	}
	var work []step
	for _, d := range o.dead {
		work = append(work, s.bury(d))
	}
	for _, r := range o.retry {
		work = append(work, s.move(r))
	}
	gone, dead := o.ids(s.batch)
	if !s.table.archive { // then they go the same way
		gone, dead = append(gone, dead...), nil
	}
	switch {
	case s.batch.Marked():
		work = append(work, s.deletes(deleteFreeSQL, archiveFreeSQL, gone, dead)...)
		work = append(work, s.closing(closeLedgerSQL, &s.closed), s.closing(keepLedgerSQL, nil))
	case o.all == nil:
		work = append(work, s.deletes(deleteSomeSQL, archiveSomeSQL, gone, dead)...)
	case s.table.archive && o.all.Verdict == outbox.Delivered:
		work = append(work, step{sql: s.table.sql(archiveAllSQL), args: s.bounds()})
	default:
		work = append(work, step{sql: s.table.sql(deleteAllSQL), args: s.bounds()})
	}
	return work
}

// deletes are the steps for those that were delivered and those that were buried.
func (s *settlement) deletes(deleteSQL, archiveSQL string, delivered, dead []int64) []step {
	var steps []step
	deleting := func(sql string, ids []int64) {
		if len(ids) > 0 {
			steps = append(steps, step{sql: s.table.sql(sql), args: []string{s.batch.GroupID.String(), idArray(ids)}})
		}
	}
	if s.table.archive {
		deleting(archiveSQL, delivered)
	} else {
		deleting(deleteSQL, delivered)
	}
	deleting(deleteSQL, dead)
	return steps
}

func (s *settlement) bounds() []string {
	return []string{s.batch.GroupID.String(), itoa(s.batch.FirstID), itoa(s.batch.LastID)}
}

// closing is a step about the ledger row and what is left of its events.
func (s *settlement) closing(sql string, affected *int64) step {
	return step{sql: s.table.sql(sql), args: []string{
		s.ledger.name(s.table), s.batch.GroupID.String(), itoa(s.batch.LeaseNo), itoa(s.batch.FirstID), itoa(s.batch.LastID),
	}, affected: affected}
}

func (s *settlement) bury(o *outbox.Outcome) step {
	ids := null
	if o.IDs != nil {
		ids = idArray(o.IDs)
	}
	args := append([]string{s.batch.Pipeline}, s.bounds()...)
	return step{sql: s.table.sql(burySQL), args: append(args, itoa(int64(o.Attempts)), text(o.Error), ids)}
}

func (s *settlement) move(o *outbox.Outcome) step {
	return step{sql: s.table.sql(moveSQL), args: append(s.part(o), boolean(s.ledger.b.config.Ordered))}
}

// part are the parameters of a statement that gives events a new group_id.
func (s *settlement) part(o *outbox.Outcome) []string {
	origins := append(append(make([]uuid.UUID, 0, len(s.batch.Origins)+1), s.batch.Origins...), s.batch.GroupID)
	return []string{
		s.ledger.name(s.table), s.batch.GroupID.String(), o.GroupID.String(), itoa(s.batch.FirstID), itoa(s.batch.LastID),
		idArray(o.IDs), interval(o.After), s.ledger.b.config.Owner,
		itoa(int64(o.Attempts)), itoa(int64(o.Outages)), uuidArray(origins), text(o.Error), optionalText(o.Address),
	}
}
