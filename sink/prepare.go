package sink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Preparer is a Sink whose requests may have to wait before they begin, for a rate limit for
// example. The worker calls Prepare, Acquire and Send instead of Sink.Send, which does the
// same in one call.
type Preparer interface {
	// Prepare makes what is to be sent of the batch. Its error is as Sink.Send's: nothing was
	// sent.
	Prepare(ctx context.Context, b *buffer.Batch) (Prepared, error)
}

// Prepared is a request that may be sent once.
type Prepared interface {
	// Acquire waits until the request may begin. That is not the sink's time, and it ends when
	// the relay drains. Its error is as Sink.Send's: nothing was sent.
	Acquire(ctx context.Context) error
	// Send sends the request, and must be called after an Acquire that succeeded.
	Send(ctx context.Context) error
}
