package custom

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/backlog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/router"
)

// A fill needs the topics of events that were routed long ago. So it projects those of a claim that lack the sink, as a batch of their own, whose ledger
// row is rolled back: the row of another sink may be settled at any time, and {events} would then stand for nothing. The projection holds no
// lock. What it says is used under the claim's lock for those events that still lack the sink.

// fillLackingSQL are the events of the claim $3 that lack the sink. In a batch that shares none, first_id to last_id may be more than its events.
const fillLackingSQL = router.FillSinkSQL + `, held AS MATERIALIZED (
  SELECT l.sink, l.routes_no, l.claimed_at, l.stamp_xid, l.uuids, l.members FROM outbox_batches l
  WHERE l.claim_id = $3::uuid
  UNION ALL
  SELECT l.sink, l.routes_no, l.claimed_at, l.stamp_xid, l.uuids, int8multirange(int8range(l.first_id, nullif(l.last_id, 9223372036854775807), '[]')) FROM outbox_batches l
  WHERE l.group_id = $3::uuid AND l.claim_id IS NULL AND l.sink <> '*' AND l.state <> 'delivered'
), ` + router.NumbersSQL + `, ` + router.LackingSQL + `, lacking AS MATERIALIZED (
  SELECT coalesce((SELECT range_agg(m) FROM parts, unnest(ids) m), '{}') AS ids,
         (SELECT min(claimed_at) FROM held, sink WHERE held.sink <> '*' AND NOT held.routes_no <@ sink.routed) AS claimed_at
)`

const (
	fillReadSQL = `
WITH` + fillLackingSQL + `, batch AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, members, sink, claim_id)
  SELECT $4::uuid, $1, 'range', 'leased', 1, clock_timestamp(), $5, 1,
         0, 0, 0, lower(ids), coalesce(upper(ids) - 1, 9223372036854775807), clock_timestamp(), ids, '*', $3::uuid
  FROM lacking WHERE NOT isempty(ids)
)
SELECT e.custom_id::bigint, e.custom_key::text, t.created_at
FROM lacking t JOIN custom_events e ON e.custom_id BETWEEN lower(t.ids) AND coalesce(upper(t.ids) - 1, 9223372036854775807)
  AND e.custom_id::bigint <@ t.ids AND e.group_id = $3::uuid`

	fillReadUUIDSQL = `
WITH` + fillLackingSQL + `, listed AS MATERIALIZED (
  SELECT DISTINCT ON (u.n) u.n, u.id
  FROM sink, lacking, held, unnest(held.uuids, ARRAY(SELECT generate_series(lower(m), upper(m) - 1) FROM unnest(held.members) m)) u(id, n)
  WHERE held.sink <> '*' AND NOT held.routes_no <@ sink.routed AND u.n <@ lacking.ids
  ORDER BY u.n
), batch AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, members, sink, claim_id, uuids)
  SELECT $4::uuid, $1, 'range', 'leased', 1, clock_timestamp(), $5, 1,
         0, 0, 0, lower(ids), upper(ids) - 1, clock_timestamp(), ids, '*', $3::uuid, ARRAY(SELECT id FROM listed ORDER BY n)
  FROM lacking WHERE NOT isempty(ids)
)
SELECT l.n, e.custom_key::text, t.created_at
FROM lacking t, listed l JOIN custom_events e ON e.custom_id = l.id AND e.group_id = $3::uuid`

	// See package router. The members of a batch with uuids are all of its numbers.
	fillShareSQL = `
UPDATE outbox_batches SET claim_id = group_id, members = coalesce(members, (
  SELECT range_agg(int8range(e.custom_id, nullif(e.custom_id::bigint, 9223372036854775807), '[]')) FROM custom_events e
  WHERE e.custom_id BETWEEN outbox_batches.first_id AND outbox_batches.last_id AND e.group_id = outbox_batches.group_id), '{}')
WHERE group_id = $1::uuid AND claim_id IS NULL AND state = 'waiting'`

	fillShareUUIDSQL = `
UPDATE outbox_batches SET claim_id = group_id, members = coalesce(members, int8multirange(int8range(first_id, nullif(last_id, 9223372036854775807), '[]')))
WHERE group_id = $1::uuid AND claim_id IS NULL AND state = 'waiting'`

	// $4 is what the events are found by that the sink takes, $5 their numbers, in the same order.
	fillGiveSQL = `
WITH` + fillLackingSQL + `, gets AS MATERIALIZED (
  SELECT x.f, x.n, x.place, m.routes_no, m.sinks, m.no
  FROM unnest($4::custom_finds, $5::bigint[]) WITH ORDINALITY x(f, n, place) JOIN custom_events e ON e.custom_id = x.f, marks m
  WHERE e.group_id = $3::uuid AND m.routes_no = (SELECT min(p.routes_no) FROM parts p WHERE x.n <@ p.ids)
), given AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, newest_at, claimed_at, error, members, sink, claim_id, routes_no, uuids, stamp_xid)
  SELECT ` + backlog.NewGroupSQL + `, $1, 'range', 'waiting', 0, clock_timestamp(), $6, 0,
         0, 0, count(*), min(x.n), max(x.n), min(t.created_at), '-infinity', t.claimed_at, 'filled',
         range_agg(int8range(x.n, nullif(x.n, 9223372036854775807), '[]')), sink.sink, $3::uuid, x.no, custom_uuids, (SELECT stamp_xid FROM held LIMIT 1)
  FROM gets x JOIN custom_events e ON e.custom_id = x.f, sink, lacking t
  WHERE NOT EXISTS (SELECT FROM gets WHERE no IS NULL)
  GROUP BY x.routes_no, x.no, (x.place - 1) / sink.batch_size, sink.sink, t.claimed_at ORDER BY min(x.n)
  RETURNING events
), ` + router.MarkSQL + `
SELECT (SELECT coalesce(sum(events), 0)::bigint FROM given), ` + router.MissingSQL

	// An event that was deleted meanwhile has no row either.
	fillRejectedSQL = `
SELECT count(*) FROM unnest($1::custom_finds) f JOIN custom_events e ON e.custom_id = f WHERE e.group_id = $2::uuid`
)

