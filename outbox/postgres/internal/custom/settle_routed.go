package custom

import (
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The batches of several sinks; see package ledger. The events carry the claim_id, $1, and a batch has those that are its members.
// $2 is what the events are found by, $3 their numbers, in the same order.

const takeOverEndingSQL = ledger.DueEndingSQL + ledger.TakenSQL + takenRowsSQL

const (
	// restFindsSQL is what those events are found by that no other row of the claim holds.
	restFindsSQL = `ANY (ARRAY(
    SELECT f FROM unnest($2::custom_finds, $3::bigint[]) x(f, n)
    WHERE n <@ (SELECT nullif(current_setting('relay.rest', true), '')::int8multirange)))`

	deleteRestSQL = `
DELETE FROM custom_events e
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid`

	deleteUnlockedRestSQL = `
DELETE FROM custom_events e
WHERE e.custom_id = ANY (ARRAY(
  SELECT e.custom_id FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED))`

	freeRestSQL = `
SELECT x.n FROM (
  SELECT e.custom_id AS f FROM custom_events e
  WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid
  ORDER BY e.custom_id
  FOR UPDATE SKIP LOCKED) locked JOIN unnest($2::custom_finds, $3::bigint[]) x(f, n) ON x.f = locked.f`

	closeRestSQL = `
DELETE FROM outbox_batches l
WHERE current_setting('relay.fenced') = '1' AND l.buffer = $4 AND l.group_id = $5::uuid AND l.lease_no = $6::bigint
  AND NOT EXISTS (SELECT FROM custom_events e WHERE e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid)`

	keepRestSQL = `
UPDATE outbox_batches l SET events = locked.events, delivered = locked.ids, members = locked.members, uuids = locked.uuids
FROM (SELECT count(*) AS events, array_agg(x.n ORDER BY x.n) AS ids, range_agg(int8range(x.n, nullif(x.n, 9223372036854775807), '[]')) AS members,
             custom_uuids AS uuids
      FROM custom_events e JOIN unnest($2::custom_finds, $3::bigint[]) x(f, n) ON x.f = e.custom_id
      WHERE e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid) locked
WHERE current_setting('relay.fenced') = '1' AND l.buffer = $4 AND l.group_id = $5::uuid AND l.lease_no = $6::bigint AND locked.events > 0
RETURNING locked.ids`

	recordKeptRestSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, delivered, members, sink, claim_id, uuids, stamp_xid)
SELECT $5::uuid, $4, 'range', 'delivered', $6::bigint, clock_timestamp() + $8::interval, $7, 1,
       0, 0, count(*), min(x.n), max(x.n), min(e.created_at), '-infinity', array_agg(x.n ORDER BY x.n),
       range_agg(int8range(x.n, nullif(x.n, 9223372036854775807), '[]')), ` + ledger.SinkSQL + `, $1::uuid, custom_uuids, ` + ledger.StampXidSQL + `
FROM custom_events e JOIN unnest($2::custom_finds, $3::bigint[]) x(f, n) ON x.f = e.custom_id
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ` + restFindsSQL + ` AND e.group_id = $1::uuid
HAVING count(*) > 0
ON CONFLICT (group_id) DO NOTHING
RETURNING events::bigint`

	// A part is a row of the same claim. The events stay as they are.
	regroupSharedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, origins, error, address, members, sink, claim_id, routes_no, history, uuids, stamp_xid)
SELECT $5::uuid, $4, 'range', 'waiting', 0, clock_timestamp() + $6::interval, $7, $13::int,
       $8::int, $9::int, count(*), min(x.n), max(x.n), min(greatest(e.created_at, e.available_at)), '-infinity', $10::uuid[], $11, $12,
       range_agg(int8range(x.n, nullif(x.n, 9223372036854775807), '[]')), ` + ledger.SinkSQL + `, $1::uuid, ` + ledger.RoutesNoSQL + `, ` + ledger.HistorySQL + `, custom_uuids, ` + ledger.StampXidSQL + `
FROM custom_events e JOIN unnest($2::custom_finds, $3::bigint[]) x(f, n) ON x.f = e.custom_id
WHERE current_setting('relay.fenced') = '1' AND e.custom_id = ANY ($2::custom_finds) AND e.group_id = $1::uuid
HAVING count(*) > 0`
)

// shared are the claim_id, and what the events are found by with their numbers, as parameters.
func (s *settlement) shared(ids []int64) []string {
	slices.Sort(ids)
	return []string{s.Batch.ClaimID.String(), s.finds(ids), pg.IDArray(ids)}
}

// sharedSteps are the steps that delete what was delivered, or is dead, at the last of its sinks. The batch that deletes an event
// archives it, whatever became of it at another sink.
func (s *settlement) sharedSteps(o *outcomes.Set) []pg.Step {
	delivered, dead := o.IDs(s.Batch)
	gone := slices.Concat(delivered, dead)
	var (
		args = s.shared(gone)
		rest = s.RestStep(gone)
	)
	remove := func(unlocked bool) []pg.Step {
		args := args
		if s.Tables.Archive {
			args = slices.Concat(args[:2], s.contents(gone))
		}
		return s.table.removing(s.Settlement, 0, s.Tables.Archive, s.table.removals(unlocked, true), args)
	}
	if !s.Batch.DeliveryRecorded() {
		s.RecordKept(func() pg.Step {
			return pg.Step{SQL: s.Tables.SQL(recordKeptRestSQL), Args: slices.Concat(args, s.KeptArgs())}
		})
		return append([]pg.Step{rest}, remove(false)...)
	}
	row := slices.Concat(args, []string{s.Tables.Buffer, s.Batch.GroupID.String(), pg.Int(s.Batch.LeaseNo)})
	return slices.Concat(
		[]pg.Step{rest, s.Free(pg.Step{SQL: s.Tables.SQL(freeRestSQL), Args: args})},
		remove(true),
		[]pg.Step{
			{SQL: s.Tables.SQL(closeRestSQL), Args: row, Affected: &s.Closed},
			s.Left(pg.Step{SQL: s.Tables.SQL(keepRestSQL), Args: row}),
		},
	)
}

func (s *settlement) regroupShared(o *buffer.Outcome) pg.Step {
	return pg.Step{SQL: s.Tables.SQL(regroupSharedSQL), Args: append(
		s.shared(slices.Clone(o.IDs)), s.Tables.Buffer, o.GroupID.String(), pg.Interval(o.After), s.table.Base.Owner, pg.Int(int64(o.Attempts)),
		pg.Int(int64(o.Outages)), pg.UUIDArray(s.Batch.PartOrigins()), s.table.Base.DB.Text(o.Error), s.table.Base.DB.OptionalText(o.Address), pg.Int(int64(o.UnfinishedLeases)),
	)}
}

// buryUnrouted are the steps that bury events of a claim under a group_id, as those of no sink.
func (t *Table) buryUnrouted(batch *buffer.Lease, group uuid.UUID, reason string, ids []int64) []pg.Step {
	unrouted := *batch
	unrouted.GroupID = group
	if unrouted.ClaimID == uuid.Nil {
		unrouted.ClaimID = batch.GroupID
	}
	s := settlement{&ledger.Settlement{Ledger: t.Ledger, Tables: t.tables, Batch: &unrouted}, t}
	return append([]pg.Step{pg.SetLocal("relay.sink", buffer.Unrouted)}, s.bury(&buffer.Outcome{IDs: ids, Error: reason})...)
}
