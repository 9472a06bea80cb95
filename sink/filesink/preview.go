package filesink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer. It returns the lines that Send would append.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	lines, accepted, rejected := appendLines(nil, b)
	err := sink.NewBatchError(rejected)
	if len(accepted) == 0 {
		return nil, err
	}
	return []sink.PreparedMessage{{Summary: "append to " + s.name, Body: lines, Events: accepted}}, err
}

// appendLines appends the events' envelopes. accepted are the indexes of these events, rejected are the events
// that an envelope cannot carry.
func appendLines(lines []byte, b *buffer.Batch) (_ []byte, accepted []int, rejected []sink.EventError) {
	for i := range b.Events {
		if err := sink.CheckHeaders(&b.Events[i]); err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		lines, accepted = sink.AppendLine(lines, b, i), append(accepted, i)
	}
	return lines, accepted, rejected
}
