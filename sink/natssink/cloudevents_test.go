package natssink_test

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
)

// readCloudEvent reads a message in binary mode with the setters of CloudEvents' Go SDK, as
// the NATS Protocol Binding specifies.
func readCloudEvent(t *testing.T, h nats.Header, data []byte) event.Event {
	t.Helper()
	version := spec.WithPrefix("ce-").Version(h.Get("ce-specversion"))
	if version == nil {
		t.Fatalf("no version in %v", h)
	}
	attributes := version.NewContext()
	for name, values := range h {
		if !strings.HasPrefix(name, version.Prefix()) {
			continue
		}
		value, err := url.PathUnescape(values[0])
		testkit.NoError(t, err)
		testkit.NoError(t, version.SetAttribute(attributes.(event.EventContextWriter), name, value))
	}
	e := event.Event{Context: attributes, DataEncoded: data}
	testkit.NoError(t, e.Validate())
	return e
}

func TestCloudEvents(t *testing.T) {
	singlyAndFast(t, func(t *testing.T, fast bool) {
		o := newFixture(t, jetstream.StreamConfig{AllowBatchPublish: fast})
		s := open(t, natssink.Config{URL: o.url, Format: "cloudevents"})
		sub, err := o.client.SubscribeSync("orders.>")
		testkit.NoError(t, err)
		testkit.NoError(t, o.client.Flush())
		b := batch("orders.a", "orders.b", "orders.c", "orders.d", "orders.e")
		b.PayloadIsJSON = false
		b.Events[0].Key = new("Zoë \"7\" 100%")
		b.Events[1].Payload = []byte("\x00\xff")
		b.Events[1].Headers = outbox.NewHeaders(map[string]string{
			"traceparent": "00-1", "Content-Type": "text/plain ", "CE-id": "forged", "ce-forged": "1", "X-Own": "o", "Nats-msg-id": "forged",
		})
		b.Events[2].Headers = outbox.Headers(`{"tenant": "a\u0001b"}`) // invalid in an attribute
		b.DeadLetters = []*buffer.DeadLetter{3: {Pipeline: b.Pipeline, GroupID: b.GroupID, Error: "no\nsuch ☃"}, 4: nil}
		err = s.Send(testkit.Timeout(t, sendTimeout), b)
		testkit.Equal(t, "results", results(t, err, 5), "ok ok permanent ok ok")
		testkit.ErrorContains(t, err, "tenant")

		arrived := map[string]*nats.Msg{}
		for range 4 {
			m, err := sub.NextMsg(sendTimeout)
			testkit.NoError(t, err)
			arrived[m.Subject] = m
		}
		deadLetter := string(sink.AppendDeadLetter(nil, b.DeadLetter(3)))
		none := map[string]any{}
		for i, want := range map[int]struct {
			subject, contentType string
			extensions           map[string]any
		}{
			0: {"Zoë \"7\" 100%", "application/json", none},
			1: {"", "text/plain", map[string]any{"traceparent": "00-1"}},
			3: {"", "application/json", map[string]any{"deadletter": deadLetter}},
			4: {"", "application/json", none},
		} {
			m := arrived[b.Events[i].Topic]
			e := readCloudEvent(t, m.Header, m.Data)
			id := b.Events[i].Identity()
			if b.DeadLetter(i) != nil {
				id += ":dead:" + b.GroupID.String()
			}
			extensions := e.Extensions()
			if extensions == nil {
				extensions = none
			}
			if e.ID() != id || e.Source() != "/relay/"+b.Pipeline || e.Type() != b.Events[i].Topic || e.Subject() != want.subject ||
				e.DataContentType() != want.contentType || m.Header.Get("content-type") != want.contentType ||
				!e.Time().Equal(b.Events[i].CreatedAt.Truncate(time.Microsecond)) || string(m.Data) != string(b.Events[i].Payload) {
				t.Errorf("event %d arrived as %v", i, e)
			}
			if diff := cmp.Diff(want.extensions, extensions); diff != "" {
				t.Errorf("event %d: extensions:\n%s", i, diff)
			}
			if got := m.Header.Get("Nats-Msg-Id"); got != string(sink.AppendDedupeID(nil, b, i)) || m.Header.Get("Relay-Group-Id") != b.GroupID.String() {
				t.Errorf("event %d has headers %v", i, m.Header)
			}
		}
		names := slices.Sorted(maps.Keys(arrived["orders.b"].Header))
		testkit.Equal(t, "headers", strings.Join(names, " "),
			"Nats-Msg-Id Relay-Group-Id X-Own ce-datacontenttype ce-id ce-source ce-specversion ce-time ce-traceparent ce-type content-type traceparent")
	})
}

func TestNew_UnknownFormat(t *testing.T) {
	t.Parallel()
	_, err := natssink.New(natssink.Config{URL: "nats://h", Format: "xml"})
	testkit.ErrorContains(t, err, "format", "xml", "cloudevents")
}

// The preview shows the messages that Send publishes.
func TestPreview(t *testing.T) {
	t.Parallel()
	o := newFixture(t, jetstream.StreamConfig{})
	s := open(t, natssink.Config{URL: o.url, Format: "cloudevents", Subject: "orders.{key}"})
	b := batch("a", "b", "c", "d")
	b.Events[0].Key, b.Events[0].Headers = new("x"), outbox.Headers(`{"X-Own": "1", "A-Own": "2"}`)
	b.Events[1].Key, b.Events[3].Key = new("y"), new("a b")
	shown, err := s.Preview(t.Context(), b)
	testkit.Equal(t, "results", results(t, err, 4), "ok ok permanent permanent")
	testkit.ErrorContains(t, err, "{key}")

	sub, err := o.client.SubscribeSync("orders.>")
	testkit.NoError(t, err)
	testkit.NoError(t, o.client.Flush())
	testkit.Equal(t, "results", results(t, s.Send(testkit.Timeout(t, sendTimeout), b), 4), "ok ok permanent permanent")
	for i, sh := range shown {
		m, err := sub.NextMsg(sendTimeout)
		testkit.NoError(t, err)
		if sh.Summary != "PUB "+m.Subject || string(sh.Body) != string(m.Data) || len(sh.Header) != len(m.Header) || !slices.Equal(sh.Events, []int{i}) {
			t.Errorf("shown was %+v, what arrived %+v", sh, m)
		}
		for _, field := range sh.Header {
			if m.Header.Get(field.Name) != field.Value {
				t.Errorf("header %s is %q, shown was %q", field.Name, m.Header.Get(field.Name), field.Value)
			}
		}
	}
	if len(shown) != 2 || shown[0].Header[0].Name != "A-Own" {
		t.Errorf("shown was %+v", shown)
	}
}
