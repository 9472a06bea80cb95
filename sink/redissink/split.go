package redissink

import (
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxBytes limits what is sent to Redis at once, approximately. A script blocks the server
// while it runs, and its arguments exist three times: in the client's buffer, in Lua, and
// in the stream.
const maxBytes = 64 << 20

// split returns nil for a batch of at most maxBytes, otherwise runs of its events that are.
// A larger event is alone.
func split(b *buffer.Batch) []sink.Group {
	total := 0
	for i := range b.Events {
		total += sizeOf(&b.Events[i])
	}
	if total <= maxBytes || len(b.Events) < 2 {
		return nil
	}
	var groups []sink.Group
	var run []int
	size := 0
	for i := range b.Events {
		bytes := sizeOf(&b.Events[i])
		if size+bytes > maxBytes && len(run) > 0 {
			groups = append(groups, sink.Group{Indexes: run})
			run, size = nil, 0
		}
		run = append(run, i)
		size += bytes
	}
	return append(groups, sink.Group{Indexes: run})
}

// splitRejected returns a group of the events that can be sent, and one for each rejected
// event.
func splitRejected(b *buffer.Batch, rejected []sink.EventError) []sink.Group {
	errs := make([]error, len(b.Events))
	for _, e := range rejected {
		errs[e.Index] = e.Err
	}
	groups := make([]sink.Group, 1, 1+len(rejected))
	for i, err := range errs {
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
