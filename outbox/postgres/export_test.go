package postgres

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// SetStatementTimeout bounds each statement of a buffer that is not in use.
func SetStatementTimeout(b *Buffer, d time.Duration) { b.db.StatementTimeout = d }

// RouteLease routes a batch that Claim returned.
func RouteLease(ctx context.Context, b *Buffer, batch *buffer.Lease) (*buffer.Routed, error) {
	return b.routes.Route(ctx, &b.table.Load().Tables, batch, time.Minute, takeNone)
}
