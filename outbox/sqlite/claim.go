package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// Claim implements buffer.Claimer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	if b.config.Ordered {
		return b.claimInOrder(ctx, limit, lease)
	}
	batch, err := b.claim(ctx, lease, func(tx transaction, batch *buffer.Lease, mode string, from int64) (skipped int64, err error) {
		if err := b.events.pick(ctx, tx, batch, mode, from, limit); err != nil {
			return 0, err
		}
		if len(batch.Events) == 0 {
			b.cursor.Exhausted(from)
			return 0, errNothing
		}
		var members idset.Set
		if mode == claimmode.Range {
			members = idset.Of(batch.IDs())
		}
		if err := b.openLedger(ctx, tx, batch, lease, members); err != nil || members != nil {
			return 0, err
		}
		return 0, b.events.stamp(ctx, tx, batch)
	})
	if batch != nil {
		b.events.project(ctx, batch, lease)
	}
	return batch, err
}

// claim runs take, which makes a batch of events beyond from, in a transaction. take returns the first
// event that it left behind, 0 for none; errNothing if it made no batch.
func (b *Buffer) claim(ctx context.Context, lease time.Duration,
	take func(tx transaction, batch *buffer.Lease, mode string, from int64) (skipped int64, err error),
) (*buffer.Lease, error) {
	batch := &buffer.Lease{
		Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: b.config.Pipeline}, LeaseNo: 1, UnfinishedLeases: 1, Ends: db.LeaseEnd(time.Now(), lease),
	}
	committing := false
	err := b.write(ctx, "claiming a batch", func(tx transaction) error {
		mode, err := b.negotiate(ctx, tx)
		if err != nil {
			return err
		}
		from := b.cursor.Position()
		skipped, err := take(tx, batch, mode, from)
		if err != nil {
			return err
		}
		b.cursor.Claimed(from, batch.LastID, skipped)
		committing = true
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		return nil, nil
	case err != nil:
		if committing { // nobody knows whether it was committed
			b.cursor.Reset()
		}
		return nil, err
	}
	batch.ClaimedLocal = time.Now()
	return batch, nil
}

const openLedgerSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, members, newest_at)
VALUES (?1, ?2, ?3, 'leased', 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4), ?5, 1,
        0, 0, ?6, ?7, ?8, ?9, ?10, ?11)
RETURNING claimed_at`

// openLedger writes the ledger row of the events picked: by range with members, or by stamp if
// members is nil.
func (b *Buffer) openLedger(ctx context.Context, tx transaction, batch *buffer.Lease, lease time.Duration, members idset.Set) error {
	batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[len(batch.Events)-1].ID
	oldest := batch.Events[0].CreatedAt
	newest := oldest
	for i := range batch.Events {
		at := batch.Events[i].CreatedAt
		if at.Before(oldest) {
			oldest = at
		}
		if at.After(newest) {
			newest = at
		}
	}
	args := []any{
		batch.GroupID.String(), b.config.Table, claimmode.Stamp, db.Seconds(lease), b.config.Owner,
		len(batch.Events), batch.FirstID, batch.LastID, oldest.Format(db.TimeFormat), nil, nil,
	}
	if members != nil {
		args[2], args[9], args[10] = claimmode.Range, members.JSON(), newest.Format(db.TimeFormat)
	}
	return scanClock(tx.row(ctx, openLedgerSQL, args...), &batch.ClaimedAt)
}
