package sink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Previewer is a Sink that can show what Send would send of a batch, without sending
// it, and without a secret in it.
type Previewer interface {
	// Preview returns what Send would send, in its order: where Send asks for the batch
	// to be divided, of each part. Events that it would refuse are in the error, a
	// *BatchError, beside what is sent of the others.
	Preview(ctx context.Context, b *buffer.Batch) ([]PreparedMessage, error)
}

// PreparedMessage is one request, command or publish, for people to read.
type PreparedMessage struct {
	// Summary says what is done where: "POST https://host/path", "XADD orders.created *".
	Summary string
	// Header are its headers or fields, in order; "***" stands for what is secret.
	Header []Field
	// Body is what is sent, before any compression; nil when there is none.
	Body []byte
	// Events are the indexes in the batch of those that are sent with it.
	Events []int
}

// Field is a name and its value.
type Field struct{ Name, Value string }
