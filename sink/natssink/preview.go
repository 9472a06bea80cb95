package natssink

import (
	"context"
	"maps"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// Preview implements sink.Previewer: one message an event. It does not connect, so it does not know the
// server's max_payload.
func (s *Sink) Preview(_ context.Context, b *buffer.Batch) ([]sink.PreparedMessage, error) {
	var (
		all      []sink.PreparedMessage
		rejected []sink.EventError
	)
	p := s.newPublisher(b)
	for i := range b.Events {
		subject, err := s.subjectOf(&b.Events[i])
		if err == nil {
			err = p.prepare(i, subject, "")
		}
		if err != nil {
			rejected = append(rejected, sink.EventError{Index: i, Err: err})
			continue
		}
		all = append(all, sink.PreparedMessage{
			Summary: "PUB " + subject, Header: p.header(),
			Body: slices.Clone(p.msg.Data), Events: []int{i},
		})
	}
	return all, sink.NewBatchError(rejected)
}

// header returns the message's headers by name.
func (p *publisher) header() (fields []sink.Field) {
	for _, name := range slices.Sorted(maps.Keys(p.msg.Header)) {
		for _, value := range p.msg.Header[name] {
			fields = append(fields, sink.Field{Name: name, Value: value})
		}
	}
	return fields
}
