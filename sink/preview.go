package sink

import (
	"context"
	"errors"
	"net/http"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Previewer is a Sink that can show what Send would send of a batch, without sending it.
type Previewer interface {
	// Preview returns what Send would send, in its order, without secrets. Where Send asks for a split of the
	// batch, it returns what Send would send of each group. A *BatchError names the events that Send would
	// reject; the others are among the messages.
	Preview(ctx context.Context, b *buffer.Batch) ([]PreparedMessage, error)
}

// AnswerPreviewer is a Sink that can show what Send would make of a server's answer.
type AnswerPreviewer interface {
	// PreviewAnswer returns the error that Send would return if the server answered the batch so. It sends nothing.
	PreviewAnswer(ctx context.Context, b *buffer.Batch, a Answer) error
}

// Answer is a server's answer to a request.
type Answer struct {
	// Status is an HTTP status.
	Status int
	Header http.Header
	Body   []byte
}

// PreparedMessage is one request, command or publish, for people to read.
type PreparedMessage struct {
	// Summary is the action and its address: "POST https://host/path", "XADD orders.created *".
	Summary string
	// Header are its headers or fields, in order; "***" replaces secrets.
	Header []Field
	// Body is the body before compression; nil if there is none.
	Body []byte
	// Events are the indexes in the batch of its events.
	Events []int
	// Unsent are the indexes of those of them that the message surely does not contain, although it stands for them.
	Unsent []int
}

// Field is a name and its value.
type Field struct{ Name, Value string }

// PreviewGroups previews the groups of a SplitError one by one, each as a batch with a group_id of its own.
// Its results are those of Previewer.Preview for the whole batch.
func PreviewGroups(b *buffer.Batch, groups []Group, preview func(*buffer.Batch) ([]PreparedMessage, error)) ([]PreparedMessage, error) {
	var all []PreparedMessage
	var rejected []EventError
	for _, g := range groups {
		if g.Err != nil {
			for _, i := range g.Indexes {
				rejected = append(rejected, EventError{Index: i, Err: g.Err})
			}
			continue
		}
		part := b.Part(g.Indexes)
		part.GroupID = buffer.NewGroupID()
		messages, err := preview(part)
		for _, m := range messages {
			for at, i := range m.Events {
				m.Events[at] = g.Indexes[i]
			}
			for at, i := range m.Unsent {
				m.Unsent[at] = g.Indexes[i]
			}
			all = append(all, m)
		}
		if batch, ok := errors.AsType[*BatchError](err); ok {
			for _, e := range batch.Events {
				rejected = append(rejected, EventError{Index: g.Indexes[e.Index], Err: e.Err})
			}
		} else if err != nil {
			return all, err
		}
	}
	return all, NewBatchError(rejected)
}
