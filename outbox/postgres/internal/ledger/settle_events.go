package ledger

import (
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Each delete has a companion that copies what it deletes to the archive, in the same statement.
// The bounds make the plan: a walk along the primary key from the first id to the last,
// even with wrong statistics.
const (
	// Exactly these ids; one that carries a group_id must carry the batch's. By range, it carries none; an event that
	// is newer than the batch has a reused id: it stays.
	deleteSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.fenced') = '1'
  AND id BETWEEN $2::bigint AND $3::bigint AND id <@ $4::int8multirange
  AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)`

	// Ids without a gap need no set.
	deleteRunSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.fenced') = '1' AND id BETWEEN $2::bigint AND $3::bigint
  AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)`

	// Skip rows locked by the application and retry them later, so that the relay, not the
	// application, is the deadlock victim.
	deleteFreeSQL = `
DELETE FROM outbox_events
WHERE id = ANY (ARRAY(
  SELECT id FROM outbox_events
  WHERE current_setting('relay.fenced') = '1'
    AND id BETWEEN $2::bigint AND $3::bigint AND id <@ $4::int8multirange
    AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
  ORDER BY id
  FOR UPDATE SKIP LOCKED))`

	// archiveSQL ends a statement whose WITH deletes what was delivered. An event can be
	// there already: a restored buffer delivers it again under the group_id it had.
	archiveSQL = `
RETURNING id, topic, key, payload, headers, created_at)
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id, routes_no)
SELECT id, topic, key, payload, headers, created_at, $1::uuid, ` + RoutesNoSQL + ` FROM gone
ON CONFLICT (id, group_id) DO NOTHING`

	archiveDeletedSQL = `WITH gone AS (` + deleteSQL + archiveSQL
	archiveFreeSQL    = `WITH gone AS (` + deleteFreeSQL + archiveSQL

	closeSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_events e
    WHERE e.id BETWEEN $4::bigint AND $5::bigint AND (e.group_id = $2::uuid
      OR e.group_id IS NULL AND e.id <@ $6::int8multirange AND e.created_at <= ` + NewestSQL + `))`

	// What is left of a delivered batch was locked, and is deleted next time.
	keepSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids,
       members = CASE WHEN outbox_batches.members IS NOT NULL THEN locked.members END
FROM (SELECT count(*) AS events, array_agg(id ORDER BY id) AS ids, range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) AS members
      FROM outbox_events
      WHERE id BETWEEN $4::bigint AND $5::bigint AND (group_id = $2::uuid
        OR group_id IS NULL AND id <@ $6::int8multirange AND created_at <= ` + NewestSQL + `)) locked
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0
RETURNING locked.ids`

	// Without a policy for UPDATE, row-level security lets nobody lock a row.
	freeSQL = `
SELECT id FROM (
  SELECT id FROM outbox_events
  WHERE current_setting('relay.fenced') = '1'
    AND id BETWEEN $2::bigint AND $3::bigint AND id <@ $4::int8multirange
    AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
  ORDER BY id
  FOR UPDATE SKIP LOCKED) locked
UNION ALL
SELECT id FROM outbox_events
WHERE row_security_active($5::regclass) AND current_setting('relay.fenced') = '1'
  AND id <@ $4::int8multirange AND id BETWEEN $2::bigint AND $3::bigint
  AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)`

	// The sink has these events, so they hold no key.
	recordKeptSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, delivered, members, lanes, sink)
SELECT $2::uuid, $1, CASE WHEN current_setting('relay.newest_at') = '' THEN 'stamp' ELSE 'range' END, 'delivered', $3::bigint, clock_timestamp() + $5::interval, $4, 1,
       0, 0, count(*), min(id), max(id), min(created_at), CASE WHEN current_setting('relay.newest_at') <> '' THEN max(created_at) END, array_agg(id ORDER BY id),
       CASE WHEN current_setting('relay.newest_at') <> '' THEN range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) END, '{}', ` + SinkSQL + `