// FillClaim implements router.ClaimFiller.
func (t *Table) FillClaim(ctx context.Context, f *router.ClaimFill) (filled buffer.Filled, shared bool, err error) {
	if !f.Dry {
		if shared, err = t.share(ctx, f.Claim); err != nil || !shared {
			return filled, shared, err
		}
	}
	p, err := t.projectLacking(ctx, f)
	if err != nil {
		return filled, true, err
	}
	if p.err != nil {
		filled.Failed, filled.Err = int64(len(p.Events)), p.err
		return filled, true, nil
	}
	sent, rejected := p.rows.Split()
	var takes, left []int64
	for i := range sent {
		if e := &sent[i]; !e.CreatedAt.Before(f.Since) && f.Topics.Match(e.Topic) {
			takes = append(takes, e.ID)
		}
	}
	for i := range rejected {
		if !rejected[i].Event.CreatedAt.Before(f.Since) {
			left = append(left, rejected[i].Event.ID)
		}
	}
	steps := []pg.Step{t.Base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...)}
	if len(left) > 0 {
		steps = append(steps, pg.Step{
			SQL: t.tables.SQL(fillRejectedSQL), Args: []string{t.finds(p.Events, left), f.Claim.String()}, Row: func(v [][]byte) error {
				filled.Rejected = pg.ReadInt8(v[0])
				return nil
			},
		})
	}
	var got router.Got
	if filled.Waiting = int64(len(takes)); len(takes) > 0 && !f.Dry {
		steps = append(steps, ledger.LockClaim(f.Claim), pg.Step{
			SQL: t.tables.SQL(fillGiveSQL), Args: []string{t.tables.Buffer, f.Sink, f.Claim.String(), t.finds(p.Events, takes), pg.IDArray(takes), t.Base.Owner},
			Row: got.Row,
		})
		defer func() { filled.Waiting = got.Events }()
	}
	if len(steps) > 1 {
		err = got.Repeat(ctx, f.Draw, func(ctx context.Context) error { return t.Base.DB.Transact(ctx, steps...) })
	}
	return filled, true, err
}

// share gives a batch that shares no event a claim_id; see router.SharedSQL.
func (t *Table) share(ctx context.Context, claim uuid.UUID) (shared bool, err error) {
	err = t.Base.DB.Transact(ctx, t.Base.DB.WriteTx(pg.BulkTimeout, pg.PlanByKey...), ledger.LockClaim(claim),
		pg.Step{SQL: t.tables.SQL(t.either(fillShareSQL, fillShareUUIDSQL)), Args: []string{claim.String()}},
		pg.Step{SQL: t.tables.SQL(router.SharedSQL), Args: []string{claim.String()}, Row: func(v [][]byte) error {
			shared = pg.ReadBool(v[0])
			return nil
		}})
	return shared, err
}

// projectLacking projects the events of a claim that lack the sink. If it fails on the data of an event, p.err says why; any other failure is an error.
func (t *Table) projectLacking(ctx context.Context, f *router.ClaimFill) (*projecting, error) {
	p := t.newProjecting(f.Claim)
	p.batchID, p.shared, p.onlyTopics = buffer.NewGroupID(), true, true
	begin := t.Base.DB.WriteTx(t.Base.DB.StatementTimeout, pg.PlanByKey...)
	begin.Row = p.Reset
	steps := []pg.Step{
		{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		begin,
		{
			SQL:  t.tables.SQL(t.either(fillReadSQL, fillReadUUIDSQL)),
			Args: []string{t.tables.Buffer, f.Sink, f.Claim.String(), p.batchID.String(), t.Base.Owner}, Row: p.readClaimed,
		},
		pg.SetLocal("transaction_read_only", "on", "enable_seqscan", "on", "enable_hashjoin", "on", "enable_mergejoin", "on"),
	}
	steps = append(steps, t.projectSteps(p)[1:3]...)
	err := t.run(ctx, p, append(steps, pg.Step{SQL: "ROLLBACK"}))
	switch {
	case err != nil:
		return nil, err
	case p.notRead != nil:
		return nil, fmt.Errorf("projecting a batch: %w", p.notRead)
	case p.err != nil && !errors.Is(p.err, buffer.ErrEventData):
		return nil, fmt.Errorf("projecting a batch: %w", p.err)
	}
	return p, nil
}
