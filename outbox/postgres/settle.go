package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Each delete has a companion that copies what it deletes to the archive, in the same
// statement. The bounds beside the set are what makes the plan: a walk along the
// primary key from the first to the last, whatever the statistics say.
const (
	// Exactly these ids, and of those that carry a group_id the batch's alone.
	deleteSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.fenced') = '1'
  AND id BETWEEN $2::bigint AND $3::bigint AND id <@ $4::int8multirange
  AND (group_id = $1::uuid OR (SELECT current_setting('relay.by_range') = '1'))`

	// Ids without a gap between them are these and no others.
	deleteRunSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.fenced') = '1' AND id BETWEEN $2::bigint AND $3::bigint
  AND (group_id = $1::uuid OR (SELECT current_setting('relay.by_range') = '1'))`

	// What the application has locked is left for the next time: in a deadlock
	// between the two it must not be the application that is shot.
	deleteFreeSQL = `
DELETE FROM outbox_events
WHERE id = ANY (ARRAY(
  SELECT id FROM outbox_events
  WHERE current_setting('relay.fenced') = '1'
    AND id BETWEEN $2::bigint AND $3::bigint AND id <@ $4::int8multirange
    AND (group_id = $1::uuid OR (SELECT current_setting('relay.by_range') = '1'))
  ORDER BY id
  FOR UPDATE SKIP LOCKED))`

	// archiveSQL ends a statement whose WITH deletes what was delivered. An event can be
	// there already: a restored buffer delivers it again under the group_id it had.
	archiveSQL = `
RETURNING id, topic, key, payload, headers, created_at)
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id)
SELECT id, topic, key, payload, headers, created_at, $1::uuid FROM gone
ON CONFLICT (id, group_id) DO NOTHING`

	archiveDeletedSQL = `WITH gone AS (` + deleteSQL + archiveSQL
	archiveFreeSQL    = `WITH gone AS (` + deleteFreeSQL + archiveSQL

	closeLedgerSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_events e
    WHERE e.id BETWEEN $4::bigint AND $5::bigint AND (e.group_id = $2::uuid
      OR e.id <@ $6::int8multirange AND (SELECT current_setting('relay.by_range') = '1')))`

	// Whatever a marked batch has left was locked, and is to be deleted next time.
	keepLedgerSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids,
       members = CASE WHEN outbox_batches.members IS NOT NULL THEN locked.members END
FROM (SELECT count(*) AS events, array_agg(id ORDER BY id) AS ids, range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) AS members
      FROM outbox_events
      WHERE id BETWEEN $4::bigint AND $5::bigint AND (group_id = $2::uuid
        OR id <@ $6::int8multirange AND (SELECT current_setting('relay.by_range') = '1'))) locked
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0`

	// A restored buffer brings an event back under a group_id that it died under
	// before. A letter that was closed since is no place for it: it is opened anew.
	burySQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error)
SELECT $1, e.id, e.topic, e.key, e.payload, e.headers, e.created_at, $2::uuid, $5::int, $6
FROM outbox_events e
WHERE current_setting('relay.fenced') = '1'
  AND e.id BETWEEN $3::bigint AND $4::bigint AND e.id <@ $7::int8multirange
  AND (e.group_id = $2::uuid OR (SELECT current_setting('relay.by_range') = '1'))
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = EXCLUDED.topic, key = EXCLUDED.key, payload = EXCLUDED.payload, headers = EXCLUDED.headers,
    created_at = EXCLUDED.created_at, attempts = EXCLUDED.attempts, error = EXCLUDED.error,
    died_at = clock_timestamp(), notified_at = NULL, closed_at = NULL, closed_as = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	// A new group_id: the events change over, with a ledger row that names where
	// they came from.
	moveSQL = `
WITH moved AS (
  UPDATE outbox_events SET group_id = $3::uuid
  WHERE current_setting('relay.fenced') = '1' AND group_id = $2::uuid
    AND id BETWEEN $4::bigint AND $5::bigint AND id <@ $6::int8multirange
    AND current_setting('relay.by_range') = ''
  RETURNING id, key, created_at
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, lanes)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, 0,
       $9::int, $10::int, count(*), min(id), max(id), min(created_at), $11::uuid[], $12, $13,
       CASE WHEN $14::boolean THEN ARRAY(SELECT DISTINCT hashtext(key) FROM moved WHERE key IS NOT NULL) END
FROM moved HAVING count(*) > 0`

	// The events of a range stay as they are.
	moveRangeSQL = `
WITH moved AS MATERIALIZED (
  SELECT id, created_at FROM outbox_events
  WHERE current_setting('relay.fenced') = '1' AND current_setting('relay.by_range') = '1'
    AND id BETWEEN $4::bigint AND $5::bigint AND id <@ $6::int8multirange
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, members)
SELECT $3::uuid, $1, 'range', 'waiting', 0, clock_timestamp() + $7::interval, $8, 0,
       $9::int, $10::int, count(*), min(id), max(id), min(created_at), $11::uuid[], $12, $13,
       range_agg(int8range(id, nullif(id, 9223372036854775807), '[]'))
FROM moved WHERE $2::uuid IS NOT NULL HAVING count(*) > 0`
)

