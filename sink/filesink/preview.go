package filesink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer. It returns the lines that Send would append.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	lines, rejected := appendLines(nil, b)
	err := sink.NewBatchError(rejected)
	if len(rejected) == len(b.Events) {
		return nil, err
	}
	message := sink.PreparedMessage{Summary: "append to " + s.name, Body: lines}
	for i := range b.Events {
		if len(rejected) > 0 && rejected[0].Index == i {
			rejected = rejected[1:]
			continue
		}
		message.Events = append(message.Events, i)
	}
	return []sink.PreparedMessage{message}, err
}

// appendLines appends the events' envelopes. rejected are the events that an envelope cannot carry, in order.
func appendLines(lines []byte, b *buffer.Batch) (_ []byte, rejected []sink.EventError) {
	for i := range b.Events {
		if err := sink.CheckHeaders(&b.Events[i]); err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		lines = sink.AppendLine(lines, b, i)
	}
	return lines, rejected
}
