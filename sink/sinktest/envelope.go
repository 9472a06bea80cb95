package sinktest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// ParseEnvelope parses the JSON envelope of lists, files and HTTP requests. Payload and headers
// keep their text.
func ParseEnvelope(t testing.TB, text []byte) Arrival {
	t.Helper()
	var e struct {
		ID        string          `json:"id"`
		Topic     string          `json:"topic"`
		Key       *string         `json:"key"`
		Payload   json.RawMessage `json:"payload"`
		Base64    *string         `json:"payload_base64"`
		Headers   json.RawMessage `json:"headers"`
		CreatedAt string          `json:"created_at"`
		Dead      json.RawMessage `json:"dead_letter"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		t.Fatalf("envelope %q: %v", text, err)
	}
	created, err := time.Parse("2006-01-02T15:04:05.000000Z", e.CreatedAt)
	if err != nil {
		t.Fatalf("envelope %q: created_at: %v", text, err)
	}
	payload := []byte(e.Payload)
	if e.Base64 != nil {
		if e.Payload != nil {
			t.Fatalf("envelope %q has payload and payload_base64", text)
		}
		if payload, err = base64.StdEncoding.DecodeString(*e.Base64); err != nil {
			t.Fatalf("envelope %q: payload_base64: %v", text, err)
		}
	}
	return Arrival{
		ID: e.ID, Topic: e.Topic, Key: e.Key, Payload: payload,
		Headers: outbox.Headers(e.Headers), CreatedAt: created, DeadLetter: string(e.Dead),
	}
}
