package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/deadletter"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/watermark"
)

// DeadLetterQueue implements buffer.Buffer.
func (b *Buffer) DeadLetterQueue() buffer.Queue {
	return deadletter.NewQueue(b.base, ledger.DefaultSink, b.Check, watermark.FullSweepInterval)
}

// SinkDeadLetterQueue implements buffer.SinkHooks.
func (b *Buffer) SinkDeadLetterQueue(sink string) buffer.Queue {
	return deadletter.NewQueue(b.base, sink, b.Check, watermark.FullSweepInterval)
}

var _ buffer.SinkHooks = (*Buffer)(nil)

// Replay implements buffer.DeadLetters.
func (b *Buffer) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (int, error) {
	t, err := b.ready(ctx)
	if err != nil {
		return 0, err
	}
	return t.events.Replay(ctx, f, limit)
}

// RowColumns implements buffer.DeadEditor.
func (b *Buffer) RowColumns(ctx context.Context) ([]string, error) {
	t, err := b.ready(ctx)
	if err != nil || t.custom == nil {
		return nil, err
	}
	return t.custom.Columns(), nil
}

// EditDead implements buffer.DeadEditor.
func (b *Buffer) EditDead(ctx context.Context, e buffer.DeadEdit) error {
	t, err := b.ready(ctx)
	if err != nil {
		return err
	}
	return t.events.EditDead(ctx, e)
}
