package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/claim"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// As claimSQL (which see), without the events' content: that is the projection's.
const claimOwnSQL = `
WITH picked AS MATERIALIZED (
  SELECT own_find AS find, own_created AS created_at FROM outbox_events e
  WHERE own_id > $3::bigint AND own_id <= $4::bigint AND e.group_id IS NULL
    AND EXISTS (SELECT FROM outbox_buffers WHERE buffer = $1 AND claim = 'stamp')
  ORDER BY own_id LIMIT $5::bigint
  FOR UPDATE SKIP LOCKED
), ledger AS (
  INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                              attempts, outages, events, first_id, last_id, oldest_at, uuids)
  SELECT $2::uuid, $1, 'stamp', 'leased', 1, clock_timestamp() + $6::interval, $7, 1,
         0, 0, events, first_id, coalesce(last_id, first_id + events - 1), oldest_at, uuids
  FROM (SELECT count(*) AS events, min(created_at) AS oldest_at, own_block FROM picked HAVING count(*) > 0) block
)
UPDATE outbox_events e SET group_id = $2::uuid
WHERE own_find = ANY (ARRAY(SELECT find FROM picked))
RETURNING own_id::bigint, own_name, own_created`

// Where events have no numbers of their own.
const numbersSQL = `
SELECT first_id, uuids FROM outbox_batches WHERE group_id = $1::uuid AND uuids IS NOT NULL`

// claimOwn is a claim.InRange.
func (b *Buffer) claimOwn(ctx context.Context, _ *ledger.Tables, limit int, lease time.Duration, in watermark.Range) (
	*buffer.Lease, *claim.Start, error,
) {
	t := b.table.Load()
	done, err := b.claimer.Stamping(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	groupID := buffer.NewGroupID()
	p := newProjecting(t, groupID).within(ctx, lease)
	p.Reserve(limit)
	start, begin := b.claimer.Begin(&t.Tables, lease, p.Reset)
	steps := []pg.Step{
		{SQL: "BEGIN ISOLATION LEVEL READ COMMITTED"},
		begin,
		{
			Prepare: true, SQL: t.SQL(claimOwnSQL),
			Args: []string{
				t.Buffer, groupID.String(), pg.Int(in.After), pg.Int(in.UpTo), pg.Int(int64(limit)), pg.Interval(lease),
				b.config.Owner,
			},
			Row: p.claimed,
		},
	}
	if !t.own.numbered() {
		steps = append(steps, pg.Step{Prepare: true, SQL: t.SQL(numbersSQL), Args: []string{groupID.String()}, Row: p.number})
	}
	steps = append(steps, pg.Step{SQL: "COMMIT"})
	err = b.project(ctx, p, append(steps, b.projectSteps(p)...))
	switch {
	case err != nil:
		return nil, nil, err
	case start.Mode != claimmode.Stamp:
		return nil, nil, claim.ModeChanged(start.Mode)
	case len(p.Events) == 0:
		return nil, start, nil
	}
	b.readUnprojected(ctx, p)
	return b.projected(p, start.Lease(groupID)), start, nil
}

// claimed takes a row of a claim: an event's number, the key by which the projection
// names it where that is another, and when it was inserted.
func (p *projecting) claimed(v [][]byte) error {
	e := outbox.Event{ID: pg.ReadInt8(v[0]), Topic: p.own.topic, CreatedAt: pg.ReadTime(v[2])}
	if v[1] != nil {
		name := string(v[1])
		if p.own.key.oid == pg.OIDUUID {
			id, err := uuid.Parse(name)
			if err != nil {
				return err
			}
			e.UUID = id
		} else {
			p.names[name] = e.ID
		}
	}
	p.Grow()
	p.Events = append(p.Events, e)
	return nil
}

// number gives the events their numbers, by the ledger's list of them.
func (p *projecting) number(v [][]byte) error {
	numbers := make(map[uuid.UUID]int64, len(p.Events))
	next := pg.ReadInt8(v[0])
	pg.ReadArray(v[1], func(key []byte) {
		numbers[uuid.UUID(key)] = next
		next++
	})
	for i := range p.Events {
		p.Events[i].ID = numbers[p.Events[i].UUID]
	}
	return nil
}

// sort puts the events in the order of their ids.
func (p *projecting) sort() {
	slices.SortFunc(p.Events, func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) })
	if p.own.key.oid == pg.OIDUUID {
		p.uuids = make(map[uuid.UUID]int64, len(p.Events))
		for i := range p.Events {
			p.uuids[p.Events[i].UUID] = p.Events[i].ID
		}
	}
}

// projected completes a batch.
func (b *Buffer) projected(p *projecting, batch buffer.Lease) *buffer.Lease {
	batch.Pipeline, batch.Events = b.config.Pipeline, p.Events
	batch.Projected, batch.PayloadIsJSON = true, p.err != nil || p.payload != projection.Bytes
	if n := len(p.Events); n > 0 && batch.FirstID == 0 && batch.LastID == 0 {
		batch.FirstID, batch.LastID = p.Events[0].ID, p.Events[n-1].ID
	}
	switch {
	case p.err != nil:
		batch.FailProjection(p.err)
	case p.ran:
		batch.Events, batch.Rejected = p.rows.Split()
	}
	return &batch
}

const takeOverOwnSQL = ledger.DueSQL + ledger.TakenSQL + `
       own_number, own_name, own_created
FROM taken t
own_taken`

// takeOverOwn is TakeOver for a table of the user's own. What is sent was never stored:
// it is projected again.
func (b *Buffer) takeOverOwn(ctx context.Context, t *table, lease time.Duration) (*buffer.Lease, error) {
	p := newProjecting(t, uuid.Nil)
	batch, err := ledger.TakeOver(ctx, b.Ledger, &t.Tables, lease, &p.EventDecoder, p.claimed, pg.PlanByKey, takeOverOwnSQL)
	if err != nil || batch == nil {
		return nil, err
	}
	p.begin()
	p.groupID = batch.GroupID
	// What was delivered is only deleted, unless it is to be remembered.
	if len(p.Events) > 0 && (!batch.DeliveryRecorded() || t.Archive) {
		if err := b.project(ctx, p, b.projectSteps(p.within(ctx, lease))); err != nil {
			return nil, b.explain(ctx, "projecting a batch that was taken over", err)
		}
		b.readUnprojected(ctx, p)
	}
	return b.projected(p, *batch), nil
}
