package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
)

// SetStatementTimeout bounds each statement of a buffer that is not in use.
func SetStatementTimeout(b *Buffer, d time.Duration) { b.db.StatementTimeout = d }

// SetSpaceQuery makes CheckSpace run another statement, now.
func SetSpaceQuery(b *Buffer, sql string) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	b.space.query, b.space.at = sql, time.Time{}
}

// TakeOverEnding takes over a batch of a dropped sink.
func TakeOverEnding(ctx context.Context, b *Buffer, sink string) (*buffer.Lease, error) {
	return ledger.TakeOverEnding(ctx, b.sink(sink).Ledger, &b.table.Load().Tables, time.Minute)
}

// TakeOverUnrouted takes over a batch that was claimed for several sinks.
func TakeOverUnrouted(ctx context.Context, b *Buffer) (*buffer.Lease, error) {
	return b.table.Load().events.TakeOverUnrouted(ctx, b.Ledger, time.Minute, buffer.DueRetry)
}

// RouteLease routes a batch that Claim returned.
func RouteLease(ctx context.Context, b *Buffer, batch *buffer.Lease) (*buffer.Routed, error) {
	return b.routeLeased(ctx, b.table.Load(), batch, time.Now(), time.Minute, takeNone)
}
