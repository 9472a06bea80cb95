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
	due, first := b.cursor.Due()
	if first {
		if batch, err := b.claimDue(ctx, limit, lease); batch != nil || err != nil {
			return batch, err
		}
	}
	claim := b.claimNext
	if b.config.Ordered {
		claim = b.claimInOrder
	}
	batch, err := claim(ctx, limit, lease)
	if batch == nil && err == nil && due && !first {
		return b.claimDue(ctx, limit, lease)
	}
	return batch, err
}

// claimNext claims the next events beyond the cursor.
func (b *Buffer) claimNext(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch, err := b.claim(ctx, lease, func(tx transaction, batch *buffer.Lease, mode string, from int64) error {
		_, now := b.clock()
		if err := b.events.pick(ctx, tx, batch, mode, from, limit, now); err != nil {
			return err
		}
		if len(batch.Events) == 0 {
			b.cursor.Exhausted(from)
			return errNothing
		}
		var members idset.Set
		if mode == claimmode.Range {
			members = idset.Of(batch.IDs())
		}
		if err := b.open(ctx, tx, batch, lease, members, eventTimes(batch)); err != nil {
			return err
		}
		if members == nil {
			if err := b.events.stamp(ctx, tx, batch, nil, now); err != nil {
				return err
			}
		}
		b.cursor.Claimed(from, batch.LastID, nil)
		return nil
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

// claim runs take, which makes a batch in a transaction and moves the cursor, which is at from. take returns errNothing if it made no
// batch.
func (b *Buffer) claim(ctx context.Context, lease time.Duration,
	take func(tx transaction, batch *buffer.Lease, mode string, from int64) error,
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
		if err := take(tx, batch, mode, b.cursor.Position()); err != nil {
			return err
		}
		committing = true
		return nil
	})
	if err != nil && committing { // it is unknown whether the commit happened
		b.cursor.Reset()
	}
	return leased(batch, err)
}
