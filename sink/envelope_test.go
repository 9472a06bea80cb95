package sink_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

func ptr(s string) *string { return &s }

var createdAt = time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC)

func TestAppendEnvelope(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event   outbox.Event
		vouched bool // Batch.PayloadIsJSON
		want    string
	}{
		"all fields": {
			outbox.Event{
				ID: 17, Topic: "orders", Key: ptr("customer-7"), Payload: []byte(`{"a": 1}`),
				Headers: outbox.Headers(`{"h": "v"}`), CreatedAt: createdAt,
			},
			true,
			`{"id":"17","topic":"orders","key":"customer-7","payload":{"a": 1},"headers":{"h": "v"},"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"NULLs are absent": {
			outbox.Event{ID: 1, Topic: "t", Payload: []byte(`1`), CreatedAt: createdAt},
			true,
			`{"id":"1","topic":"t","payload":1,"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"empty is not NULL": {
			outbox.Event{ID: 1, Topic: "", Key: ptr(""), Payload: []byte(`""`), Headers: outbox.Headers(`{}`), CreatedAt: createdAt},
			true,
			`{"id":"1","topic":"","key":"","payload":"","headers":{},"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"the largest and the smallest id": {
			outbox.Event{ID: -1 << 63, Topic: strconv.Itoa(1<<63 - 1), Payload: []byte(`0`), CreatedAt: createdAt},
			true,
			`{"id":"-9223372036854775808","topic":"9223372036854775807","payload":0,"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"quotes, line breaks, control characters, beyond ASCII": {
			outbox.Event{ID: 1, Topic: "\"\\/\b\f\n\r\t\x00\x1f\x7f", Key: ptr("é☃𝄞<&>\u2028"), Payload: []byte(`0`), CreatedAt: createdAt},
			true,
			`{"id":"1","topic":"\"\\/\b\f\n\r\t\u0000\u001f` + "\x7f" + `","key":"é☃𝄞<&>` + "\u2028" +
				`","payload":0,"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"what is not UTF-8 is replaced": {
			outbox.Event{ID: 1, Topic: "a\xffb\xe2\x98", Payload: []byte(`0`), CreatedAt: createdAt},
			true,
			`{"id":"1","topic":"a` + "\uFFFDb\uFFFD\uFFFD" + `","payload":0,"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"another time zone, no fraction": {
			outbox.Event{ID: 1, Topic: "t", Payload: []byte(`0`), CreatedAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", 5*3600+2700))},
			true,
			`{"id":"1","topic":"t","payload":0,"created_at":"2025-12-31T18:15:00.000000Z"}`,
		},
		"opaque bytes that are JSON": {
			outbox.Event{ID: 1, Topic: "t", Payload: []byte(`{"a":1}`), CreatedAt: createdAt},
			false,
			`{"id":"1","topic":"t","payload":{"a":1},"created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"opaque bytes that are not": {
			outbox.Event{ID: 1, Topic: "t", Payload: []byte("\x00\xff{"), CreatedAt: createdAt},
			false,
			`{"id":"1","topic":"t","payload_base64":"AP97","created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"JSON in all but its UTF-8": {
			outbox.Event{ID: 1, Topic: "t", Payload: []byte("\"\xff\""), CreatedAt: createdAt},
			false,
			`{"id":"1","topic":"t","payload_base64":"Iv8i","created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
		"a dead letter": {
			outbox.Event{ID: 17, Topic: "t", Payload: []byte(`0`), Headers: outbox.Headers(`{}`), CreatedAt: createdAt},
			true,
			`{"id":"17","topic":"t","payload":0,"headers":{},"created_at":"2026-01-02T03:04:05.123456Z","dead_letter":{"pipeline":"orders",` +
				`"group_id":"01890a5d-ac96-774b-bcce-b302099a8057","attempts":10,"error":"422: \"no` + "\uFFFD" + `\"\r\n\u0000</a>",` +
				`"died_at":"2026-02-03T05:05:06.000007Z"}}`,
		},
		"no bytes": {
			outbox.Event{ID: 1, Topic: "t", Payload: []byte{}, CreatedAt: createdAt},
			false,
			`{"id":"1","topic":"t","payload_base64":"","created_at":"2026-01-02T03:04:05.123456Z"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &buffer.Batch{Events: []outbox.Event{c.event}, PayloadIsJSON: c.vouched}
			if name == "a dead letter" {
				b.DeadLetters = []*buffer.DeadLetter{{
					Pipeline: "orders", GroupID: uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057"), Attempts: 10,
					Error: "422: \"no\xff\"\r\n\x00</a>", DiedAt: time.Date(2026, 2, 3, 6, 5, 6, 7000, time.FixedZone("", 3600)),
				}}
			}
			got := sink.AppendEnvelope([]byte("before "), b, 0)
			if string(got) != "before "+c.want {
				t.Errorf("got  %s\nwant before %s", got, c.want)
			}
			line := sink.AppendLine([]byte("before\n"), b, 0)
			if string(line) != "before\n"+c.want+"\n" {
				t.Errorf("line: got  %s\nwant %s", line, c.want)
			}
		})
	}
}

func TestAppendLine(t *testing.T) {
	t.Parallel()
	e := outbox.Event{
		ID: 1, Topic: "a\nb", Payload: []byte("{\r\n  \"a\": \"\\n\"\n}"), Headers: outbox.Headers("{\n}"), CreatedAt: createdAt,
	}
	got := sink.AppendLine(nil, &buffer.Batch{Events: []outbox.Event{e}, PayloadIsJSON: true}, 0)
	want := `{"id":"1","topic":"a\nb","payload":{"a":"\n"},"headers":{},"created_at":"2026-01-02T03:04:05.123456Z"}` + "\n"
	if string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	deep := strings.Repeat("[", 20_000) + "\r\n" + strings.Repeat("]", 20_000)
	for payload, want := range map[string]string{
		` { "b" : 1,` + "\t" + `"a":1.0e2 } `:            ` { "b" : 1,` + "\t" + `"a":1.0e2 } `,
		"{ \"b\" : [\n1.0e2 ],\r\"<\u2028\\u0000\":2}\n": "{\"b\":[1.0e2],\"<\u2028\\u0000\":2}",
		deep: strings.ReplaceAll(deep, "\r\n", "  "),
	} {
		one := outbox.Event{Payload: []byte(payload), Headers: outbox.Headers(`{ "c" : "d" }`), CreatedAt: createdAt}
		got := sink.AppendLine(nil, &buffer.Batch{Events: []outbox.Event{one}, PayloadIsJSON: true}, 0)
		if !strings.Contains(string(got), `,"payload":`+want+`,"headers":{ "c" : "d" },`) {
			t.Errorf("payload %.80q: got %.200q", payload, got)
		}
	}
	if string(e.Payload) != "{\r\n  \"a\": \"\\n\"\n}" || string(e.Headers) != "{\n}" {
		t.Errorf("the event was changed: %q %q", e.Payload, e.Headers)
	}
}

func TestCheckHeaders(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		`{}`: true, ` {"a": "b"}`: true, "\n{\"a\":\n\"b\"}\n": true,
		``: false, ` `: false, `null`: false, `[]`: false, `"x"`: false, `{`: false, `{"a":"b"},"id":"9"`: false, "{\"a\":\"\xff\"}": false,
	} {
		err := sink.CheckHeaders(&outbox.Event{Headers: outbox.Headers(text)})
		if good != (err == nil) || !good && !errors.Is(err, sink.ErrPermanent) {
			t.Errorf("CheckHeaders(%q): %v", text, err)
		}
	}
	if err := sink.CheckHeaders(&outbox.Event{}); err != nil {
		t.Errorf("CheckHeaders of NULL: %v", err)
	}
}

// FuzzEnvelope expects the line of any event to be one line and one JSON object
// that says what the event says.
func FuzzEnvelope(f *testing.F) {
	f.Add(int64(17), "orders", "customer-7", true, []byte(`{"a": 1}`), int64(1767323045123456))
	f.Add(int64(-1), "\x00\n\"\\", "\xff☃", true, []byte("\xff"), int64(0))
	f.Add(int64(0), "", "", false, []byte("{\n}"), int64(-1))
	f.Fuzz(func(t *testing.T, id int64, topic, key string, hasKey bool, payload []byte, micros int64) {
		e := outbox.Event{
			ID: id, Topic: topic, Payload: payload,
			Headers:   outbox.NewHeaders(map[string]string{key: topic}),
			CreatedAt: time.UnixMicro(micros % 250_000_000_000_000_000).UTC(),
		}
		if hasKey {
			e.Key = &key
		}
		b := &buffer.Batch{Events: []outbox.Event{e}}
		if hasKey {
			b.DeadLetters = []*buffer.DeadLetter{{Error: topic}}
		}
		line := sink.AppendLine(nil, b, 0)
		if n := bytes.IndexByte(line, '\n'); n != len(line)-1 || bytes.IndexByte(line, '\r') >= 0 {
			t.Fatalf("not one line: %q", line)
		}
		var got struct {
			ID            string          `json:"id"`
			Topic         *string         `json:"topic"`
			Key           *string         `json:"key"`
			Payload       json.RawMessage `json:"payload"`
			PayloadBase64 *string         `json:"payload_base64"`
			Headers       outboxHeaders   `json:"headers"`
			CreatedAt     time.Time       `json:"created_at"`
			DeadLetter    *struct {
				Pipeline string    `json:"pipeline"`
				GroupID  string    `json:"group_id"`
				Attempts int       `json:"attempts"`
				Error    string    `json:"error"`
				DiedAt   time.Time `json:"died_at"`
			} `json:"dead_letter"`
		}
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&got); err != nil || !utf8.Valid(line) {
			t.Fatalf("%v: %q", err, line)
		}
		if got.ID != strconv.FormatInt(id, 10) || got.Topic == nil || *got.Topic != valid(topic) {
			t.Errorf("id or topic: %q", line)
		}
		if (got.DeadLetter != nil) != hasKey || hasKey && got.DeadLetter.Error != valid(topic) {
			t.Errorf("dead letter: %q", line)
		}
		if (got.Key != nil) != hasKey || hasKey && *got.Key != valid(key) {
			t.Errorf("key: %q", line)
		}
		if got.Headers[valid(key)] != valid(topic) {
			t.Errorf("headers: %q", line)
		}
		if (got.CreatedAt.Year() >= 0 && got.CreatedAt.Year() <= 9999) && !got.CreatedAt.Equal(e.CreatedAt) {
			t.Errorf("created_at %v: %q", e.CreatedAt, line)
		}
		switch isJSON := json.Valid(payload) && utf8.Valid(payload); {
		case isJSON && (got.PayloadBase64 != nil || !sameJSON(t, got.Payload, payload)):
			t.Errorf("payload %q: %q", payload, line)
		case !isJSON && (got.Payload != nil || got.PayloadBase64 == nil || *got.PayloadBase64 != base64.StdEncoding.EncodeToString(payload)):
			t.Errorf("payload %q: %q", payload, line)
		}
	})
}

type outboxHeaders map[string]string

// valid is what encoding/json makes of text that is not UTF-8.
func valid(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y bytes.Buffer
	if err := errors.Join(json.Compact(&x, a), json.Compact(&y, b)); err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x.Bytes(), y.Bytes())
}

func BenchmarkAppendEnvelope(b *testing.B) {
	e := outbox.Event{
		ID: 123456789, Topic: "orders.created", Key: ptr("customer-7"), Payload: bytes.Repeat([]byte("7"), 300),
		Headers: outbox.Headers(`{"trace":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`), CreatedAt: createdAt,
	}
	batch := &buffer.Batch{Events: []outbox.Event{e}, PayloadIsJSON: true}
	var dst []byte
	for b.Loop() {
		dst = sink.AppendLine(dst[:0], batch, 0)
	}
}
