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

// TakeOverUnrouted takes over a batch that was claimed for several sinks.
func TakeOverUnrouted(ctx context.Context, b *Buffer) (*buffer.Lease, error) {
	batch, err := b.takeOver(ctx, time.Minute, buffer.DueRetry, b.topicsLoader(ctx))
	if batch != nil {
		b.events.project(ctx, batch, time.Minute)
	}
	return batch, err
}

// RouteLease routes a batch that Claim returned.
func RouteLease(ctx context.Context, b *Buffer, batch *buffer.Lease) (*buffer.Routed, error) {
	return b.routeLeased(ctx, batch, time.Now(), time.Minute, takeNone)
}
