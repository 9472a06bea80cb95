package sink

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Addresser is a Sink whose events may go to different addresses (streams, subjects, URLs), each
// of which may be unavailable while the others work. The relay then breaks the circuit of one address alone.
type Addresser interface {
	// AddressOf returns the event's address; ok is false if it has none, as when its key is NULL and the address needs
	// one. Two events have the same address if, and only if, they arrive at the same place. The text is shown in logs, so it
	// has no secrets.
	AddressOf(e *outbox.Event) (address string, ok bool)
	// OneAddress reports whether all events go to the same address, so that its outage is the
	// sink's.
	OneAddress() bool
}

// Warner is a Sink that knows of settings which endanger its promises.
type Warner interface {
	// Warnings returns a sentence each, with its fix, for the log.
	Warnings(ctx context.Context) []string
}

// Obstructed is a Sink that knows why its servers refuse events although Check succeeds.
type Obstructed interface {
	// Obstacles returns a sentence each, with its fix, for relay doctor.
	Obstacles(ctx context.Context) []string
}

// OfflineWarner is a Sink whose configuration alone may endanger its promises.
type OfflineWarner interface {
	// OfflineWarnings returns those of Warner.Warnings that need no connection.
	OfflineWarnings() []string
}

// Informer is a Sink that knows how durable its servers are.
type Informer interface {
	// Notes returns a sentence each of what an operator should know. Unlike warnings they need no change.
	Notes(ctx context.Context) []string
}

// Noticer is a Sink that knows of answers which look wrong, although they decide what happens to events.
type Noticer interface {
	// Notices returns those that hold. It is called after each Send, and is cheap.
	Notices() []Notice
}

// Notice is what a sink says of its answers.
type Notice struct {
	// Text is the predicate of a sentence about the sink.
	Text string
	// Settled reports whether it is about events that count as delivered. They are gone, so operators should learn of it even if the process has ended.
	Settled bool
}

// Fencer is a Sink that remembers group_ids.
type Fencer interface {
	// Fence gives up the batch's group_id and those of its origins: from then on, other owners
	// of these can add nothing (ErrFenced). delivered reports whether all events of the batch
	// had arrived. The error wraps ErrUnavailable.
	Fence(ctx context.Context, b *buffer.Batch) (delivered bool, err error)
}

// Resumer is a Sink that lets no request begin while its server asked for a pause.
type Resumer interface {
	// Resume ends such a pause, because an operator asked for it.
	Resume()
}

// Preparer is a Sink whose requests may have to wait before they begin, for a rate limit for
// example. The worker calls Prepare, Acquire and Send instead of Sink.Send, which does the
// same in one call.
type Preparer interface {
	// Prepare makes the request for the batch. Its error is as Sink.Send's: nothing was sent.
	Prepare(ctx context.Context, b *buffer.Batch) (Prepared, error)
}

// Prepared is a request that may be sent once.
type Prepared interface {
	// Acquire waits until the request may begin. That is not the sink's time, and it ends when
	// the relay drains. Its error is as Sink.Send's: nothing was sent.
	Acquire(ctx context.Context) error
	// Send sends the request after an Acquire that succeeded.
	Send(ctx context.Context) error
}

// Rate is how many requests may begin in a time.
type Rate struct {
	Requests int
	Per      time.Duration
}
