package sinktest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// deadLetter is the JSON object that travels with a buried event.
type deadLetter struct {
	Pipeline string    `json:"pipeline"`
	GroupID  uuid.UUID `json:"group_id"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	DiedAt   string    `json:"died_at"`
}

// deadLetters: what a hook is sent says of each event why it was buried, whatever
// the words, and whatever else the event has.
func deadLetters(t *testing.T, h Harness, d Destination) {
	why := []string{
		"422 Unprocessable Entity", "", `{"error": "\"quoted\" \\ slashed"}`, "two\r\nlines\n", "\x00\x1b\x7f\u2028", "ключ ☃ 𝄞", "cut \xf0\x9d\x84",
		" blanks ", "</script>", strings.Repeat("long ", 1000),
	}
	keys := []*string{nil, key("customer-7")}
	headers := []outbox.Headers{nil, outbox.Headers(`{"trace": "00-abc"}`)}
	b := newBatch(4*len(why), func(i int, e *outbox.Event) {
		e.Topic = topicNo(i % 2)
		e.Key, e.Headers = keys[i%4/2], headers[i%4%2]
		if i%7 == 0 {
			return // among the dead, one that is not
		}
		e.DeadLetter = &outbox.DeadLetter{
			Pipeline: Pipeline, GroupID: buffer.NewGroupID(), Attempts: i, Error: why[i/4],
			DiedAt: time.Date(2026, 2, 3, 4, 5, i, 1000, time.FixedZone("", -3600)),
		}
	})
	accountOf(mustDeliver(t, connect(t, d), b)...).exactly(t, h, d)
}

func compareDeadLetters(t *testing.T, e *outbox.Event, got string) {
	t.Helper()
	if e.DeadLetter == nil || got == "" {
		if e.DeadLetter != nil || got != "" {
			t.Errorf("event %d: dead letter arrived as %q, want %+v", e.ID, got, e.DeadLetter)
		}
		return
	}
	// Each byte that is no UTF-8 is replaced; those above stand in threes.
	const replaced = "\uFFFD\uFFFD\uFFFD"
	want := deadLetter{
		Pipeline: e.DeadLetter.Pipeline, GroupID: e.DeadLetter.GroupID, Attempts: e.DeadLetter.Attempts,
		Error:  strings.ToValidUTF8(e.DeadLetter.Error, replaced),
		DiedAt: e.DeadLetter.DiedAt.UTC().Format("2006-01-02T15:04:05.000000Z"),
	}
	var is deadLetter
	dec := json.NewDecoder(strings.NewReader(got))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&is); err != nil || dec.More() || strings.ContainsAny(got, "\r\n") {
		t.Fatalf("event %d: dead letter arrived as %q: %v", e.ID, got, err)
	}
	if diff := cmp.Diff(want, is); diff != "" {
		t.Errorf("event %d: dead letter (-want +got):\n%s", e.ID, diff)
	}
}
