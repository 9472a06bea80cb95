package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const (
	unroutedFenceSQL = `
DELETE FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND sink = '*' AND state = 'leased'
RETURNING ` + holdingColumns

	// ?4: this process sends it at once, and has it for ?5. A row of sink '*' waits for a change of the registry.
	deliverSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, claimed_at, error, members, newest_at, sink, claim_id,
                            routes_no, seq, lanes)
VALUES (?1, ?2, ?3, iif(?4, 'leased', 'waiting'), ?4, iif(?15 = '*', ` + never + `, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', iif(?4, ?5, '0 seconds'))), ?6, ?4,
        0, 0, ?7, ?8, ?9, ?10, coalesce(?11, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)`

	// Events that no sink gets are in a row whose delivery is recorded, so that its settle deletes them.
	markUnmatchedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, claimed_at, delivered, members, newest_at, sink, claim_id, seq, lanes)
VALUES (?1, ?2, ?3, 'delivered', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?4, 0,
        0, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, '*', ?13, ?14, '[]')`
)

// routeLeased replaces a leased row of sink '*' by those of the sinks that take its events, see buffer.Router, or puts it back. Its claim or
// take-over began then. errors.Is finds buffer.ErrLeaseLost if another process has it.
func (b *Buffer) routeLeased(ctx context.Context, batch *buffer.Lease, began time.Time, lease time.Duration, take func(sink string) bool) (*buffer.Routed, error) {
	var (
		routed *buffer.Routed
		keep   func()
	)
	route := func() error {
		return b.write(ctx, "routing a batch", func(tx transaction) (err error) {
			routed, keep, err = b.route(ctx, tx, batch, lease, take)
			return err
		})
	}
	err := route()
	if errors.Is(err, errUnregistered) { // nothing was taken yet
		if err = b.RegisterSinks(ctx); err == nil {
			err = route()
		}
	}
	if err != nil {
		return nil, b.unwritten(ctx, batch, err)
	}
	keep()
	b.routes.failing.Routed(batch, began)
	return routed, nil
}

// dataErrors are the codes of errors about a value.
var dataErrors = []int{sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}

// unwritten puts a batch back whose route failed, and returns why.
func (b *Buffer) unwritten(ctx context.Context, batch *buffer.Lease, why error) error {
	if errors.Is(why, buffer.ErrLeaseLost) {
		return why
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), routing.PutBackTimeout)
	defer cancel()
	if err := b.Settle(ctx, batch, b.routes.failing.Unwritten(batch, why, slices.Contains(dataErrors, db.Code(why)))); err != nil && !errors.Is(err, buffer.ErrLeaseLost) {
		return errors.Join(why, err)
	}
	return why
}

// route returns what it wrote, and a function that notes which rows others can be added to, once that is committed.
func (b *Buffer) route(ctx context.Context, tx transaction, batch *buffer.Lease, lease time.Duration, take func(sink string) bool) (_ *buffer.Routed, keep func(), err error) {
	if err := b.fence(batch); err != nil {
		return nil, nil, err
	}
	known, err := b.routesIn(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	if len(known.table) == 0 {
		return nil, nil, b.noSinks()
	}
	var in holding
	err = tx.row(ctx, unroutedFenceSQL, b.config.Table, batch.GroupID.String(), batch.LeaseNo).Scan(in.columns()...)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil, buffer.ErrLeaseLost
	case err != nil:
		return nil, nil, err
	}
	if err := b.numbered(ctx, tx, &in); err != nil {
		return nil, nil, err
	}
	in.routesNo = &known.no
	deliveries, unmatched := known.table.Divide(batch.Events)
	if len(unmatched) > 0 && b.config.Unmatched == buffer.UnmatchedKeep {
		deliveries = append(deliveries, routing.Kept(batch, unmatched))
		unmatched = nil
	}
	var (
		routed = &buffer.Routed{Events: batch.Len(), Bytes: batch.Bytes()}
		taken  = make([]bool, len(deliveries))
		plan   = b.planOf(batch, in, deliveries, taken, func(i int) bool {
			name := nameIn(known.local, deliveries[i].Sink)
			return deliveries[i].Sink != buffer.Unrouted && !b.keepsOrder(name) && take(name)
		})
		always   = in.claimID != nil || in.claim == claimmode.Stamp // they have the claim_id even if they share no event
		joins    = plan.IDs()
		inserted = map[uuid.UUID]bool{}
	)
	lanes, err := b.lanesOf(ctx, tx, in.extent(batch, nil), deliveries)
	if err != nil {
		return nil, nil, err
	}
	for i := range deliveries {
		var (
			d       = &deliveries[i]
			claimID uuid.UUID
		)
		if d.Shared || always {
			claimID = plan.ClaimID()
		}
		if joins[i] != uuid.Nil {
			joined, err := b.join(ctx, tx, d, joins[i], claimID, in)
			if err != nil {
				return nil, nil, err
			}
			if joined {
				continue
			}
		}
		l := b.leaseOf(batch, d, lease)
		l.ClaimID = claimID
		if err := b.deliver(ctx, tx, d, l, in, lanes[i], taken[i], lease); err != nil {
			return nil, nil, err
		}
		inserted[d.GroupID] = true
		switch {
		case taken[i]:
			routed.Leases = append(routed.Leases, buffer.SinkLease{Sink: nameIn(known.local, d.Sink), Lease: l})
		case d.Sink != buffer.Unrouted:
			routed.Add(nameIn(known.local, d.Sink))
		}
	}
	keep = func() {
		if !always {
			b.routes.open.Keep(plan, deliveries, taken, inserted)
		}
	}
	if lost := routing.Unrouted(batch, unmatched, b.config.Unmatched); len(lost) > 0 {
		var claim any
		if always {
			claim = plan.ClaimID().String()
		}
		return routed, keep, b.endUnrouted(ctx, tx, batch, in, claim, lost)
	}
	return routed, keep, nil
}

