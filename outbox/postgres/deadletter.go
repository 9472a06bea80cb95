package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// DeadLetterQueue implements buffer.Buffer.
func (b *Buffer) DeadLetterQueue() buffer.Queue {
	return deadletter.NewQueue(b.base, b.Check, watermark.FullSweepInterval)
}

func (b *Buffer) deadLetters() *deadletter.DeadLetters { return deadletter.New(b.base) }

// ListDead implements buffer.DeadLetters.
func (b *Buffer) ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]buffer.DeadEvent, error) {
	return b.deadLetters().ListDead(ctx, f, after, limit)
}

// CountDead implements buffer.DeadLetters.
func (b *Buffer) CountDead(ctx context.Context, f buffer.DeadFilter) (buffer.DeadCount, error) {
	return b.deadLetters().CountDead(ctx, f)
}

// Discard implements buffer.DeadLetters.
func (b *Buffer) Discard(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	return b.deadLetters().Discard(ctx, f, limit)
}

// Replay implements buffer.DeadLetters.
func (b *Buffer) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return 0, err
	}
	return t.events.Replay(ctx, f, limit)
}
