package filesink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer: the lines that the batch makes.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	lines, refused := appendLines(nil, b)
	var err error
	if len(refused) > 0 {
		err = &sink.BatchError{Events: refused}
	}
	if len(refused) == len(b.Events) {
		return nil, err
	}
	shown := sink.PreparedMessage{Summary: "append to " + s.name, Body: lines}
	for i := range b.Events {
		if len(refused) > 0 && refused[0].Index == i {
			refused = refused[1:]
			continue
		}
		shown.Events = append(shown.Events, i)
	}
	return []sink.PreparedMessage{shown}, err
}

// appendLines appends the events, and names those that no envelope can carry, in order.
func appendLines(lines []byte, b *buffer.Batch) (_ []byte, refused []sink.EventError) {
	for i := range b.Events {
		if err := sink.CheckHeaders(&b.Events[i]); err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: err})
			continue
		}
		lines = sink.AppendLine(lines, &b.Events[i], b.PayloadIsJSON)
	}
	return lines, refused
}
