package httpsink_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

// received is a request as the SDK of CloudEvents reads it.
type received struct {
	event  event.Event
	header http.Header
	body   []byte
}

func receiver(t *testing.T) (url string, got chan received) {
	t.Helper()
	got = make(chan received, 10)
	return serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		testkit.NoError(t, err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		e, err := cehttp.NewEventFromHTTPRequest(r)
		if err != nil {
			t.Errorf("%v: %v", err, r.Header)
			return
		}
		if err := e.Validate(); err != nil {
			t.Errorf("%v: %v", err, r.Header)
		}
		got <- received{*e, r.Header, body}
	}), got
}

// The SDK of CloudEvents reads one event from each request: the attributes from the headers, the payload from the body.
func TestBinary_ReadByTheSDK(t *testing.T) {
	t.Parallel()
	url, got := receiver(t)
	s := open(t, httpsink.Config{URL: url, Format: httpsink.CloudEventsBinary, Headers: map[string]string{"X-Tenant": "{key}"}})
	all := batch("orders.created", "ördér \"1\" 100%", "bytes")
	all.PayloadIsJSON = false
	all.Events[0].Key, all.Events[0].Payload = new("customer 7"), []byte(`{"b": 1,  "a": [1.0]}`)
	all.Events[0].Headers = outbox.Headers(`{"traceparent": "00-1-2-01", "x-request-id": "left out"}`)
	all.Events[1].Key, all.Events[1].Payload = new("größe"), []byte(`"text"`)
	all.Events[2].Key, all.Events[2].Payload, all.Events[2].Headers = new("k"), []byte("\x00\xff"), outbox.Headers(`{"content-type": "application/protobuf"}`)

	var split *sink.SplitError
	if err := s.Send(testContext(t), all); !errors.As(err, &split) || split.TooLarge || len(split.Groups) != 3 {
		t.Fatalf("a batch of three: %v; want it split", err)
	}
	for i, contentType := range []string{"application/json", "application/json", "application/protobuf"} {
		one := all.Part([]int{i})
		e := &one.Events[0]
		testkit.NoError(t, s.Send(testContext(t), one))
		r := <-got
		if r.event.ID() != e.Identity() || r.event.Source() != "/relay/"+all.Pipeline || r.event.SpecVersion() != "1.0" ||
			!r.event.Time().Equal(e.CreatedAt) || r.event.DataContentType() != contentType {
			t.Errorf("event %d is %v", i, r.event)
		}
		for name, want := range map[string]string{"Ce-Type": e.Topic, "Ce-Subject": *e.Key} {
			if value := r.header.Get(name); value != sink.CloudEventHeader(want) {
				t.Errorf("event %d: %s is %q", i, name, value)
			}
		}
		if !bytes.Equal(r.body, e.Payload) {
			t.Errorf("event %d: the body is %q, want %q", i, r.body, e.Payload)
		}
		if id := r.header.Get("Idempotency-Key"); id != one.GroupID.String() {
			t.Errorf("event %d: Idempotency-Key is %q", i, id)
		}
		if r.header.Get("X-Tenant") == "" || r.header.Get("Ce-Datacontenttype") != "" {
			t.Errorf("event %d: headers are %v", i, r.header)
		}
		if i == 0 && (r.event.Extensions()["traceparent"] != "00-1-2-01" || len(r.event.Extensions()) != 1) {
			t.Errorf("extensions are %v", r.event.Extensions())
		}
	}
	none := all.Part([]int{0})
	none.Events[0].Topic = "" // a type is never empty
	expectRejected(t, s.Send(testContext(t), none), 0)
}

// The reason of a dead letter is an extension, cut if it would make the header too long for servers.
func TestBinary_DeadLetter(t *testing.T) {
	t.Parallel()
	url, got := receiver(t)
	s := open(t, httpsink.Config{URL: url, Format: httpsink.CloudEventsBinary})
	for name, text := range map[string]string{"short": `no "such" customer`, "long": strings.Repeat(`"größe" `, 500)} {
		b := batch("a")
		d := &buffer.DeadLetter{Pipeline: b.Pipeline, GroupID: groupID, Attempts: 3, Error: text, DiedAt: b.Events[0].CreatedAt}
		b.DeadLetters = []*buffer.DeadLetter{d}
		testkit.NoError(t, s.Send(testContext(t), b))
		r := <-got
		if want := b.Events[0].Identity() + ":dead:" + groupID.String(); r.event.ID() != want {
			t.Errorf("%s: id is %q, want %q", name, r.event.ID(), want)
		}
		value := r.header.Get("Ce-Deadletter")
		whole := sink.CloudEventHeader(string(sink.AppendDeadLetter(nil, d)))
		if len(value) > 4096 || name == "short" && value != whole || !strings.HasPrefix(value, whole[:150]) || !strings.HasSuffix(value, whole[len(whole)-30:]) {
			t.Errorf("%s: the reason is %q of %d bytes", name, value, len(value))
		}
	}
}

// A preview shows the attributes, and masks headers that may be secret.
func TestBinary_Preview(t *testing.T) {
	t.Parallel()
	s := open(t, httpsink.Config{URL: "http://localhost:1/", Format: httpsink.CloudEventsBinary, Headers: map[string]string{"ce-secret": "s3cret"}})
	messages, err := s.Preview(testContext(t), batch("orders.created"))
	testkit.NoError(t, err)
	shown := map[string]string{}
	for _, f := range messages[0].Header {
		shown[f.Name] = f.Value
	}
	if shown["Ce-Type"] != "orders.created" || shown["Ce-Secret"] != "***" || shown["Content-Type"] != "application/json" {
		t.Errorf("headers are %v", shown)
	}
}
