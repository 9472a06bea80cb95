package preview

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
)

// ParseHeaders returns headers as they were written, on one line; nil for an empty text or null. Its error says what is expected.
func ParseHeaders(text []byte) (outbox.Headers, error) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	var one bytes.Buffer
	if err := json.Compact(&one, text); err != nil {
		return nil, fmt.Errorf("the headers are not JSON: %w; expected an object of strings, like {\"name\": \"value\"}", err)
	}
	event := outbox.Event{Topic: "t", Payload: []byte("1"), Headers: one.Bytes()}
	if err := event.Validate(true); err != nil {
		return nil, fmt.Errorf("%w; expected an object of strings, like {\"name\": \"value\"}", err)
	}
	return event.Headers, nil
}
