package router

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A row of another sink, or one that was routed with an older registry, is left as it is. No statement about one row
// compares its buffer: with the statistics of an empty ledger, the plan would walk over all rows of the buffer.
const fenceSQL = `
DELETE FROM outbox_batches
WHERE group_id = $2::uuid AND lease_no = $3::bigint AND sink = '*' AND state = 'leased'
  AND (SELECT routes_no FROM outbox_buffers WHERE buffer = $1) = $4::bigint` + ledger.FenceSQL + `,
          set_config('relay.claimed_at', to_json(claimed_at) #>> '{}', true), set_config('relay.routes_no', $4::bigint::text, true)`

// Under a stamp all rows have it, $15, as their claim, because it is what their events carry, and an event without it is none of theirs. Another
// delivery is added to the row joins, if nobody has leased that since and the registry has not changed.
const deliverSQL = `
WITH r AS MATERIALIZED (
  SELECT * FROM unnest($4::uuid[], $5::text[], $6::boolean[], $7::int[], $8::bigint[], $9::bigint[], $10::timestamptz[], $11::text[], $12::boolean[], $14::uuid[])
    r(group_id, sink, shared, events, first_id, last_id, oldest_at, members, mine, joins)
  WHERE current_setting('relay.fenced') = '1'
), free AS MATERIALIZED (
  SELECT r.* FROM r, LATERAL (
    SELECT FROM outbox_batches WHERE group_id = r.joins AND sink = r.sink AND state = 'waiting' AND lease_no = 0 AND current_setting('relay.newest_at') <> ''
      AND routes_no = ` + ledger.RoutesNoSQL + ` FOR UPDATE SKIP LOCKED
  ) unleased
), joined AS (
  UPDATE outbox_batches b
  SET events = b.events + r.events, first_id = least(b.first_id, r.first_id), last_id = greatest(b.last_id, r.last_id),
      oldest_at = least(b.oldest_at, r.oldest_at), newest_at = greatest(b.newest_at, nullif(current_setting('relay.newest_at'), '')::timestamptz),
      members = b.members + r.members::int8multirange
  FROM free r WHERE b.group_id = r.joins
  RETURNING r.group_id
)
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, members, sink, claim_id, error, claimed_at, routes_no, stamp_xid)
SELECT r.group_id, $1, 'range', CASE WHEN r.mine THEN 'leased' ELSE 'waiting' END, r.mine::int,
       CASE WHEN r.mine THEN clock_timestamp() + $13::interval WHEN r.sink = '*' THEN 'infinity' ELSE clock_timestamp() END, $3, r.mine::int,
       0, 0, r.events, r.first_id, r.last_id, r.oldest_at, coalesce(nullif(current_setting('relay.newest_at'), '')::timestamptz, '-infinity'),
       r.members::int8multirange, r.sink, CASE WHEN current_setting('relay.newest_at') = '' THEN $15::uuid WHEN r.shared THEN $2::uuid END,
       CASE r.sink WHEN '*' THEN 'no sink takes the topic' END,
       current_setting('relay.claimed_at')::timestamptz, ` + ledger.RoutesNoSQL + `, ` + ledger.StampXidSQL + `
FROM r WHERE NOT EXISTS (SELECT FROM joined WHERE joined.group_id = r.group_id)
RETURNING group_id`

// Events that no sink takes become dead letters, or are deleted, in a row whose delivery is recorded. Those that are kept wait in a row of
// sink '*' that is due at infinity; a change of the registry makes it due, and also those that could not be routed with the old one. A route
// that keeps events locks the registry, so that it does not miss a change.
const (
	keepSQL = `
SELECT FROM outbox_buffers WHERE buffer = $1 FOR SHARE`

	wakeKeptSQL = `
UPDATE outbox_batches SET due_at = clock_timestamp()
WHERE buffer = $1 AND sink = '*' AND state = 'waiting'
  AND (due_at = 'infinity' AND $2::boolean OR due_at > clock_timestamp() AND current_setting('relay.changed', true) = '1')`

	// An event that was put back and has an open dead letter of this kind needs no other one: a replay of both would send it twice.
	buryUnmatchedSQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at, group_id, attempts, error, sink)
SELECT $1, e.id, e.topic, e.key, e.payload, e.headers, e.created_at, $2::uuid, 0, 'no sink takes topic ' || left(e.topic, 4096), '*'
FROM outbox_events e
WHERE current_setting('relay.fenced') = '1' AND e.id BETWEEN $3::bigint AND $4::bigint AND e.id <@ $5::int8multirange
  AND (e.group_id = $6::uuid OR e.group_id IS NULL AND e.created_at <= ` + ledger.NewestSQL + `)
  AND NOT EXISTS (
    SELECT FROM outbox_dead_letters o
    WHERE o.pipeline = $1 AND o.event_id = e.id AND o.created_at = e.created_at AND o.topic = e.topic AND o.sink = '*' AND o.closed_at IS NULL)