FROM outbox_events
WHERE current_setting('relay.fenced') = '1' AND id BETWEEN $6::bigint AND $7::bigint AND id <@ $8::int8multirange
  AND (group_id = $2::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
HAVING count(*) > 0
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`

	// A restored buffer brings an event back under a group_id that it died under before. If that
	// dead letter was closed since, it is opened again.
	burySQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, sink, history)
SELECT $1, e.id, e.topic, e.key, e.payload, e.headers, e.created_at, $2::uuid, $5::int, $6, ` + SinkSQL + `, ` + HistorySQL + `
FROM outbox_events e
WHERE current_setting('relay.fenced') = '1'
  AND e.id BETWEEN $3::bigint AND $4::bigint AND e.id <@ $7::int8multirange
  AND (e.group_id = $2::uuid OR e.group_id IS NULL AND e.created_at <= ` + NewestSQL + `)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = EXCLUDED.topic, key = EXCLUDED.key, payload = EXCLUDED.payload, headers = EXCLUDED.headers,
    created_at = EXCLUDED.created_at, attempts = EXCLUDED.attempts, error = EXCLUDED.error, history = EXCLUDED.history,
    died_at = clock_timestamp(), notified_at = NULL, closed_at = NULL, closed_as = NULL, closed_by = NULL, closed_reason = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	// A trigger may have dropped the row without an error. Then this is one, and says so; see pg.IsRefused.
	unburiedSQL = `
SELECT (e.id || ' has no dead letter: a trigger on INSERT of outbox_dead_letters drops or deletes the row')::bigint
FROM outbox_events e
WHERE current_setting('relay.fenced') = '1'
  AND e.id BETWEEN $3::bigint AND $4::bigint AND e.id <@ $5::int8multirange
  AND (e.group_id = $2::uuid OR e.group_id IS NULL AND e.created_at <= ` + NewestSQL + `)
  AND NOT EXISTS (SELECT FROM outbox_dead_letters d WHERE d.pipeline = $1 AND d.event_id = e.id AND d.group_id = $2::uuid)`

	// The events get a new group_id, with a ledger row that names where they came from. If an UPDATE left any as it was, the
	// row has no number of events, and the table refuses it: see Tables.Unstamped.
	regroupSQL = `
WITH found AS MATERIALIZED (
  SELECT id FROM outbox_events
  WHERE current_setting('relay.fenced') = '1' AND group_id = $2::uuid
    AND id BETWEEN $4::bigint AND $5::bigint AND id <@ $6::int8multirange
    AND current_setting('relay.newest_at') = ''
  ORDER BY id
  FOR NO KEY UPDATE
), regrouped AS (
  UPDATE outbox_events SET group_id = $3::uuid
  WHERE id = ANY (ARRAY(SELECT id FROM found))
  RETURNING id, key, greatest(created_at, available_at) AS created_at, group_id
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, sink, routes_no, history, lanes)
SELECT $3::uuid, $1, 'stamp', 'waiting', 0, clock_timestamp() + $7::interval, $8, $14::int,
       $9::int, $10::int, CASE WHEN count(*) = (SELECT count(*) FROM found) THEN count(*) END, min(id), max(id), min(created_at), $11::uuid[], $12, $13, ` + SinkSQL + `, ` + RoutesNoSQL + `, ` + HistorySQL + `,
       CASE WHEN $15::boolean THEN ARRAY(SELECT DISTINCT hashtext(key) FROM regrouped WHERE key IS NOT NULL) END
FROM regrouped WHERE group_id = $3::uuid HAVING EXISTS (SELECT FROM found)`

	// The events of a range stay as they are.
	regroupRangeSQL = `
WITH regrouped AS MATERIALIZED (
  SELECT id, created_at, available_at FROM outbox_events
  WHERE current_setting('relay.fenced') = '1' AND current_setting('relay.newest_at') <> ''
    AND id BETWEEN $4::bigint AND $5::bigint AND group_id IS NULL AND id <@ $6::int8multirange AND created_at <= ` + NewestSQL + `
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, origins, error, address, members, sink, routes_no, history)
SELECT $3::uuid, $1, 'range', 'waiting', 0, clock_timestamp() + $7::interval, $8, $14::int,
       $9::int, $10::int, count(*), min(id), max(id), min(greatest(created_at, available_at)), max(created_at), $11::uuid[], $12, $13,
       range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')), ` + SinkSQL + `, ` + RoutesNoSQL + `, ` + HistorySQL + `
FROM regrouped WHERE $2::uuid IS NOT NULL HAVING count(*) > 0`
)

// EventSteps are the steps for the events of the relay's own table.
func (s *Settlement) EventSteps(o *outcomes.Set) []pg.Step {
	if o.RetriesWhole() {
		return nil
	}
	var steps []pg.Step
	for _, d := range o.Dead {
		steps = append(append(steps, s.HistoryStep(d)), s.bury(d)...)
	}
	for _, r := range o.Retry {
		steps = append(append(steps, s.HistoryStep(r)), s.regroup(r)...)
	}
	if step, ok := s.FreeRest(o); ok {
		return append(steps, step)
	}
	if s.Shared() {
		return append(steps, s.sharedSteps(o)...)
	}
	gone, dead := o.IDs(s.Batch)
	if !s.Tables.Archive { // then both are only deleted
		gone, dead = append(gone, dead...), nil
	}
	if !s.Batch.DeliveryRecorded() {
		s.RecordKept(func() pg.Step {
			return pg.Step{SQL: s.Tables.SQL(recordKeptSQL), Args: append(s.KeptArgs(), append(s.Bounds()[1:], idset.Of(append(gone, dead...)).Multirange())...)}
		})
		return append(steps, s.deleteSteps(deleteSQL, archiveDeletedSQL, gone, dead)...)
	}
	left := idset.Of(slices.Concat(gone, dead)).Multirange()
	steps = append(steps, s.Free(pg.Step{SQL: s.Tables.SQL(freeSQL), Args: append(s.Bounds(), left, s.Tables.Events)}))
	steps = append(steps, s.deleteSteps(deleteFreeSQL, archiveFreeSQL, gone, dead)...)
	return append(steps, s.Closing(closeSQL, &s.Closed, left), s.Left(s.Closing(keepSQL, nil, left)))
}

// deleteSteps are the steps for those that were delivered and those that were buried.
func (s *Settlement) deleteSteps(plainSQL, archivedSQL string, delivered, dead []int64) []pg.Step {
	var deletes []pg.Step
	add := func(sql string, ids []int64) {
		if len(ids) > 0 {
			slices.Sort(ids)
			first, last := ids[0], ids[len(ids)-1]
			args := []string{s.Batch.GroupID.String(), pg.Int(first), pg.Int(last)}
			if sql == deleteSQL && last-first == int64(len(ids))-1 {
				sql = deleteRunSQL
			} else {
				args = append(args, idset.Of(ids).Multirange())
			}
			deletes = append(deletes, s.Deleting(len(ids), pg.Step{Prepare: true, SQL: s.Tables.SQL(sql), Args: args}))
		}
	}
	if s.Tables.Archive {
		add(archivedSQL, delivered)
	} else {
		add(plainSQL, delivered)
	}
	add(plainSQL, dead)
	return deletes
}

func (s *Settlement) bury(o *buffer.Outcome) []pg.Step {
	ids := o.IDs
	if ids == nil {
		ids = s.Batch.IDs()
	}
	args, set := append([]string{s.Batch.Pipeline}, s.Bounds()...), idset.Of(ids).Multirange()
	if s.Shared() {
		return []pg.Step{
			{SQL: s.Tables.SQL(burySharedSQL), Args: append(slices.Clone(args), pg.Int(int64(o.Attempts)), s.Ledger.base.DB.Text(o.Error), set, s.claim())},
			{SQL: s.Tables.SQL(unburiedSharedSQL), Args: append(args, set, s.claim())},
		}
	}
	return []pg.Step{
		{SQL: s.Tables.SQL(burySQL), Args: append(slices.Clone(args), pg.Int(int64(o.Attempts)), s.Ledger.base.DB.Text(o.Error), set)},
		{SQL: s.Tables.SQL(unburiedSQL), Args: append(args, set)},
	}
}

// regroup are the steps that give events a new group_id. One of them does it, depending on how the fence found
// the batch's rows.
func (s *Settlement) regroup(o *buffer.Outcome) []pg.Step {
	args := s.RegroupArgs(o, idset.Of(o.IDs).Multirange())
	if s.Shared() {
		steps := []pg.Step{{SQL: s.Tables.SQL(regroupSharedSQL), Args: append(args, s.claim())}}
		if s.ordered() {
			steps = append(steps, LanesStep(s.Tables, o.GroupID))
		}
		return steps
	}
	return []pg.Step{
		{SQL: s.Tables.SQL(regroupSQL), Args: append(slices.Clone(args), pg.Bool(s.Ledger.base.Ordered))},
		{SQL: s.Tables.SQL(regroupRangeSQL), Args: args},
	}
}
