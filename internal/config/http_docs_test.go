package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

var example = regexp.MustCompile("(?m)^(?:<!-- ([a-z]+) ?([0-9]*) -->\n)?```([a-z]+)\n((?s:.*?)\n)```$")

// TestDocumentation_HTTPExamples: each example of docs/http.md sends what it says, and makes of an
// answer what it says.
func TestDocumentation_HTTPExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	b := &buffer.Lease{Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: "crm", PayloadIsJSON: true}}
	var (
		opened sink.Sink
		status int
		answer string
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		if _, err := w.Write([]byte(answer)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	tried := 0
	for _, m := range example.FindAllStringSubmatch(string(text), -1) {
		what, number, lang, block := m[1], m[2], m[3], m[4]
		switch what {
		case "":
			if lang == "yaml" && strings.HasPrefix(block, "sink:") {
				opened = opening(t, block, server.URL)
			}
		case "events":
			b.Events = exampleEvents(t, block)
		case "sent":
			shown, err := opened.(sink.Previewer).Preview(t.Context(), &b.Batch)
			if err != nil || len(shown) != 1 {
				t.Fatalf("%v, %d requests for\n%s", err, len(shown), block)
			}
			if diff := cmp.Diff(strings.TrimSuffix(block, "\n"), strings.TrimSuffix(string(shown[0].Body), "\n")); diff != "" {
				t.Errorf("(-docs +sent):\n%s", diff)
			}
			tried++
		case "answer":
			answer = block
			if status, err = strconv.Atoi(number); err != nil {
				t.Fatal(err)
			}
		case "then":
			if diff := cmp.Diff(block, outcome(b, opened.Send(t.Context(), &b.Batch))); diff != "" {
				t.Errorf("(-docs +outcome):\n%s", diff)
			}
			tried++
		}
	}
	if tried < 4 {
		t.Errorf("%d examples were tried", tried)
	}
}

func opening(t *testing.T, block, url string) sink.Sink {
	t.Helper()
	yaml := "pipelines:\n  - name: crm\n    source: {url: \"postgres://h/p\"}\n    " + strings.ReplaceAll(strings.TrimSpace(block), "\n", "\n    ") + "\n"
	yaml = regexp.MustCompile(`https://[a-z.]+`).ReplaceAllString(yaml, url)
	c, err := Parse("http.md", []byte(yaml), func(name string) (string, bool) {
		if strings.HasSuffix(name, "SIGNING_SECRET") {
			return "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true
		}
		return "t0ken", true
	})
	if err != nil {
		t.Fatalf("%v in\n%s", err, yaml)
	}
	s, err := c.Pipelines[0].openSink(&c.Pipelines[0].Sink, nil, Process{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func exampleEvents(t *testing.T, text string) (events []outbox.Event) {
	t.Helper()
	var all []struct {
		ID         int64 `json:",string"`
		Topic, Key string
		Payload    json.RawMessage
		CreatedAt  time.Time `json:"created_at"`
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		events = append(events, outbox.Event{ID: e.ID, Topic: e.Topic, Key: &e.Key, Payload: e.Payload, CreatedAt: e.CreatedAt})
	}
	return events
}

// outcome says what became of each event, or of all.
func outcome(b *buffer.Lease, err error) string {
	some, ok := errors.AsType[*sink.BatchError](err)
	if err != nil && !ok {
		_, said, _ := strings.Cut(err.Error(), ": ")
		return said + "\n"
	}
	lines := ""
	for i := range b.Events {
		line := "delivered"
		for _, e := range some.Events {
			if e.Index == i && errors.Is(e.Err, sink.ErrPermanent) {
				line = "refused for good: " + e.Err.Error()
			} else if e.Index == i {
				line = "again: " + e.Err.Error()
			}
		}
		lines += fmt.Sprintf("%d %s\n", b.Events[i].ID, line)
	}
	return lines
}
