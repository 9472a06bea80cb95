package httpsink_test

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// recordBodies starts a server that records the content types and bodies of its requests.
func recordBodies(t *testing.T) (url string, bodies *[]string) {
	t.Helper()
	bodies = new([]string)
	url = serve(t, func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*bodies = append(*bodies, r.Header.Get("Content-Type")+" "+string(text))
	})
	return url, bodies
}

const envelope1 = `{"created_at":"2026-01-02T03:04:05.123456Z","id":"1","payload":{"f":1.10,"n":12345678901234567890},"topic":"a"}`

// numbered has two events with numbers that a float cannot hold, and a third that is not JSON.
func numbered() *buffer.Batch {
	b := batch("a", "b", "c")
	b.PayloadIsJSON = false
	for i, payload := range []string{"{\"n\":12345678901234567890,\n\"f\":1.10}", `[1e400, "<\u00e9>"]`, "\x00{"} {
		b.Events[i].Payload = []byte(payload)
	}
	key := "k"
	b.Events[1].Key, b.Events[1].Headers = &key, outbox.Headers(`{"h":"v"}`)
	return b
}

func TestRequestProgram_Body(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config httpsink.Config
		want   string
	}{
		"whole": {
			httpsink.Config{Request: "del(.events[1:])"},
			`application/json {"events":[` + envelope1 + `],"group_id":"` + groupID.String() + `","pipeline":"orders"}`,
		},
		"fields": {
			httpsink.Config{Request: `[.events[] | [.id, .topic, .key, .headers.h, .created_at, .payload_base64]]`},
			`application/json [["1","a",null,null,"2026-01-02T03:04:05.123456Z",null],["2","b","k","v","2026-01-02T03:04:05.123456Z",null],` +
				`["3","c",null,null,"2026-01-02T03:04:05.123456Z","AHs="]]`,
		},
		"digits": {
			httpsink.Config{Request: `.events[0].payload.n as $n | {n: $n, same: ($n == 12345678901234567890), more: ($n + 1), f: .events[0].payload.f, e: .events[1].payload}`},
			`application/json {"e":[1e400,"<é>"],"f":1.10,"more":12345678901234567891,"n":12345678901234567890,"same":true}`,
		},
		"array":  {httpsink.Config{Format: "array", Request: `[.events[].id | tonumber]`}, `application/json [1,2,3]`},
		"scalar": {httpsink.Config{Request: `.events | length`}, `application/json 3`},
		"string": {httpsink.Config{Request: `.events | map(.id) | join("\n") + "\u00e9"`}, "application/json 1\n2\n3é"},
		"empty":  {httpsink.Config{Request: `""`}, "application/json "},
		"lines": {
			httpsink.Config{Format: "ndjson", Request: `[.events[:2][] | {index: {_id: .id}}, .payload, "x"]`},
			"application/x-ndjson {\"index\":{\"_id\":\"1\"}}\n{\"f\":1.10,\"n\":12345678901234567890}\n\"x\"\n{\"index\":{\"_id\":\"2\"}}\n[1e400,\"<é>\"]\n\"x\"\n",
		},
		"one line": {httpsink.Config{Format: "ndjson", Request: `{n: (.events | length)}`}, "application/x-ndjson {\"n\":3}\n"},
		"a string of lines": {
			httpsink.Config{Format: "ndjson", Request: `[.events[] | {id} | tojson + "\n"] | add`},
			"application/x-ndjson {\"id\":\"1\"}\n{\"id\":\"2\"}\n{\"id\":\"3\"}\n",
		},
		"form": {
			httpsink.Config{Format: "form", Request: `{amount: 5, metadata: {"event id": .events[0].id}, items: [.events[:2][] | {price: .topic}]}`},
			"application/x-www-form-urlencoded amount=5&items[0][price]=a&items[1][price]=b&metadata[event+id]=1",
		},
		"a string of fields": {httpsink.Config{Format: "form", Request: `"a=\(.events[0].id | @uri)"`}, "application/x-www-form-urlencoded a=1"},
		"a payload changed":  {httpsink.Config{Request: `.events[0].payload | .f = 2, . | select(.f == 2)`}, `application/json {"f":2,"n":12345678901234567890}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, bodies := recordBodies(t)
			c.config.URL = url
			testkit.NoError(t, open(t, c.config).Send(testContext(t), numbered()))
			if diff := cmp.Diff([]string{c.want}, *bodies); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRequestProgram_Failures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ format, program, want string }{
		"error":         {"", `error("no \(.events[0].topic)")`, `request: error: no a`},
		"wrong shape":   {"", `.events.x`, `request: expected an object but got: array`},
		"null":          {"", `[.nothing[]]`, `request: cannot iterate over: null`},
		"none":          {"", `empty`, `request: the program made no result`},
		"several":       {"", `.events[]`, `request: the program made more than one result; expected one`},
		"then an error": {"", `1, error("late")`, `request: error: late`},
		"halted":        {"", `halt`, `request: halt`},
		"not fields":    {"form", `[.events[].id]`, `request: the program makes an array; expected an object`},
		"no number":     {"form", `3`, `the program makes a number`},
		"endless":       {"", `def f: 1 + f; f`, `request: the program `},
		"larger":        {"", `"0123456789" * 1000 | reduce range(20) as $i (.; [., .])`, `request: the result is larger than 64 MiB`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, bodies := recordBodies(t)
			err := open(t, httpsink.Config{URL: url, Format: c.format, Request: c.program}).Send(testContext(t), numbered())
			expectMaybePoison(t, err, true)
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "nothing was sent") || len(err.Error()) > 400 {
				t.Errorf("got %v, want one that says %q", err, c.want)
			}
			if len(*bodies) > 0 {
				t.Errorf("sent: %q", *bodies)
			}
		})
	}
}

func TestRequestProgram_UnreadablePayload(t *testing.T) {
	t.Parallel()
	url, bodies := recordBodies(t)
	b := batch("a", "a", "a")
	b.Events[0].Payload = []byte("{")
	b.Events[2].Payload = []byte(strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000))
	expectRejected(t, sendSplit(t, open(t, httpsink.Config{URL: url, Request: "[.events[].id]"}), b), 0, 2)
	if diff := cmp.Diff([]string{`application/json ["2"]`}, *bodies); diff != "" {
		t.Error(diff)
	}
}

// TestRequestProgram_MaxBytes expects halves, and one large event to be rejected alone.
func TestRequestProgram_MaxBytes(t *testing.T) {
	t.Parallel()
	url, bodies := recordBodies(t)
	s := open(t, httpsink.Config{URL: url, Request: `[.events[].payload]`, MaxBytes: 10})
	b := batch("a", "a", "a", "a", "a")
	for i, payload := range []string{"1", "22", "333", `"too long"`, "55555555"} {
		b.Events[i].Payload = []byte(payload)
	}
	b.Events[1].Headers = outbox.Headers("{") // rejected
	var split *sink.SplitError
	if err := s.Send(testContext(t), b); !errors.As(err, &split) || !split.TooLarge {
		t.Fatalf("got %v, want a *sink.SplitError for its size", err)
	}
	if diff := cmp.Diff([]sink.Group{{Indexes: []int{0, 2}}, {Indexes: []int{3, 4}}, {Indexes: []int{1}, Err: sink.ErrPermanent}}, split.Groups, isError); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	alone := *b
	alone.Events = b.Events[3:4]
	err := s.Send(testContext(t), &alone)
	expectRejected(t, err, 0)
	if !strings.Contains(err.Error(), "its body is 12 bytes; expected at most 10 (max_bytes)") {
		t.Errorf("got %v", err)
	}
	if len(*bodies) > 0 {
		t.Errorf("sent: %q", *bodies)
	}
	alone.Events = b.Events[4:]
	testkit.NoError(t, s.Send(testContext(t), &alone)) // exactly max_bytes
}

func TestBody_Formats(t *testing.T) {
	t.Parallel()
	b := batch("a", "b")
	var envelopes, events []string
	for i := range b.Events {
		envelopes = append(envelopes, string(sink.AppendEnvelope(nil, b, i)))
		events = append(events, string(sink.AppendCloudEvent(nil, b, i)))
	}
	for name, c := range map[string]struct {
		config httpsink.Config
		want   string
	}{
		"array":       {httpsink.Config{Format: "array"}, "application/json [" + strings.Join(envelopes, ",") + "]"},
		"cloudevents": {httpsink.Config{Format: "cloudevents"}, sink.CloudEventsType + " [" + strings.Join(events, ",") + "]"},
	} {
		url, bodies := recordBodies(t)
		c.config.URL = url
		testkit.NoError(t, open(t, c.config).Send(testContext(t), b))
		if diff := cmp.Diff([]string{c.want}, *bodies); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		c.config.MaxBytes = len(c.want) - 1 - strings.Index(c.want, " [")
		testkit.NoError(t, open(t, c.config).Send(testContext(t), b))
		c.config.MaxBytes--
		if err := open(t, c.config).Send(testContext(t), b); !errors.As(err, new(*sink.SplitError)) {
			t.Errorf("%s, a byte less: %v", name, err)
		}
	}
	url, bodies := recordBodies(t)
	s := open(t, httpsink.Config{URL: url, Format: "cloudevents", Single: true})
	var split *sink.SplitError
	if err := s.Send(testContext(t), b); !errors.As(err, &split) || split.TooLarge || len(split.Groups) != 2 {
		t.Errorf("two events, structured: %v", err)
	}
	one := *b
	one.Events = b.Events[:1]
	testkit.NoError(t, s.Send(testContext(t), &one))
	if diff := cmp.Diff([]string{sink.CloudEventType + " " + events[0]}, *bodies); diff != "" {
		t.Error(diff)
	}
	one.Events = []outbox.Event{{ID: 1, Payload: []byte("1")}} // a type is never empty
	expectRejected(t, s.Send(testContext(t), &one), 0)
}

// TestBody_Gzip expects max_bytes to count before compression.
func TestBody_Gzip(t *testing.T) {
	t.Parallel()
	b := batch("a", "a")
	plain, want := recordBodies(t)
	testkit.NoError(t, open(t, httpsink.Config{URL: plain}).Send(testContext(t), b))
	var requests atomic.Int64
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if got := r.Header.Get("Content-Encoding"); got != "gzip" {
			t.Errorf("Content-Encoding is %q", got)
		}
		compressed, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		text, err := io.ReadAll(compressed)
		if err != nil || r.Header.Get("Content-Type")+" "+string(text) != (*want)[0] {
			t.Errorf("%v: got %q", err, text)
		}
	})
	length := len((*want)[0]) - len("application/json ")
	s := open(t, httpsink.Config{URL: url, Gzip: true, MaxBytes: length})
	for range 3 { // the compressor is used again
		testkit.NoError(t, s.Send(testContext(t), b))
	}
	if err := open(t, httpsink.Config{URL: url, Gzip: true, MaxBytes: length - 1}).Send(testContext(t), b); !errors.As(err, new(*sink.SplitError)) {
		t.Errorf("got %v, want a split", err)
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests were made, want 3", n)
	}
}
