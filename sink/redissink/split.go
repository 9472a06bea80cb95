package redissink

import (
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// maxBytes limits what is sent to Redis at once, approximately. A script blocks the server while it runs, and
// its arguments exist three times: in the client's buffer, in Lua, and in the stream.
const maxBytes = 64 << 20

// split returns nil for a batch of at most maxBytes, otherwise runs of its events that are. A larger event is
// alone.
func split(b *buffer.Batch) []sink.Group {
	var groups []sink.Group
	size := 0
	for i := range b.Events {
		bytes := sizeOf(&b.Events[i])
		if i == 0 || size+bytes > maxBytes {
			groups, size = append(groups, sink.Group{}), 0
		}
		run := &groups[len(groups)-1]
		run.Indexes = append(run.Indexes, i)
		size += bytes
	}
	if len(groups) < 2 {
		return nil
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
