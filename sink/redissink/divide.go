package redissink

import (
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxBytes is about what goes to Redis at once. A script blocks the server while
// it runs, and its arguments are there three times over: in the client's buffer, in
// Lua, and in the stream.
const maxBytes = 64 << 20

// divide returns nil for a batch that may go out as it is, else runs of its events
// that may. An event that is larger stands alone.
func divide(b *buffer.Batch) []sink.Group {
	all := 0
	for i := range b.Events {
		all += sizeOf(&b.Events[i])
	}
	if all <= maxBytes || len(b.Events) < 2 {
		return nil
	}
	var parts []sink.Group
	var part []int
	size := 0
	for i := range b.Events {
		bytes := sizeOf(&b.Events[i])
		if size+bytes > maxBytes && len(part) > 0 {
			parts = append(parts, sink.Group{Indexes: part})
			part, size = nil, 0
		}
		part = append(part, i)
		size += bytes
	}
	return append(parts, sink.Group{Indexes: part})
}

// refuse parts the events that are wrong from the others.
func refuse(b *buffer.Batch, wrong []sink.EventError) []sink.Group {
	refused := make([]error, len(b.Events))
	for _, e := range wrong {
		refused[e.Index] = e.Err
	}
	groups := make([]sink.Group, 1, 1+len(wrong))
	for i, err := range refused {
		if err == nil {
			groups[0].Indexes = append(groups[0].Indexes, i)
			continue
		}
		groups = append(groups, sink.Group{Indexes: []int{i}, Err: err})
	}
	return groups
}

func sizeOf(e *outbox.Event) int {
	size := len(e.Payload) + len(e.Headers) + len(e.Topic)
	if e.Key != nil {
		size += len(*e.Key)
	}
	return size
}
