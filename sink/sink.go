// Package sink is where batches go: the [Sink] that drivers implement, what a sink may implement
// besides (optional.go), the kinds of its errors (errors.go), addresses and envelopes. A driver only
// sends and classifies; package delivery retries, halves and buries, for all of them.
package sink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Sink is a destination. Implementations are safe for concurrent use, keep no reference to the
// batch after Send has returned, do not change it, do not retry, and put no secret into an error.
type Sink interface {
	// Send delivers the batch before ctx's deadline, and returns soon after ctx has ended: later its result is
	// dropped. Its result is
	//   - nil: every event is durably accepted;
	//   - a *BatchError: the events that it names are not accepted, the others are;
	//   - a *SplitError: nothing was sent, because the batch cannot have one group_id;
	//   - an error that wraps ErrUnavailable: it is unknown whether events were accepted
	//     (UnavailableError can say when to try again);
	//   - ErrFenced: a later owner has given up this group_id;
	//   - any other error: the whole batch was rejected, for good if it wraps ErrPermanent.
	Send(ctx context.Context, b *buffer.Batch) error

	// Check returns nil if the sink can be reached and would accept events; it sends none. Its
	// error wraps ErrUnavailable if waiting may help.
	Check(ctx context.Context) error

	// Close closes connections. It is not called during a Send, unless that Send does not return long after its context has
	// ended.
	Close() error
}
