package sqlite

import (
	"context"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// TakeOver implements buffer.Claimer.
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return b.takeOverOf(ctx, b.ledger, lease, due)
}

// takeOverOf takes over a batch of a sink.
func (b *Buffer) takeOverOf(ctx context.Context, l ledger, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	batch, err := l.takeOver(ctx, lease, due, b.loader(ctx))
	if batch != nil && batch.NotRead == nil {
		b.events.project(ctx, batch, lease/2)
	}
	return batch, err
}

// Read implements buffer.Claimer.
func (b *Buffer) Read(ctx context.Context, batch *buffer.Lease) error {
	batch.Events, batch.NotRead = nil, nil
	if err := b.load(ctx, batch, b.loader(ctx)); err != nil {
		batch.NotRead = err
		return err
	}
	b.events.project(ctx, batch, time.Hour)
	return batch.NotRead
}

func (b *Buffer) loader(ctx context.Context) loader {
	return func(tx transaction, batch *buffer.Lease, in holding, count int) error {
		return b.events.load(ctx, tx, batch, in, count)
	}
}

// Settle implements buffer.Settler. No row is ever locked by itself here, so a batch that is marked
// delivered is settled like any other, and ErrLocked never comes.
func (b *Buffer) Settle(ctx context.Context, batch *buffer.Lease, all []buffer.Outcome) error {
	var of, kept int
	err := b.settle(ctx, batch, all, func(tx transaction, in holding, set *outcomes.Set) error {
		if err := b.numbered(ctx, tx, &in); err != nil {
			return err
		}
		for _, o := range set.Retry {
			if err := b.retryPart(ctx, tx, batch, in, in.extent(batch, o.IDs), o); err != nil {
				return err
			}
		}
		shared, err := b.sharedWith(ctx, tx, batch, in)
		if err != nil {
			return err
		}
		var removed int64
		for _, o := range slices.Concat(set.Dead, set.Delivered) {
			which := in.extent(batch, o.IDs)
			if o.Verdict == buffer.Dead {
				if err := b.events.bury(ctx, tx, batch, which, burial{batch.GroupID, in.sink, o.Attempts, o.Error, b.historyArg(batch, o)}); err != nil {
					return err
				}
			}
			if shared != nil {
				ids := o.IDs
				if ids == nil {
					ids = batch.IDs()
				}
				which = in.extent(batch, shared.without(ids))
			}
			n, err := b.events.remove(ctx, tx, batch, which, o.Verdict == buffer.Delivered || shared != nil, in.routesNo)
			if err != nil {
				return err
			}
			removed += n
		}
		delivered, dead := set.IDs(batch)
		ids := slices.Concat(delivered, dead)
		if shared != nil {
			ids = shared.without(ids)
		}
		if of = len(ids); removed >= int64(of) {
			return nil
		}
		kept, err = b.recordKept(ctx, tx, batch, in, ids)
		return err
	})
	if err == nil && kept > 0 {
		return &buffer.KeptError{Table: b.config.Table, Kept: kept, Of: of, Marked: b.marks(), RetryIn: buffer.KeptRetry(batch.LeaseNo)}
	}
	return err
}

// ?1 to ?5 are an extent.
const openPartSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address,
                            members, newest_at, claimed_at, sink, claim_id, routes_no, seq, lanes, history)
SELECT ?6, ?7, ?8, 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?9), ?10, ?18,
       ?11, ?12, count(*), min(id), max(id), coalesce(min(created_at), ?17), ?13, ?14, ?15,
       ?16, ?5, ?19, ?20, ?21, ?22, ?23, ?24, ?25
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
HAVING count(*) > 0`

// retryPart makes some of the batch's events a batch of their own.
func (b *Buffer) retryPart(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, which extent, o *buffer.Outcome) error {
	origins, err := originsOf(batch)
	if err != nil {
		return err
	}
	claim, members := claimmode.Stamp, any(nil)
	switch {
	case in.claimID != nil: // the other batches of the claim find its events by their members too
		claim, members = in.claim, which.members.JSON()
	case which.stamp == nil:
		claim, members = claimmode.Range, which.members.JSON()
	default:
		if err := b.events.regroup(ctx, tx, batch, which, o); err != nil {
			return err
		}
		which.stamp, which.ids = o.GroupID.String(), nil
	}
	var lanes any
	if b.routedInOrder() {
		if lanes, err = b.lanesIn(ctx, tx, which); err != nil {
			return err
		}
	}
	_, err = tx.exec(ctx, openPartSQL, append(which.args(), o.GroupID.String(), b.config.Table, claim, db.Seconds(o.After), b.config.Owner,
		o.Attempts, o.Outages, origins, o.Error, o.Address, members, in.oldest, o.UnfinishedLeases, in.claimed, in.sink, in.claimID, in.routesNo, in.seq, lanes, b.historyArg(batch, o))...)
	if err != nil || b.config.Sinks != nil {
		return err
	}
	return b.fillLanes(ctx, tx)
}
