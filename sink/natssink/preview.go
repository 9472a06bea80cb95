package natssink

import (
	"context"
	"maps"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer: one message an event. It connects to nothing, so it
// does not know how much the server takes.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	var (
		all     []sink.PreparedMessage
		refused []sink.EventError
	)
	p := s.newPublisher(b)
	for i := range b.Events {
		subject, err := s.subjectOf(&b.Events[i])
		if err == nil {
			err = p.prepare(&b.Events[i], subject, "")
		}
		if err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: err})
			continue
		}
		all = append(all, sink.PreparedMessage{
			Summary: "PUB " + subject, Header: p.header(),
			Body: slices.Clone(p.msg.Data), Events: []int{i},
		})
	}
	if refused != nil {
		return all, &sink.BatchError{Events: refused}
	}
	return all, nil
}

// header is the message's, the relay's own first.
func (p *publisher) header() []sink.Field {
	names := slices.Clone(ownHeaders)
	for _, name := range slices.Sorted(maps.Keys(p.msg.Header)) {
		if !slices.Contains(ownHeaders, name) {
			names = append(names, name)
		}
	}
	var fields []sink.Field
	for _, name := range names {
		for _, value := range p.msg.Header[name] {
			fields = append(fields, sink.Field{Name: name, Value: value})
		}
	}
	return fields
}