ON CONFLICT (pipeline, event_id, group_id) DO NOTHING`

	markUnmatchedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, newest_at, delivered, members, sink, claim_id, uuids, stamp_xid)
SELECT $2::uuid, $1, 'range', 'delivered', 0, clock_timestamp(), $3, 0,
       0, 0, cardinality($4::bigint[]), $5::bigint, $6::bigint, $7::timestamptz, coalesce(nullif(current_setting('relay.newest_at'), '')::timestamptz, '-infinity'),
       $4::bigint[], $8::int8multirange, '*', CASE WHEN $10::boolean OR current_setting('relay.newest_at') = '' THEN $9::uuid END,
       $11::uuid[], ` + ledger.StampXidSQL + `
WHERE current_setting('relay.fenced') = '1'`
)

// New returns the routes of a buffer.
func New(base *ledger.Base) *Routes {
	r := &Routes{base: base, open: routing.NewOpenRows()}
	base.Current = r.Current
	return r
}

// maxTries is how often a batch is routed again because the registry has changed.
const maxTries = 3

// Route replaces a leased row of sink '*' by those of the sinks that take its events: see buffer.Router. errors.Is finds
// buffer.ErrLeaseLost if another process has it.
func (r *Routes) Route(ctx context.Context, t *ledger.Tables, batch *buffer.Lease, lease time.Duration, take func(sink string) bool) (*buffer.Routed, error) {
	var (
		taken  []bool
		drawn  = map[string]int{} // what take has granted each sink
		grants = map[string]int{} // and what of it the last division has used
	)
	for range maxTries {
		known, err := r.routable(ctx, t)
		if err != nil {
			return nil, err
		}
		deliveries, unmatched := known.table.Divide(batch.Events)
		if len(unmatched) > 0 && r.base.Unmatched == buffer.UnmatchedKeep {
			deliveries, unmatched = append(deliveries, routing.Kept(batch, unmatched)), nil
		}
		for i := range deliveries { // the stamp of its events is that of another claim
			deliveries[i].Shared = deliveries[i].Shared || batch.ClaimID != uuid.Nil
		}
		lost := routing.Unrouted(batch, unmatched, r.base.Unmatched)
		taken = taken[:0]
		clear(grants)
		for i := range deliveries {
			sink := deliveries[i].Sink
			name := nameIn(known.local, sink)
			if sink != ledger.Unrouted && !r.base.KeepsOrder(name) && grants[sink] == drawn[sink] && take(name) {
				drawn[sink]++
			}
			mine := grants[sink] < drawn[sink]
			if mine {
				grants[sink]++
			}
			taken = append(taken, mine)
		}
		ends := time.Now().Add(lease)
		p := routing.PlanOf(batch.ClaimID, deliveries)
		if batch.ClaimID == uuid.Nil {
			p = r.open.Take(batch.GroupID, deliveries, taken)
		}
		done, err := r.write(ctx, t, batch, known.no, lease, deliveries, taken, p, lost)
		if err != nil {
			return nil, r.base.Explain(ctx, "routing a batch", err)
		}
		if done.fenced {
			if !done.stamped && batch.ClaimID == uuid.Nil {
				r.open.Keep(p, deliveries, taken, done.inserted)
			}
			return routed(batch, deliveries, taken, p, done, ends, known.local), nil
		}
		if err := r.Read(ctx, t); err != nil {
			return nil, r.base.Explain(ctx, "reading the routes", err)
		}
		if r.read.Load().no == known.no {
			break
		}
	}
	return nil, buffer.ErrLeaseLost
}

// routed is what became of a batch.
func routed(batch *buffer.Lease, deliveries []routing.Delivery, taken []bool, p *routing.Plan, done written, ends time.Time, local map[string]string) *buffer.Routed {
	result := &buffer.Routed{Events: batch.Len(), Bytes: batch.Bytes()}
	for i := range deliveries {
		d := &deliveries[i]
		if !taken[i] {
			if done.inserted[d.GroupID] && d.Sink != ledger.Unrouted {
				result.Add(nameIn(local, d.Sink))
			}
			continue
		}
		l := &buffer.Lease{
			Batch:   buffer.Batch{GroupID: d.GroupID, Pipeline: batch.Pipeline, PayloadIsJSON: batch.PayloadIsJSON, Projected: batch.Projected, Events: d.Of(batch.Events)},
			LeaseNo: 1, Ends: ends, UnfinishedLeases: 1, FirstID: d.IDs[0], LastID: d.IDs[len(d.IDs)-1],
			ClaimedAt: batch.ClaimedAt, ClaimedLocal: batch.ClaimedLocal,
		}
		switch {
		case done.stamped:
			l.ClaimID = claimOf(batch)
		case d.Shared:
			l.ClaimID = p.ClaimID()
		}
		result.Leases = append(result.Leases, buffer.SinkLease{Sink: nameIn(local, d.Sink), Lease: l})
	}
	return result
}