// planOf fills in which deliveries this process takes, and plans what the others are added to. Under a stamp, and for what was routed before,
// the rows have the claim_id that their events or the others have already.
func (b *Buffer) planOf(batch *buffer.Lease, in holding, deliveries []routing.Delivery, taken []bool, take func(i int) bool) *routing.Plan {
	for i := range deliveries {
		taken[i] = take(i)
	}
	switch {
	case in.claimID != nil:
		return routing.PlanOf(batch.ClaimID, deliveries)
	case in.claim == claimmode.Stamp:
		return routing.PlanOf(batch.GroupID, deliveries)
	}
	return b.routes.open.Take(batch.GroupID, deliveries, taken)
}

// leaseOf returns the lease of a delivery of a batch.
func (b *Buffer) leaseOf(batch *buffer.Lease, d *routing.Delivery, lease time.Duration) *buffer.Lease {
	return &buffer.Lease{
		Batch:   buffer.Batch{GroupID: d.GroupID, Pipeline: batch.Pipeline, PayloadIsJSON: batch.PayloadIsJSON, Projected: batch.Projected, Events: d.Of(batch.Events)},
		LeaseNo: 1, Ends: db.LeaseEnd(time.Now(), lease), UnfinishedLeases: 1, FirstID: d.IDs[0], LastID: d.IDs[len(d.IDs)-1],
		ClaimedAt: batch.ClaimedAt, ClaimedLocal: batch.ClaimedLocal,
	}
}

// deliver writes the ledger row of a delivery, with its lanes if it has any.
func (b *Buffer) deliver(ctx context.Context, tx transaction, d *routing.Delivery, l *buffer.Lease, in holding, lanes any, mine bool, lease time.Duration) error {
	var why, claim any
	if d.Sink == buffer.Unrouted {
		why = "no sink takes the topic"
	}
	if l.ClaimID != uuid.Nil {
		claim = l.ClaimID.String()
	}
	_, err := tx.exec(ctx, deliverSQL, d.GroupID.String(), b.config.Table, in.claim, mine, db.Seconds(lease), b.config.Owner,
		len(d.IDs), l.FirstID, l.LastID, d.OldestAt.Format(db.TimeFormat), in.claimed, why, idset.Of(d.IDs).JSON(), in.newest, d.Sink, claim, in.routesNo, in.seq, lanes)
	return err
}

// endUnrouted makes dead letters of events that no sink gets, and the row whose settle deletes them.
func (b *Buffer) endUnrouted(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, claim any, lost []routing.Refusal) error {
	group := buffer.NewGroupID()
	ids, dead := routing.ByReason(lost)
	for _, reason := range slices.Sorted(maps.Keys(dead)) {
		if err := b.events.bury(ctx, tx, batch, in.extent(batch, dead[reason]), burial{group, buffer.Unrouted, 0, reason, nil}); err != nil {
			return err
		}
	}
	_, err := tx.exec(ctx, markUnmatchedSQL, group.String(), b.config.Table, in.claim, b.config.Owner,
		len(ids), ids[0], ids[len(ids)-1], in.oldest, in.claimed, idset.JSONIDs(ids), idset.Of(ids).JSON(), in.newest, claim, in.seq)
	return err
}
