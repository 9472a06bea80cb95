package httpsink

import (
	"encoding/base64"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// input makes what programs see.
type input struct {
	parser parser
	texts  texts
}

// envelopes are the events as programs see them: what sink.AppendEnvelope makes, read.
// Those that cannot be read are refused, and still are those that were not.
func (in *input) envelopes(b *buffer.Batch, kept []int) (all []any, still []int, refused []sink.EventError) {
	all, still = make([]any, 0, len(kept)), kept[:0]
	in.texts = make(texts, len(kept))
	for _, i := range kept {
		one, err := in.envelope(b, &b.Events[i])
		if err != nil {
			refused = append(refused, sink.EventError{Index: i, Err: sink.Permanent(err)})
			continue
		}
		all, still = append(all, one), append(still, i)
	}
	return all, still, refused
}

// timeFormat is created_at's: UTC, to the microsecond.
const timeFormat = "2006-01-02T15:04:05.000000Z"

func (in *input) envelope(b *buffer.Batch, e *outbox.Event) (map[string]any, error) {
	one := make(map[string]any, 8) // one group of Go's map
	one["id"] = e.Identity()
	one["topic"] = e.Topic
	if e.Key != nil {
		one["key"] = *e.Key
	}
	if sink.IsJSON(e, b.PayloadIsJSON) {
		text := string(e.Payload)
		payload, err := in.parser.parse(text)
		if err != nil {
			return nil, fmt.Errorf("its payload cannot be read: %w", err)
		}
		if object, ok := payload.(map[string]any); ok {
			in.texts[identity(object)] = text
		}
		one["payload"] = payload
	} else {
		one["payload_base64"] = base64.StdEncoding.EncodeToString(e.Payload)
	}
	if e.Headers != nil {
		headers, err := in.parser.parse(string(e.Headers))
		if err != nil {
			return nil, fmt.Errorf("its headers cannot be read: %w", err)
		}
		one["headers"] = headers
	}
	one["created_at"] = e.CreatedAt.UTC().Format(timeFormat)
	if e.DeadLetter != nil {
		why, err := in.parser.parse(string(sink.AppendDeadLetter(nil, e.DeadLetter)))
		if err != nil {
			return nil, err
		}
		one["dead_letter"] = why
	}
	return one, nil
}