// written is what a route wrote.
type written struct {
	fenced   bool
	stamped  bool               // the events carry the claim's group_id
	inserted map[uuid.UUID]bool // the deliveries that have a row of their own
}

// write writes the rows.
func (r *Routes) write(
	ctx context.Context, t *ledger.Tables, batch *buffer.Lease, no int64, lease time.Duration, deliveries []routing.Delivery, taken []bool, p *routing.Plan, lost []routing.Refusal,
) (done written, err error) {
	begin := r.base.DB.BatchTx(r.base.DB.StatementTimeout, "synchronous_commit", "on", "enable_hashjoin", "off", "enable_mergejoin", "off", "relay.fenced", "")
	begin.Row = func([][]byte) error {
		done = written{inserted: map[uuid.UUID]bool{}}
		return nil
	}
	steps := []pg.Step{begin}
	if r.base.Ordered {
		steps = append(steps, ledger.SeqStep(t, batch.GroupID))
	}
	if slices.ContainsFunc(deliveries, func(d routing.Delivery) bool { return d.Sink == ledger.Unrouted }) {
		steps = append(steps, pg.Step{SQL: t.SQL(keepSQL), Args: []string{t.Buffer}})
	}
	steps = append(steps, pg.Step{
		Prepare: true, SQL: t.SQL(fenceSQL), Args: []string{t.Buffer, batch.GroupID.String(), pg.Int(batch.LeaseNo), pg.Int(no)},
		Row: func(v [][]byte) error {
			done.fenced, done.stamped = true, len(v[1]) == 0
			return nil
		},
	})
	if len(deliveries) > 0 {
		args := append([]string{t.Buffer, p.ClaimID().String(), r.base.Owner}, columns(deliveries, taken)...)
		sql, last := deliverSQL, []string{pg.UUIDArray(p.IDs()), claimOf(batch).String()}
		if t.UUIDs {
			sql, last = deliverUUIDSQL, []string{uuidsOf(deliveries, batch.Events)}
		}
		steps = append(steps, pg.Step{
			Prepare: true, SQL: t.SQL(sql), Args: append(append(args, pg.Interval(lease)), last...),
			Row: func(v [][]byte) error {
				done.inserted[uuid.UUID(v[0])] = true
				return nil
			},
		})
		if r.base.Ordered {
			groups := make([]uuid.UUID, len(deliveries))
			for i := range deliveries {
				groups[i] = deliveries[i].GroupID
			}
			steps = append(steps, ledger.LanesStep(t, groups...))
		}
	}
	if len(lost) > 0 {
		steps = append(steps, r.end(t, batch, lost)...)
	}
	err = r.base.DB.Transact(ctx, steps...)
	return done, err
}

// columns are the deliveries as arrays, a column each.
func columns(deliveries []routing.Delivery, taken []bool) []string {
	var (
		groups                               []uuid.UUID
		first, last, events                  []int64
		sinks, shared, oldest, members, mine pg.Array
		boolean                              = map[bool]string{false: "f", true: "t"}
	)
	for i := range deliveries {
		d := &deliveries[i]
		groups = append(groups, d.GroupID)
		sinks.Append([]byte(d.Sink))
		shared.Append([]byte(boolean[d.Shared]))
		events = append(events, int64(len(d.IDs)))
		first, last = append(first, d.IDs[0]), append(last, d.IDs[len(d.IDs)-1])
		oldest.Append([]byte(pg.Timestamp(d.OldestAt)))
		members.Append([]byte(idset.Of(d.IDs).Multirange()))
		mine.Append([]byte(boolean[taken[i]]))
	}
	return []string{
		pg.UUIDArray(groups), sinks.String(), shared.String(), pg.IDArray(events), pg.IDArray(first), pg.IDArray(last), oldest.String(), members.String(), mine.String(),
	}
}

// claimOf is the claim_id that the batches of a claim have if they share events, and under a stamp the stamp.
func claimOf(batch *buffer.Lease) uuid.UUID {
	if batch.ClaimID != uuid.Nil {
		return batch.ClaimID
	}
	return batch.GroupID
}
