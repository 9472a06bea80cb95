package redissink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer: the commands as they are, but those that scripts run,
// with what they add, and nothing of markers. A batch that is to be divided has another
// group_id in each part then. It connects to nothing.
func (s *Sink) Preview(ctx context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	parts := divide(b)
	if parts == nil {
		return s.preview(ctx, b)
	}
	var (
		all     []sink.PreparedMessage
		refused []sink.EventError
	)
	for _, g := range parts {
		part := *b
		part.Events = nil
		for _, i := range g.Indexes {
			part.Events = append(part.Events, b.Events[i])
		}
		shown, err := s.preview(ctx, &part)
		for _, sh := range shown {
			for at, i := range sh.Events {
				sh.Events[at] = g.Indexes[i]
			}
			all = append(all, sh)
		}
		if some, ok := errors.AsType[*sink.BatchError](err); ok {
			for _, e := range some.Events {
				refused = append(refused, sink.EventError{Index: g.Indexes[e.Index], Err: e.Err})
			}
		}
	}
	return all, refusal(refused)
}

func refusal(refused []sink.EventError) error {
	if len(refused) == 0 {
		return nil
	}
	slices.SortFunc(refused, func(a, b sink.EventError) int { return a.Index - b.Index })
	return &sink.BatchError{Events: refused}
}

// preview is Preview of a batch that goes as it is. Its error is a *sink.BatchError.
func (s *Sink) preview(ctx context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	calls, wrong := s.calls(ctx, b)
	var all []sink.PreparedMessage
	if s.cfg.Mode.queues() && len(calls) > 0 {
		line := fmt.Sprintln(s.announcement(calls)...)
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
				all = append(all, showEntry(b, i, c.address))
			}
		case Asynq:
			for _, i := range c.indexes {
				t, _ := s.taskOf(b, &b.Events[i], c.address) // asynqArgs has looked
				all = append(all, t.show(i))
			}
		default:
			all = append(all, c.show())
		}
	}
	return all, refusal(wrong)
}

// show shows a command with values that are text, each on a line.
func (c *call) show() sink.PreparedMessage {
	args := c.cmd.Args()
	values := make([][]byte, 0, len(args)-2)
	for _, arg := range args[2:] {
		values = append(values, textOf(arg))
	}
	return sink.PreparedMessage{
		Summary: fmt.Sprint(args[0], " ", args[1]), Body: bytes.Join(values, []byte("\n")),
		Events: slices.Clone(c.indexes),
	}
}

// showEntry shows what stream.lua adds of an event.
func showEntry(b *buffer.Batch, i int, stream string) sink.PreparedMessage {
	shown := sink.PreparedMessage{Summary: "XADD " + stream + " *", Events: []int{i}}
	fields := appendFields(nil, &b.Events[i], b.GroupID.String())
	for at := 0; at < len(fields); at += 2 {
		shown.Header = append(shown.Header, sink.Field{Name: fmt.Sprint(fields[at]), Value: string(textOf(fields[at+1]))})
	}
	return shown
}

// show shows what asynq.lua adds of an event.
func (t task) show(i int) sink.PreparedMessage {
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

// textOf is an argument as Redis gets it.
func textOf(arg any) []byte {
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
