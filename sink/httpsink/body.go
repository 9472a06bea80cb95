package httpsink

import (
	"fmt"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// body is what is sent for a batch.
type body struct {
	text []byte
	// around is the bytes of text that are no event's: what begins and ends it.
	around int
	// sizes of the events in text, each with what parts it from the next one; 0
	// for one that is not in it.
	sizes []int
	// comma is the bytes of that which the last event does without.
	comma int
}

// body makes the body of all events but the refused ones. It is a new one each
// time: net/http may still read it after it has returned the answer.
func (s *Sink) body(b *outbox.Batch, refused []sink.EventError) body {
	size := 128
	for i := range b.Events {
		e := &b.Events[i]
		size += 128 + len(e.Topic) + len(e.Payload) + len(e.Headers)
		if e.Key != nil {
			size += len(*e.Key)
		}
	}
	made := body{text: make([]byte, 0, size), sizes: make([]int, len(b.Events))}
	for _, e := range refused {
		made.sizes[e.Index] = -1
	}
	if s.format == NDJSON {
		made.events(b, func(text []byte, e *outbox.Event) []byte { return sink.AppendLine(text, e, b.PayloadIsJSON) })
		return made
	}
	made.text = append(made.text, `{"pipeline":`...)
	made.text = sink.AppendJSONString(made.text, b.Pipeline)
	made.text = append(made.text, `,"group_id":"`...)
	made.text = append(made.text, b.GroupID.String()...)
	made.text = append(made.text, `","events":[`...)
	made.comma = 1
	const end = "]}"
	made.around = len(made.text) + len(end)
	made.events(b, func(text []byte, e *outbox.Event) []byte {
		return append(sink.AppendEnvelope(text, e, b.PayloadIsJSON), ',')
	})
	if made.text[len(made.text)-1] == ',' {
		made.text = made.text[:len(made.text)-1]
	}
	made.text = append(made.text, end...)
	return made
}

func (m *body) events(b *outbox.Batch, add func([]byte, *outbox.Event) []byte) {
	for i := range b.Events {
		if m.sizes[i] < 0 {
			m.sizes[i] = 0
			continue
		}
		before := len(m.text)
		m.text = add(m.text, &b.Events[i])
		m.sizes[i] = len(m.text) - before
	}
}

// parts divides the events, in order, into as few bodies as fit into that many
// bytes, and names those that do not fit alone. A part's group_id is as long as
// this one's, so their sizes are the same there.
func (m *body) parts(most int) (parts []sink.Group, tooLarge []sink.EventError) {
	var part []int
	length := m.around
	for i, size := range m.sizes {
		alone := m.around + size - m.comma
		switch {
		case size == 0:
			continue
		case alone > most:
			err := fmt.Errorf("its body is %d bytes, max_bytes is %d", alone, most)
			tooLarge = append(tooLarge, sink.EventError{Index: i, Err: sink.Permanent(err)})
			continue
		case length+size-m.comma > most:
			parts = append(parts, sink.Group{Indexes: part})
			part, length = nil, m.around
		}
		part = append(part, i)
		length += size
	}
	if len(part) > 0 {
		parts = append(parts, sink.Group{Indexes: part})
	}
	return parts, tooLarge
}