// Settle is described by buffertest.Buffer.
func (b *Buffer) Settle(ctx context.Context, batch *buffer.Lease, results []buffer.Outcome) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	set, err := outcomes.Group(batch, results)
	if err != nil {
		return err
	}
	s := settlement{ledger: b.ledger, table: t, batch: batch}
	if t.own != nil {
		return s.run(ctx, &set, s.workOwn(&set))
	}
	return s.run(ctx, &set, s.work(&set))
}

// work is what is done to the events, behind the fence.
func (s *settlement) work(o *outcomes.Set) []pg.Step {
	if o.RetriesWhole() {
		return nil
	}
	var work []pg.Step
	for _, d := range o.Dead {
		work = append(work, s.bury(d))
	}
	for _, r := range o.Retry {
		work = append(work, s.move(r)...)
	}
	gone, dead := o.IDs(s.batch)
	if !s.table.archive { // then they go the same way
		gone, dead = append(gone, dead...), nil
	}
	if !s.batch.DeliveryRecorded() {
		return append(work, s.deletes(deleteSQL, archiveDeletedSQL, gone, dead)...)
	}
	work = append(work, s.deletes(deleteFreeSQL, archiveFreeSQL, gone, dead)...)
	left := pg.Multirange(append(gone, dead...))
	return append(work, s.closing(closeLedgerSQL, &s.closed, left), s.closing(keepLedgerSQL, nil, left))
}

// deletes are the steps for those that were delivered and those that were buried.
func (s *settlement) deletes(plainSQL, archiveSQL string, delivered, dead []int64) []pg.Step {
	var steps []pg.Step
	deleting := func(sql string, ids []int64) {
		if len(ids) > 0 {
			slices.Sort(ids)
			first, last := ids[0], ids[len(ids)-1]
			args := []string{s.batch.GroupID.String(), pg.Int(first), pg.Int(last)}
			if sql == deleteSQL && last-first == int64(len(ids))-1 {
				sql = deleteRunSQL
			} else {
				args = append(args, pg.Multirange(ids))
			}
			steps = append(steps, pg.Step{Prepare: true, SQL: s.table.sql(sql), Args: args})
		}
	}
	if s.table.archive {
		deleting(archiveSQL, delivered)
	} else {
		deleting(plainSQL, delivered)
	}
	deleting(plainSQL, dead)
	return steps
}

func (s *settlement) bounds() []string {
	return []string{s.batch.GroupID.String(), pg.Int(s.batch.FirstID), pg.Int(s.batch.LastID)}
}

// closing is a step about the ledger row and what is left of its events.
func (s *settlement) closing(sql string, affected *int64, more ...string) pg.Step {
	return pg.Step{SQL: s.table.sql(sql), Args: append([]string{
		s.ledger.name(s.table), s.batch.GroupID.String(), pg.Int(s.batch.LeaseNo), pg.Int(s.batch.FirstID), pg.Int(s.batch.LastID),
	}, more...), Affected: affected}
}

func (s *settlement) bury(o *buffer.Outcome) pg.Step {
	ids := o.IDs
	if ids == nil {
		ids = s.batch.IDs()
	}
	args := append([]string{s.batch.Pipeline}, s.bounds()...)
	return pg.Step{SQL: s.table.sql(burySQL), Args: append(args, pg.Int(int64(o.Attempts)), pg.Text(o.Error), pg.Multirange(ids))}
}

// move are the steps that give events a new group_id. One of them does it: how the
// batch's rows are found is known behind the fence.
func (s *settlement) move(o *buffer.Outcome) []pg.Step {
	args := s.part(o, pg.Multirange(o.IDs))
	return []pg.Step{
		{SQL: s.table.sql(moveSQL), Args: append(slices.Clone(args), pg.Bool(s.ledger.b.config.Ordered))},
		{SQL: s.table.sql(moveRangeSQL), Args: args},
	}
}

// part are the parameters of a statement that gives events a new group_id.
func (s *settlement) part(o *buffer.Outcome, ids string) []string {
	origins := append(append(make([]uuid.UUID, 0, len(s.batch.Origins)+1), s.batch.Origins...), s.batch.GroupID)
	return []string{
		s.ledger.name(s.table), s.batch.GroupID.String(), o.GroupID.String(), pg.Int(s.batch.FirstID), pg.Int(s.batch.LastID),
		ids, pg.Interval(o.After), s.ledger.b.config.Owner,
		pg.Int(int64(o.Attempts)), pg.Int(int64(o.Outages)), pg.UUIDArray(origins), pg.Text(o.Error), pg.OptionalText(o.Address),
	}
}
