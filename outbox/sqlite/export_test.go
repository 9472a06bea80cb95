package sqlite

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TakeOverEnding takes over a batch of a dropped sink.
func TakeOverEnding(ctx context.Context, b *Buffer, sink string) (*buffer.Lease, error) {
	return b.takeOverEnding(ctx, sink, buffer.DroppedDiscarded)
}

// RouteLease routes a batch that Claim returned.
func RouteLease(ctx context.Context, b *Buffer, batch *buffer.Lease) (*buffer.Routed, error) {
	return b.routeLeased(ctx, batch, time.Now(), time.Minute, takeNone)
}
