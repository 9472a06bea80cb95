package ledger

import (
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// An event that several sinks take is in a batch of each, and all of these have the same claim_id. A settle
// locks the claim, removes its row, and deletes those of its events that no other row of the claim holds. The
// lock is granted before the fence, so every later statement sees what another settle of the claim has left. Without it,
// two settles at the same time would each leave the event to the other. What a batch holds is its members, in every
// claim mode: the stamp on an event is the claim_id.

const lockClaimingSQL = `
SELECT pg_advisory_xact_lock(hashtextextended('relay claims ' || $1, 0))`

const lockClaimSQL = `
SELECT pg_advisory_xact_lock(hashtextextended('relay claim ' || $1, 0))`

// The claim_id is compared, because a row under another one does not see the rows that share its events. relay.sink is the
// sink of the batch: it may have another name now than when the batch was taken over.
const (
	fenceRoutedSQL = FenceSQL + `,
          set_config('relay.sink', sink, true), set_config('relay.routes_no', coalesce(routes_no::text, ''), true)`

	fenceDeleteRoutedSQL = `
DELETE FROM outbox_batches
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'
  AND claim_id IS NOT DISTINCT FROM $4::uuid` + fenceRoutedSQL

	fenceKeepRoutedSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp() + $5::interval
WHERE buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint AND state <> 'waiting'
  AND claim_id IS NOT DISTINCT FROM $4::uuid` + fenceRoutedSQL
)

// SinkSQL is the sink of the fenced batch. A fence of a buffer with a single sink does not set it.
const SinkSQL = `coalesce(nullif(current_setting('relay.sink', true), ''), 'default')`

// RoutesNoSQL is the routes_no of the fenced batch, or NULL.
const RoutesNoSQL = `(SELECT nullif(current_setting('relay.routes_no', true), '')::bigint)`

// The statements of settle_events.go for a batch that shares events. The bounds are those of relay.rest, the ids that no
// other row of the claim holds. A range that ends with the highest possible id has no upper bound.
const (
	restSQL = `
SELECT set_config('relay.rest', rest.ids::text, true), (SELECT coalesce(sum(coalesce(upper(r), 9223372036854775807) - lower(r) + CASE WHEN upper_inf(r) THEN 1 ELSE 0 END), 0)::bigint FROM unnest(rest.ids) r)
FROM (
  SELECT $2::int8multirange - coalesce((
    SELECT range_agg(m) FROM outbox_batches o, unnest(o.members) m WHERE o.claim_id = $3::uuid AND o.group_id <> $1::uuid), '{}') AS ids
  WHERE current_setting('relay.fenced') = '1') rest`

	deleteRestSQL = `
DELETE FROM outbox_events
WHERE current_setting('relay.fenced') = '1'
  AND id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
  AND id <@ (SELECT current_setting('relay.rest')::int8multirange)
  AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)`

	deleteFreeRestSQL = `
DELETE FROM outbox_events
WHERE id = ANY (ARRAY(
  SELECT id FROM outbox_events
  WHERE current_setting('relay.fenced') = '1'
    AND id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
    AND id <@ (SELECT current_setting('relay.rest')::int8multirange)
    AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
  ORDER BY id
  FOR UPDATE SKIP LOCKED))`

	// The batch that deletes an event archives it, whatever became of it at another sink.
	archiveRestSQL     = `WITH gone AS (` + deleteRestSQL + archiveSQL
	archiveFreeRestSQL = `WITH gone AS (` + deleteFreeRestSQL + archiveSQL

	// A batch whose delivery is recorded closes when none of its events is left that no other row holds.
	closeSharedSQL = `
DELETE FROM outbox_batches
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND group_id = $2::uuid AND lease_no = $3::bigint
  AND NOT EXISTS (
    SELECT FROM outbox_events e
    WHERE e.id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
      AND e.id <@ (SELECT current_setting('relay.rest')::int8multirange)
      AND (e.group_id = $4::uuid OR e.group_id IS NULL AND e.created_at <= ` + NewestSQL + `))`

	keepSharedSQL = `
UPDATE outbox_batches SET events = locked.events, delivered = locked.ids, members = locked.members
FROM (SELECT count(*) AS events, array_agg(id ORDER BY id) AS ids, range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')) AS members
      FROM outbox_events
      WHERE id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
        AND id <@ (SELECT current_setting('relay.rest')::int8multirange)
        AND (group_id = $4::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)) locked
WHERE current_setting('relay.fenced') = '1' AND buffer = $1 AND outbox_batches.group_id = $2::uuid
  AND lease_no = $3::bigint AND locked.events > 0
RETURNING locked.ids`

	freeSharedSQL = `
SELECT id FROM (
  SELECT id FROM outbox_events
  WHERE current_setting('relay.fenced') = '1'
    AND id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
    AND id <@ (SELECT current_setting('relay.rest')::int8multirange)
    AND (group_id = $1::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
  ORDER BY id
  FOR UPDATE SKIP LOCKED) locked`

	recordKeptSharedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, delivered, members, lanes, sink, claim_id)
SELECT $2::uuid, $1, 'range', 'delivered', $3::bigint, clock_timestamp() + $5::interval, $4, 1,
       0, 0, count(*), min(id), max(id), min(created_at), max(created_at), array_agg(id ORDER BY id),
       range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')), '{}', ` + SinkSQL + `, $6::uuid
FROM outbox_events
WHERE current_setting('relay.fenced') = '1'
  AND id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
  AND id <@ (SELECT current_setting('relay.rest')::int8multirange)
  AND (group_id = $6::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
HAVING count(*) > 0
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`

	// It is found by its number.
	recordKeptOrderedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, delivered, members, lanes, sink, claim_id, seq)
SELECT $2::uuid, $1, 'range', 'delivered', $3::bigint, clock_timestamp() + $5::interval, $4, 1,
       0, 0, count(*), min(id), max(id), min(created_at), max(created_at), array_agg(id ORDER BY id),
       range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')), '{}', ` + SinkSQL + `, $6::uuid, 0
FROM outbox_events
WHERE current_setting('relay.fenced') = '1'
  AND id BETWEEN (SELECT lower(current_setting('relay.rest')::int8multirange)) AND (SELECT coalesce(upper(current_setting('relay.rest')::int8multirange) - 1, 9223372036854775807))
  AND id <@ (SELECT current_setting('relay.rest')::int8multirange)
  AND (group_id = $6::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
HAVING count(*) > 0
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`

	// A part is a row of the same claim. The events stay as they are.
	regroupSharedSQL = `
WITH regrouped AS MATERIALIZED (
  SELECT id, created_at, available_at FROM outbox_events
  WHERE current_setting('relay.fenced') = '1' AND id BETWEEN $4::bigint AND $5::bigint AND id <@ $6::int8multirange
    AND (group_id = $15::uuid OR group_id IS NULL AND created_at <= ` + NewestSQL + `)
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, origins, error, address, members, sink, claim_id, routes_no, history)
SELECT $3::uuid, $1, 'range', 'waiting', 0, clock_timestamp() + $7::interval, $8, $14::int,
       $9::int, $10::int, count(*), min(id), max(id), min(greatest(created_at, available_at)), max(created_at), $11::uuid[], $12, $13,
       range_agg(int8range(id, nullif(id, 9223372036854775807), '[]')), ` + SinkSQL + `, $15::uuid, ` + RoutesNoSQL + `, ` + HistorySQL + `
FROM regrouped WHERE $2::uuid IS NOT NULL HAVING count(*) > 0`

	burySharedSQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, sink, history)
SELECT $1, e.id, e.topic, e.key, e.payload, e.headers, e.created_at, $2::uuid, $5::int, $6, ` + SinkSQL + `, ` + HistorySQL + `
FROM outbox_events e
WHERE current_setting('relay.fenced') = '1'
  AND e.id BETWEEN $3::bigint AND $4::bigint AND e.id <@ $7::int8multirange
  AND (e.group_id = $8::uuid OR e.group_id IS NULL AND e.created_at <= ` + NewestSQL + `)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = EXCLUDED.topic, key = EXCLUDED.key, payload = EXCLUDED.payload, headers = EXCLUDED.headers,
    created_at = EXCLUDED.created_at, attempts = EXCLUDED.attempts, error = EXCLUDED.error, history = EXCLUDED.history,
    died_at = clock_timestamp(), notified_at = NULL, closed_at = NULL, closed_as = NULL, closed_by = NULL, closed_reason = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	unburiedSharedSQL = `
SELECT (e.id || ' has no dead letter: a trigger on INSERT of outbox_dead_letters drops or deletes the row')::bigint
FROM outbox_events e
WHERE current_setting('relay.fenced') = '1'
  AND e.id BETWEEN $3::bigint AND $4::bigint AND e.id <@ $5::int8multirange
  AND (e.group_id = $6::uuid OR e.group_id IS NULL AND e.created_at <= ` + NewestSQL + `)
  AND NOT EXISTS (SELECT FROM outbox_dead_letters d WHERE d.pipeline = $1 AND d.event_id = e.id AND d.group_id = $2::uuid)`
)

// Shared reports whether other batches may have events of this one.
func (s *Settlement) Shared() bool { return s.Batch.ClaimID != uuid.Nil }

// claim is the claim_id as a parameter.
func (s *Settlement) claim() string {
	if !s.Shared() {
		return pg.Null
	}
	return s.Batch.ClaimID.String()
}

// lock is the step that locks the claim, if the settle may remove what the batch holds.
func (s *Settlement) lock(o *outcomes.Set) []pg.Step {
	if !s.Shared() || o.RetriesWhole() {
		return nil
	}
	if s.ordered() && len(o.Retry) > 0 {
		return []pg.Step{SeqStep(s.Tables, s.Batch.GroupID), s.lockClaim()}
	}
	return []pg.Step{s.lockClaim()}
}

// ordered reports whether a part needs the number of its claim, and lanes.
func (s *Settlement) ordered() bool { return s.Ledger.base.Ordered && s.Shared() }

func (s *Settlement) lockClaim() pg.Step { return LockClaim(s.Batch.ClaimID) }

// LockClaiming keeps others from claiming events of the buffer until the transaction ends; only with order by key.
func LockClaiming(t *Tables) pg.Step {
	return pg.Step{Prepare: true, SQL: lockClaimingSQL, Args: []string{t.Buffer}}
}

// LockClaim locks a claim until the transaction ends.
func LockClaim(claim uuid.UUID) pg.Step {
	return pg.Step{Prepare: true, SQL: lockClaimSQL, Args: []string{claim.String()}}
}

// RestStep puts into relay.rest those of the ids that no other row of the claim holds: they are deleted. It is repeated before what the
// DELETE left is recorded in another transaction.
func (s *Settlement) RestStep(ids []int64) pg.Step {
	rest := pg.Step{
		Prepare: true, SQL: s.Tables.SQL(restSQL),
		Args: []string{s.Batch.GroupID.String(), idset.Of(ids).Multirange(), s.claim()},
		Row: func(v [][]byte) error {
			s.kept.ids = int(pg.ReadInt8(v[1]))
			return nil
		},
	}
	s.before = []pg.Step{s.lockClaim(), rest}
	return rest
}

// sharedSteps are the steps that delete what was delivered, or is dead, at the last of its sinks.
func (s *Settlement) sharedSteps(o *outcomes.Set) []pg.Step {
	delivered, dead := o.IDs(s.Batch)
	claim, rest := s.claim(), s.RestStep(slices.Concat(delivered, dead))
	remove := func(plain, archived string) pg.Step {
		if s.Tables.Archive {
			plain = archived
		}
		return s.Deleting(0, pg.Step{Prepare: true, SQL: s.Tables.SQL(plain), Args: []string{claim}})
	}
	if !s.Batch.DeliveryRecorded() {
		s.RecordKept(func() pg.Step {
			sql := recordKeptSharedSQL
			if s.ordered() {
				sql = recordKeptOrderedSQL
			}
			return pg.Step{SQL: s.Tables.SQL(sql), Args: append(s.KeptArgs(), claim)}
		})
		return []pg.Step{rest, remove(deleteRestSQL, archiveRestSQL)}
	}
	closing := func(sql string, affected *int64) pg.Step {
		return pg.Step{SQL: s.Tables.SQL(sql), Affected: affected, Args: []string{
			s.Ledger.name(s.Tables), s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo), claim,
		}}
	}
	return []pg.Step{
		rest, s.Free(pg.Step{SQL: s.Tables.SQL(freeSharedSQL), Args: []string{claim}}), remove(deleteFreeRestSQL, archiveFreeRestSQL),
		closing(closeSharedSQL, &s.Closed), s.Left(closing(keepSharedSQL, nil)),
	}
}
