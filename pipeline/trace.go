package pipeline

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/distributor"
	"github.com/outboxrelay/relay/internal/tracing"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// tracedCounts makes spans of counts that fail, because nothing is claimed then.
type tracedCounts struct {
	distributor.Buffer
	tracer *tracing.Tracer
}

// CountBacklog implements [distributor.Buffer].
func (c tracedCounts) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	began := time.Now()
	backlog, err := c.Buffer.CountBacklog(ctx, limit)
	c.tracer.DatabaseFailed(ctx, "count", began, err)
	return backlog, err
}

// traceConnect makes spans of checks of the database that fail, before the first count.
func traceConnect(tracer *tracing.Tracer, check func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		began := time.Now()
		err := check(ctx)
		tracer.DatabaseFailed(ctx, "connect", began, err)
		return err
	}
}
