package redissink

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer. It returns the commands, and for a script the commands that add its
// events, without markers. It does not connect.
func (s *Sink) Preview(ctx context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	if parts := split(b); parts != nil {
		return sink.PreviewGroups(b, parts, func(part *buffer.Batch) ([]sink.PreparedMessage, error) {
			return s.Preview(ctx, part)
		})
	}
	calls, rejected := s.calls(ctx, b)
	var all []sink.PreparedMessage
	if s.cfg.Mode.usesQueues() && len(calls) > 0 {
		line := fmt.Sprintln(s.registerArgs(calls)...)
		shown := sink.PreparedMessage{Summary: line[:len(line)-1]}
		for _, c := range calls {
			shown.Events = append(shown.Events, c.indexes...)
		}
		slices.Sort(shown.Events)
		all = append(all, shown)
	}
	for _, c := range calls {
		switch s.cfg.Mode {
		case Stream:
			for _, i := range c.indexes {
				all = append(all, previewEntry(b, i, c.address))
			}
		case Asynq:
			for _, i := range c.indexes {
				t, _ := s.taskOf(b, i, c.address) // asynqArgs has checked
				all = append(all, t.preview(i))
			}
		default:
			all = append(all, c.preview())
		}
	}
	return all, sink.NewBatchError(rejected)
}

// preview returns a command, with its values on one line each.
func (c *call) preview() sink.PreparedMessage {
	args := c.cmd.Args()
	values := make([][]byte, 0, len(args)-2)
	for _, arg := range args[2:] {
		values = append(values, argText(arg))
	}
	return sink.PreparedMessage{
		Summary: fmt.Sprint(args[0], " ", args[1]), Body: bytes.Join(values, []byte("\n")),
		Events: slices.Clone(c.indexes),
	}
}

// previewEntry returns what stream.lua adds for an event.
func previewEntry(b *buffer.Batch, i int, stream string) sink.PreparedMessage {
	shown := sink.PreparedMessage{Summary: "XADD " + stream + " *", Events: []int{i}}
	fields := appendFields(nil, b, i, b.GroupID.String())
	for at := 0; at < len(fields); at += 2 {
		shown.Header = append(shown.Header, sink.Field{Name: fmt.Sprint(fields[at]), Value: string(argText(fields[at+1]))})
	}
	return shown
}

// preview returns what asynq.lua adds for an event.
func (t task) preview(i int) sink.PreparedMessage {
	shown := sink.PreparedMessage{
		Summary: "LPUSH " + asynqPrefix(t.queue) + "pending " + t.id,
		Header: []sink.Field{
			{Name: "type", Value: t.kind},
			{Name: "id", Value: t.id},
			{Name: "queue", Value: t.queue},
			{Name: "retry", Value: strconv.Itoa(asynqRetry)},
			{Name: "timeout", Value: strconv.Itoa(asynqTimeout)},
		},
		Body: slices.Clone(t.payload), Events: []int{i},
	}
	for _, name := range slices.Sorted(maps.Keys(t.headers)) {
		shown.Header = append(shown.Header, sink.Field{Name: "headers." + name, Value: t.headers[name]})
	}
	return shown
}

// argText is an argument as it is sent to Redis.
func argText(arg any) []byte {
	switch v := arg.(type) {
	case *bytesArg:
		return *v
	case []byte:
		return v
	case *string:
		return []byte(*v)
	case *int64:
		return strconv.AppendInt(nil, *v, 10)
	}
	return fmt.Append(nil, arg)
}
