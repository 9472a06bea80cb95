package outbox_test

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox"
)

func ptr(s string) *string { return &s }

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		bytes bool // the payload's column is one for bytes
		event outbox.Event
		says  []string // nothing: the event is valid
	}{
		{name: "least JSON", event: outbox.Event{Topic: "t", Payload: []byte("null")}},
		{name: "space around JSON", event: outbox.Event{Topic: "t", Payload: []byte(" {} \n")}},
		{name: "everything", event: outbox.Event{
			Topic: "größe.変更", Key: ptr("k"), Payload: []byte(`{"a": [1, "\u0041"]}`), Headers: outbox.Headers(`{"é": "ü"}`),
		}},
		{name: "empty key is not NULL", event: outbox.Event{Topic: "t", Key: ptr(""), Payload: []byte("1")}},
		{name: "empty headers", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers("{}")}},
		{name: "opaque", bytes: true, event: outbox.Event{Topic: "t", Payload: []byte{0xff, 0}}},
		{name: "opaque and empty", bytes: true, event: outbox.Event{Topic: "t", Payload: []byte{}}},
		{name: "as long as may be", bytes: true, event: outbox.Event{
			Topic: strings.Repeat("t", outbox.MaxTopicBytes), Key: ptr(strings.Repeat("k", outbox.MaxKeyBytes)),
			Payload: make([]byte, outbox.MaxPayloadBytes),
			Headers: outbox.Headers(`{"h": "` + strings.Repeat("x", outbox.MaxHeadersBytes-9) + `"}`),
		}},

		{name: "delayed", event: outbox.Event{Topic: "t", Payload: []byte("1"), AvailableAt: time.Now().Add(9 * 365 * 24 * time.Hour)}},
		{name: "delayed until the past", event: outbox.Event{Topic: "t", Payload: []byte("1"), AvailableAt: time.Unix(0, 0)}},
		{name: "delayed for a thousand years", event: outbox.Event{Topic: "t", Payload: []byte("1"), AvailableAt: time.Now().AddDate(1000, 0, 0)}, says: []string{"available_at is 3", "at most 10 years"}},

		{name: "no topic", event: outbox.Event{Payload: []byte("1")}, says: []string{"topic is empty", "orders.created"}},
		{name: "topic too long", event: outbox.Event{Topic: strings.Repeat("t", outbox.MaxTopicBytes+1), Payload: []byte("1")}, says: []string{"topic is 1025 bytes long"}},
		{name: "topic not UTF-8", event: outbox.Event{Topic: "\xff", Payload: []byte("1")}, says: []string{"topic is not valid UTF-8"}},
		{name: "NUL in the topic", event: outbox.Event{Topic: "a\x00b", Payload: []byte("1")}, says: []string{"topic contains a NUL"}},
		{name: "key too long", event: outbox.Event{Topic: "t", Key: ptr(strings.Repeat("k", outbox.MaxKeyBytes+1)), Payload: []byte("1")}, says: []string{"key is 4097 bytes long"}},
		{name: "key not UTF-8", event: outbox.Event{Topic: "t", Key: ptr("\xc3"), Payload: []byte("1")}, says: []string{"key is not valid UTF-8"}},
		{name: "NUL in the key", event: outbox.Event{Topic: "t", Key: ptr("\x00"), Payload: []byte("1")}, says: []string{"key contains a NUL"}},
		{name: "no payload", event: outbox.Event{Topic: "t"}, says: []string{"payload is empty"}},
		{name: "no opaque payload", bytes: true, event: outbox.Event{Topic: "t"}, says: []string{"payload is nil"}},
		{name: "payload too long", bytes: true, event: outbox.Event{Topic: "t", Payload: make([]byte, outbox.MaxPayloadBytes+1)}, says: []string{"payload is 67108865 bytes long"}},
		{name: "payload cut off", event: outbox.Event{Topic: "t", Payload: []byte(`{"a":`)}, says: []string{"payload is not JSON", "at byte"}},
		{name: "payload wrong in the middle", event: outbox.Event{Topic: "t", Payload: []byte(`{"a": nope}`)}, says: []string{"payload is not JSON", "at byte"}},
		{name: "two payloads", event: outbox.Event{Topic: "t", Payload: []byte(`{} {}`)}, says: []string{"after top-level value"}},
		{name: "payload not UTF-8", event: outbox.Event{Topic: "t", Payload: []byte("\"\xff\"")}, says: []string{"payload is not JSON", "UTF-8"}},
		{name: "headers no JSON", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers("x")}, says: []string{"headers are not a JSON object of strings"}},
		{name: "headers empty", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers{}}, says: []string{"headers are not a JSON object of strings"}},
		{name: "headers null", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers("null")}, says: []string{"headers are not a JSON object of strings"}},
		{name: "headers an array", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers("[]")}, says: []string{"headers are not a JSON object of strings"}},
		{name: "a header that is a number", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers(`{"a": 1}`)}, says: []string{"headers are not a JSON object of strings"}},
		{name: "headers not UTF-8", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: outbox.Headers("{\"a\": \"\xff\"}")}, says: []string{"headers are not valid UTF-8"}},
		{name: "headers too long", event: outbox.Event{Topic: "t", Payload: []byte("1"), Headers: make(outbox.Headers, outbox.MaxHeadersBytes+1)}, says: []string{"headers are 65537 bytes long"}},
		{
			name: "every mistake at once", event: outbox.Event{Key: ptr("\xff"), Payload: []byte("{"), Headers: outbox.Headers("[]")},
			says: []string{"topic is empty", "key is not valid", "payload is not JSON", "headers are not"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := c.event.Validate(!c.bytes)
			if len(c.says) == 0 {
				if err != nil {
					t.Fatalf("a valid event is refused: %v", err)
				}
				return
			}
			if !errors.Is(err, outbox.ErrInvalidEvent) {
				t.Fatalf("got error %v, want one that is %q", err, outbox.ErrInvalidEvent)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

// FuzzValidate: a database and a sink can take every valid event.
func FuzzValidate(f *testing.F) {
	f.Add("t", "k", []byte(`{}`), []byte(`{"a": "b"}`), true)
	f.Add("", "\x00", []byte(`{"a":`), []byte(`[]`), true)
	f.Add("t", "\xff", []byte("\xff\x00"), []byte(nil), false)
	f.Add("t", "", []byte("1 2"), []byte(`{"a": "\ud800"}`), true)
	f.Fuzz(func(t *testing.T, topic, key string, payload, headers []byte, isJSON bool) {
		e := outbox.Event{Topic: topic, Key: &key, Payload: payload, Headers: headers}
		if err := e.Validate(isJSON); err != nil {
			if !errors.Is(err, outbox.ErrInvalidEvent) || !utf8.ValidString(err.Error()) {
				t.Fatalf("the error is not fit to be shown: %q", err)
			}
			return
		}
		for name, text := range map[string]string{"topic": topic, "key": key} {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				t.Errorf("%s %q was let through", name, text)
			}
		}
		if topic == "" {
			t.Error("an empty topic was let through")
		}
		if isJSON && (!json.Valid(payload) || !utf8.Valid(payload)) {
			t.Errorf("payload %q was let through", payload)
		}
		if headers != nil && !utf8.Valid(headers) {
			t.Errorf("headers %q were let through", headers)
		}
		if _, err := e.Headers.Map(); err != nil {
			t.Errorf("headers %q were let through: %v", headers, err)
		}
	})
}

// TestHeadersComeBack: what goes into NewHeaders comes out of Map, and passes
// Validate.
func TestHeadersComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "headers")
		headers := outbox.NewHeaders(want)
		got, err := headers.Map()
		if err != nil || !maps.Equal(got, want) {
			t.Fatalf("%v became %s and %v, %v", want, headers, got, err)
		}
		e := outbox.Event{Topic: "t", Payload: []byte("1"), Headers: headers}
		if err := e.Validate(true); err != nil {
			t.Fatalf("headers %s are refused: %v", headers, err)
		}
		if again := outbox.NewHeaders(got); string(again) != string(headers) {
			t.Fatalf("the same headers are written in two ways: %s and %s", headers, again)
		}
	})
}

func TestHeaders_Nil(t *testing.T) {
	t.Parallel()
	if h := outbox.NewHeaders(nil); h != nil {
		t.Errorf("no headers became %s, want NULL", h)
	}
	if m, err := outbox.Headers(nil).Map(); m != nil || err != nil {
		t.Errorf("NULL headers became %v, %v", m, err)
	}
	if h := outbox.NewHeaders(map[string]string{}); string(h) != "{}" {
		t.Errorf("empty headers became %s, want {}", h)
	}
}
