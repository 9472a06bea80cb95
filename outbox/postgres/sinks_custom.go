package postgres

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A batch of a custom table is routed by topics that the projection returns. If the projection fails, or its rows cannot be read, the
// batch is put back: nothing of it was sent.

// putBack puts a claimed batch back that cannot be routed; done is false if it can be.
func (b *Buffer) putBack(ctx context.Context, batch *buffer.Lease) (done bool, err error) {
	if batch.NotRead != nil && batch.Len() == 1 && !errors.Is(batch.NotRead, buffer.ErrKillsReader) {
		if err := b.Read(ctx, batch); err != nil && batch.NotRead == nil {
			return true, err
		}
	}
	outcomes, why := b.failing.Unroutable(batch)
	if outcomes == nil {
		return false, nil
	}
	if err := b.Settle(ctx, batch, outcomes); err != nil {
		return true, err
	}
	return true, why
}
