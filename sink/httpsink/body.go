package httpsink

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// body is what is sent for a batch without a program.
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

// format is what stands around the events of a body, and how one is written.
type format struct {
	begin, end string
	comma      int // bytes behind an event that the last one does without
	add        func([]byte, *outbox.Event) []byte
}

func (s *Sink) formatOf(b *buffer.Batch) format {
	envelope := func(text []byte, e *outbox.Event) []byte {
		return append(sink.AppendEnvelope(text, e, b.PayloadIsJSON), ',')
	}
	cloudEvent := func(text []byte, e *outbox.Event) []byte { return append(sink.AppendCloudEvent(text, b, e), ',') }
	switch {
	case s.format == NDJSON:
		return format{add: func(text []byte, e *outbox.Event) []byte { return sink.AppendLine(text, e, b.PayloadIsJSON) }}
	case s.format == Array:
		return format{"[", "]", 1, envelope}
	case s.format == CloudEvents && s.single:
		return format{comma: 1, add: cloudEvent}
	case s.format == CloudEvents:
		return format{"[", "]", 1, cloudEvent}
	}
	begin := append([]byte(`{"pipeline":`), sink.AppendJSONString(nil, b.Pipeline)...)
	return format{string(begin) + `,"group_id":"` + b.GroupID.String() + `","events":[`, "]}", 1, envelope}
}

// body makes the body of those events. It is a new one each time: net/http may still
// read it after it has returned the answer.
func (s *Sink) body(b *buffer.Batch, kept []int) body {
	size := 128
	for _, i := range kept {
		e := &b.Events[i]
		size += 128 + len(e.Topic) + len(e.Payload) + len(e.Headers)
		if e.Key != nil {
			size += len(*e.Key)
		}
	}
	f := s.formatOf(b)
	made := body{
		text: append(make([]byte, 0, size), f.begin...), sizes: make([]int, len(b.Events)),
		around: len(f.begin) + len(f.end), comma: f.comma,
	}
	for _, i := range kept {
		before := len(made.text)
		made.text = f.add(made.text, &b.Events[i])
		made.sizes[i] = len(made.text) - before
	}
	if len(kept) > 0 {
		made.text = made.text[:len(made.text)-f.comma]
	}
	made.text = append(made.text, f.end...)
	return made
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
			tooLarge = append(tooLarge, sink.EventError{Index: i, Err: tooMany(alone, most)})
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

func tooMany(bytes, most int) error {
	return sink.Permanent(fmt.Errorf("its body is %d bytes, max_bytes is %d", bytes, most))
}

// program makes the body with Config.Request, of what would be sent without it.
func (s *Sink) program(ctx context.Context, b *buffer.Batch, r *request) ([]byte, error) {
	made, err := s.request.run(ctx, map[string]any{
		"pipeline": b.Pipeline, "group_id": b.GroupID.String(), "events": r.values,
	})
	if err != nil {
		return nil, err
	}
	if text, ok := made.(string); ok {
		return []byte(text), nil
	}
	size := 1024
	for _, i := range r.events {
		size += len(b.Events[i].Payload) + 64
	}
	w := writer{text: make([]byte, 0, size), most: mostResult, texts: r.in.texts}
	lines, isArray := made.([]any)
	switch {
	case s.format == Form:
		err = w.form(made)
	case s.format == NDJSON && isArray:
		for _, line := range lines {
			if err = w.line(line); err != nil {
				break
			}
		}
	case s.format == NDJSON:
		err = w.line(made)
	default:
		err = w.value(made, 0)
	}
	return w.text, err
}

// contentType is that of the format.
func (c Config) contentType() string {
	switch {
	case c.Format == NDJSON:
		return "application/x-ndjson"
	case c.Format == Form:
		return "application/x-www-form-urlencoded"
	case c.Format == CloudEvents && c.Single:
		return sink.CloudEventType
	case c.Format == CloudEvents:
		return sink.CloudEventsType
	}
	return "application/json"
}

func (c Config) validateBody() error {
	switch c.Format {
	case JSON, NDJSON, Array:
	case Form:
		if c.Request == "" {
			return errors.New("format form: the fields are what request makes, which was expected")
		}
	case CloudEvents:
		if c.Request != "" {
			return errors.New("format cloudevents stands beside request, one of them was expected")
		}
	default:
		return fmt.Errorf("format %q: json, ndjson, array, form or cloudevents was expected", c.Format)
	}
	for name, value := range c.Headers {
		switch canonical := http.CanonicalHeaderKey(name); {
		case c.Gzip && canonical == headerEncoding:
			return errors.New("headers: Content-Encoding is gzip's to set")
		case canonical == "Host" && !headerTemplate(value).Fixed():
			return errors.New("headers: Host cannot be made of {topic} and {key}")
		}
	}
	return nil
}

const headerEncoding = "Content-Encoding"

// compressors are used again: a new one takes a megabyte.
var compressors = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil { // the level is one
		panic(err)
	}
	return w
}}

// compressed is gzip of text, as quick as can be: what a network is spared with more
// effort is little, for JSON.
func compressed(text []byte) ([]byte, error) {
	w, _ := compressors.Get().(*gzip.Writer)
	defer compressors.Put(w)
	var into bytes.Buffer
	into.Grow(len(text)/4 + 64)
	w.Reset(&into)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err := w.Close()
	return into.Bytes(), err
}
