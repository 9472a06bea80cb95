package httpsink

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"sync"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// format is what surrounds and separates the events of a body, and how one event is written.
type format struct {
	begin, separator, end string
	appendEvent           func(text []byte, b *buffer.Batch, i int) []byte
}

func (s *Sink) formatOf(b *buffer.Batch) format {
	switch {
	case s.cfg.Format == NDJSON:
		return format{appendEvent: sink.AppendLine}
	case s.cfg.Format == Array:
		return format{"[", ",", "]", sink.AppendEnvelope}
	case s.cfg.Format == CloudEventsBinary:
		return format{appendEvent: func(text []byte, b *buffer.Batch, i int) []byte { return append(text, b.Events[i].Payload...) }}
	case s.cfg.Format == CloudEvents && s.cfg.Single:
		return format{appendEvent: sink.AppendCloudEvent}
	case s.cfg.Format == CloudEvents:
		return format{"[", ",", "]", sink.AppendCloudEvent}
	}
	return defaultFormat(b)
}

// defaultFormat is that of a body without Config.Format, and of the input of Config.Request.
func defaultFormat(b *buffer.Batch) format {
	begin := append([]byte(`{"pipeline":`), sink.AppendJSONString(nil, b.Pipeline)...)
	return format{string(begin) + `,"group_id":"` + b.GroupID.String() + `","events":[`, ",", "]}", sink.AppendEnvelope}
}

// makeBody makes the body of these events without a program. Each body is a new slice: net/http may still
// read it after it has returned the response.
func (f format) makeBody(b *buffer.Batch, indexes []int) []byte {
	size := 128
	for _, i := range indexes {
		e := &b.Events[i]
		size += 160 + len(e.Topic) + len(e.Payload) + len(e.Headers)
	}
	text := append(make([]byte, 0, size), f.begin...)
	for n, i := range indexes {
		if n > 0 {
			text = append(text, f.separator...)
		}
		text = f.appendEvent(text, b, i)
	}
	return append(text, f.end...)
}

// splitBody groups the events, in order, into as few bodies of at most maxBytes as possible. It returns
// the events that exceed maxBytes each alone. The sizes stay the same in other batches, because every
// group_id has the same length.
func (s *Sink) splitBody(b *buffer.Batch, indexes []int) (groups []sink.Group, tooLarge []sink.EventError) {
	f := s.formatOf(b)
	frame, length := len(f.begin)+len(f.end), 0
	var text []byte
	for _, i := range indexes {
		text = f.appendEvent(text[:0], b, i)
		switch {
		case frame+len(text) > s.cfg.MaxBytes:
			tooLarge = append(tooLarge, sink.EventError{Index: i, Err: errTooManyBytes(frame+len(text), s.cfg.MaxBytes)})
			continue
		case len(groups) == 0 || frame+length+len(text) > s.cfg.MaxBytes:
			groups, length = append(groups, sink.Group{}), 0
		}
		group := &groups[len(groups)-1]
		group.Indexes = append(group.Indexes, i)
		length += len(text) + len(f.separator)
	}
	return groups, tooLarge
}

func errTooManyBytes(bytes, maxBytes int) error {
	return sink.Permanent(fmt.Errorf("its body is %d bytes; expected at most %d (max_bytes)", bytes, maxBytes))
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

const (
	headerContentType = "Content-Type"
	headerEncoding    = "Content-Encoding"
)

// compressors are reused because each takes a megabyte.
var compressors = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return w
}}

// compress uses the fastest level: for JSON, more effort saves little.
func compress(text []byte) ([]byte, error) {
	w, _ := compressors.Get().(*gzip.Writer)
	defer compressors.Put(w)
	var compressed bytes.Buffer
	compressed.Grow(len(text)/4 + 64)
	w.Reset(&compressed)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err := w.Close()
	return compressed.Bytes(), err
}
