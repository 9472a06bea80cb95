package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
)

// Claim implements buffer.Claimer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch, err := b.claimOnce(ctx, limit, lease)
	if !errors.Is(err, errRouted) {
		return batch, err
	}
	if b.config.Sinks == nil {
		err = b.unroute(ctx)
	} else {
		err = b.RegisterSinks(ctx)
	}
	if err != nil {
		return nil, err
	}
	return b.claimOnce(ctx, limit, lease)
}

// errRouted: events are routed to several sinks and this pipeline has a single one, or the other way round.
var errRouted = errors.New("events are not routed as this pipeline is configured")

func (b *Buffer) claimOnce(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	if b.config.Ordered {
		return b.claimInOrder(ctx, limit, lease)
	}
	batch, err := b.claim(ctx, lease, func(tx transaction, batch *buffer.Lease, mode string, from int64) (skipped *int64, err error) {
		if err := b.events.pick(ctx, tx, batch, mode, from, limit); err != nil {
			return nil, err
		}
		if len(batch.Events) == 0 {
			b.cursor.Exhausted(from)
			return nil, errNothing
		}
		var members idset.Set
		if mode == claimmode.Range {
			members = idset.Of(batch.IDs())
		}
		if err := b.open(ctx, tx, batch, lease, members, func(i int) time.Time { return batch.Events[i].CreatedAt }); err != nil || members != nil {
			return nil, err
		}
		return nil, b.events.stamp(ctx, tx, batch)
	})
	if batch != nil {
		b.events.project(ctx, batch, lease/2)
	}
	return batch, err
}

// stamped returns a check of an UPDATE that is to give so many events a group_id. A trigger may keep the old one, without an error.
func (b *Buffer) stamped(events int) func(updated int64, err error) error {
	return func(updated int64, err error) error {
		if err == nil && updated != int64(events) {
			return &buffer.UnstampedError{Table: b.config.Table}
		}
		return err
	}
}

// claim runs take, which makes a batch of events beyond from, in a transaction. take returns the first
// event that it left behind, nil for none; errNothing if it made no batch.
func (b *Buffer) claim(ctx context.Context, lease time.Duration,
	take func(tx transaction, batch *buffer.Lease, mode string, from int64) (skipped *int64, err error),
) (*buffer.Lease, error) {
	batch := b.newLease(lease)
	committing := false
	err := b.write(ctx, "claiming a batch", func(tx transaction) error {
		mode, routed, err := b.negotiate(ctx, tx)
		if err != nil {
			return err
		}
		if routed != (b.config.Sinks != nil) {
			return errRouted
		}
		if err := b.own(ctx, tx); err != nil {
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
	if err != nil && committing { // it is unknown whether the commit happened
		b.cursor.Reset()
	}
	return leased(batch, err)
}
