package postgres

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
)

// A batch of a custom table is routed by topics that the projection returns. If the projection fails, or its rows cannot be read, the
// batch is put back: nothing of it was sent.

// putBack puts a claimed batch back that cannot be routed, and returns what became of it; nil without an error: it can be.
func (b *Buffer) putBack(ctx context.Context, batch *buffer.Lease) (*buffer.Routed, error) {
	if batch.NotRead != nil && batch.Len() == 1 && !errors.Is(batch.NotRead, buffer.ErrKillsReader) {
		if err := b.Read(ctx, batch); err != nil && batch.NotRead == nil {
			return nil, err
		}
	}
	outcomes, why := b.failing.Unroutable(batch)
	if outcomes == nil {
		return nil, nil
	}
	if err := b.Settle(ctx, batch, outcomes); err != nil {
		return nil, err
	}
	return routing.PutBack(batch, why)
}
