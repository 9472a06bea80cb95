package sink_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// readCloudEvents reads a request's body of CloudEvents with their own Go SDK.
func readCloudEvents(t *testing.T, contentType string, body []byte) []event.Event {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	var events []event.Event
	if contentType == sink.CloudEventsType {
		events, err = cehttp.NewEventsFromHTTPRequest(r)
	} else {
		var one *event.Event
		if one, err = cehttp.NewEventFromHTTPRequest(r); err == nil {
			events = append(events, *one)
		}
	}
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for _, e := range events {
		if err := e.Validate(); err != nil {
			t.Errorf("%v in %s", err, body)
		}
	}
	return events
}

func TestCloudEvent_ReadByTheSDK(t *testing.T) {
	t.Parallel()
	groupID := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	dead := &buffer.DeadLetter{Pipeline: "orders", GroupID: groupID, Attempts: 3, Error: "no \"such\"\ncustomer\u0085", DiedAt: createdAt}
	b := &buffer.Batch{Pipeline: "orders", Events: []outbox.Event{
		{ID: 17, Topic: "orders.created", Key: ptr("customer-7"), Payload: []byte(`{"b": 1, "a": [1.0]}`), CreatedAt: createdAt, Headers: outbox.NewHeaders(map[string]string{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "TraceState": "a=b", "tracestate": "c=d", "Tenant": "7",
			"x-request-id": "left out", "ID": "reserved", "data_base64": "reserved", "deadletter": "ours", "content-type": "application/vnd.shop+json",
		})},
		{ID: 18, Topic: "ördér \"1\"", Key: ptr(""), Payload: []byte("\x00\xff"), CreatedAt: createdAt, Headers: outbox.Headers(`{"Content-Type": "application/protobuf"}`)},
		{UUID: groupID, Topic: "t", Payload: []byte(`"text"`), CreatedAt: createdAt, Headers: outbox.Headers(`{"content-type": "text/plain"}`)},
		{ID: 19, Topic: "t", Payload: []byte{}, CreatedAt: createdAt, Headers: outbox.Headers(`{"content-type": "; no media type"}`)},
	}, DeadLetters: []*buffer.DeadLetter{nil, nil, dead, nil}}
	batch := []byte{'['}
	for i := range b.Events {
		if err := checkCloudEvent(&b.Events[i]); err != nil {
			t.Errorf("event %d: %v", i, err)
		}
		alone := sink.AppendCloudEvent(nil, b, i)
		if n := len(readCloudEvents(t, sink.CloudEventType, alone)); n != 1 {
			t.Errorf("event %d is %d events alone", i, n)
		}
		batch = append(append(batch, alone...), ",]"[i/(len(b.Events)-1)])
	}
	got := readCloudEvents(t, sink.CloudEventsType, batch)
	if len(got) != len(b.Events) {
		t.Fatalf("%d events, want %d", len(got), len(b.Events))
	}
	none := map[string]any{}
	for i, want := range []struct {
		id, kind, subject, contentType string
		extensions                     map[string]any
	}{
		{"17", "orders.created", "customer-7", "application/json", map[string]any{
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "c=d", "tenant": "7",
		}},
		{"18", "ördér \"1\"", "", "application/protobuf", none},
		{groupID.String() + ":dead:" + groupID.String(), "t", "", "application/json", map[string]any{
			"deadletter": strings.ReplaceAll(string(sink.AppendDeadLetter(nil, dead)), "\u0085", "\uFFFD"),
		}},
		{"19", "t", "", "application/octet-stream", none},
	} {
		e := got[i]
		if e.ID() != want.id || e.Type() != want.kind || e.Subject() != want.subject || e.DataContentType() != want.contentType ||
			e.Source() != "/relay/orders" || e.SpecVersion() != "1.0" || !e.Time().Equal(createdAt.Truncate(time.Microsecond)) {
			t.Errorf("event %d is %v", i, e)
		}
		extensions := e.Extensions()
		if extensions == nil {
			extensions = none
		}
		if diff := cmp.Diff(want.extensions, extensions); diff != "" {
			t.Errorf("event %d: extensions:\n%s", i, diff)
		}
		if !bytes.Equal(e.Data(), b.Events[i].Payload) {
			t.Errorf("event %d: data is %q, want %q", i, e.Data(), b.Events[i].Payload)
		}
	}
}

func TestCloudEvent_InvalidEvent(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]outbox.Event{
		"empty":             {Payload: []byte(`1`)},
		"type":              {Topic: "a\nb", Payload: []byte(`1`)},
		"subject":           {Topic: "t", Key: ptr("a\x7f"), Payload: []byte(`1`)},
		"tenant":            {Topic: "t", Payload: []byte(`1`), Headers: outbox.Headers(`{"tenant": "\ufdd0"}`)},
		"Unicode":           {Topic: "t", Key: ptr("\xff"), Payload: []byte(`1`)},
		"object of strings": {Topic: "t", Payload: []byte(`1`), Headers: outbox.Headers(`{"a": 1}`)},
	} {
		if err := checkCloudEvent(&e); !errors.Is(err, sink.ErrPermanent) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want a permanent rejection that names it", name, err)
		}
		if text := sink.AppendCloudEvent(nil, &buffer.Batch{Events: []outbox.Event{e}}, 0); !json.Valid(text) {
			t.Errorf("%s: %s is not JSON and would make a batch invalid", name, text)
		}
	}
	for _, e := range []outbox.Event{
		{Topic: "\uFFFD ☃", Payload: []byte(`1`), Headers: outbox.Headers(`{"a-b": "\n"}`)}, // headers that are left out are not checked
		{Topic: "t", Payload: []byte(`1`), Headers: outbox.Headers(`{}`)},
	} {
		if err := checkCloudEvent(&e); err != nil {
			t.Errorf("%v: %v", e, err)
		}
	}
}

func checkCloudEvent(e *outbox.Event) error {
	_, err := sink.CloudEventAttributes(&buffer.Batch{Events: []outbox.Event{*e}}, 0)
	return err
}
