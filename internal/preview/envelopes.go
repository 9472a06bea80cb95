package preview

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// envelope is an event as a sink gets it.
type envelope struct {
	ID            json.RawMessage `json:"id"`
	Topic         string          `json:"topic"`
	Key           *string         `json:"key"`
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 []byte          `json:"payload_base64"`
	Headers       json.RawMessage `json:"headers"`
	CreatedAt     time.Time       `json:"created_at"`
}

func (e *envelope) event() (event outbox.Event, err error) {
	event = outbox.Event{Topic: e.Topic, Key: e.Key, Payload: e.Payload, CreatedAt: e.CreatedAt}
	if e.PayloadBase64 != nil {
		event.Payload = e.PayloadBase64
	}
	if len(e.Headers) > 0 && string(e.Headers) != "null" {
		event.Headers = outbox.Headers(e.Headers)
	}
	id := strings.Trim(string(e.ID), `"`)
	if event.ID, err = strconv.ParseInt(id, 10, 64); err == nil {
		return event, nil
	}
	if event.UUID, err = uuid.Parse(id); err == nil {
		return event, nil
	}
	return event, fmt.Errorf("an event's id is %q; expected a number or a uuid", id)
}

// ParseEvents reads the events of a request's body, of an array, or of one envelope after the other.
func ParseEvents(text []byte) (events []outbox.Event, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		var value json.RawMessage
		if err := dec.Decode(&value); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		var all []envelope
		var body struct {
			Events *[]envelope `json:"events"`
		}
		switch {
		case value[0] == '[':
			err = json.Unmarshal(value, &all)
		case json.Unmarshal(value, &body) == nil && body.Events != nil:
			all = *body.Events
		default:
			all = make([]envelope, 1)
			err = json.Unmarshal(value, &all[0])
		}
		if err != nil {
			return nil, err
		}
		for i := range all {
			event, err := all[i].event()
			if err != nil {
				return nil, err
			}
			events = append(events, event)
		}
	}
	if len(events) == 0 {
		return nil, errors.New(`it has no events; expected {"events": [...]}, or one envelope a line`)
	}
	if len(events) > MaxEvents {
		return nil, fmt.Errorf("it has %d events; expected at most %d", len(events), MaxEvents)
	}
	return events, nil
}
