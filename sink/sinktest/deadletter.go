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

// deadLetter is the JSON object that is sent with a dead letter.
type deadLetter struct {
	Pipeline string    `json:"pipeline"`
	GroupID  uuid.UUID `json:"group_id"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	DiedAt   string    `json:"died_at"`
}

// deadLetters checks that each dead letter arrives with its reason, whatever characters the
// reason contains and whatever fields the event has.
func deadLetters(t *testing.T, h Harness, d Destination) {
	reasons := []string{
		"422 Unprocessable Entity", "", `{"error": "\"quoted\" \\ slashed"}`, "two\r\nlines\n", "\x00\x1b\x7f\u2028", "ключ ☃ 𝄞", "cut \xf0\x9d\x84",
		" blanks ", "</script>", strings.Repeat("long ", 1000),
	}
	keys := []*string{nil, new("customer-7")}
	headers := []outbox.Headers{nil, outbox.Headers(`{"trace": "00-abc"}`)}
	b := newBatch(4*len(reasons), func(i int, e *outbox.Event) {
		e.Topic = topicNo(i % 2)
		e.Key, e.Headers = keys[i%4/2], headers[i%4%2]
		if i%7 == 0 {
			return // an ordinary event among dead letters
		}
		e.DeadLetter = &outbox.DeadLetter{
			Pipeline: Pipeline, GroupID: buffer.NewGroupID(), Attempts: i, Error: reasons[i/4],
			DiedAt: time.Date(2026, 2, 3, 4, 5, i, 1000, time.FixedZone("", -3600)),
		}
	})
	accountOf(mustDeliver(t, connect(t, d), b)...).exactly(t, h, d)
}

func compareDeadLetters(t *testing.T, e *outbox.Event, got string) {
	t.Helper()
	if e.DeadLetter == nil || got == "" {
		if e.DeadLetter != nil || got != "" {
			t.Errorf("event %d: dead letter arrived as %q; want %+v", e.ID, got, e.DeadLetter)
		}
		return
	}
	// Each invalid byte is replaced; those above come in threes.
	const replaced = "\uFFFD\uFFFD\uFFFD"
	want := deadLetter{
		Pipeline: e.DeadLetter.Pipeline, GroupID: e.DeadLetter.GroupID, Attempts: e.DeadLetter.Attempts,
		Error:  strings.ToValidUTF8(e.DeadLetter.Error, replaced),
		DiedAt: e.DeadLetter.DiedAt.UTC().Format("2006-01-02T15:04:05.000000Z"),
	}
	var arrived deadLetter
	dec := json.NewDecoder(strings.NewReader(got))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&arrived); err != nil || dec.More() || strings.ContainsAny(got, "\r\n") {
		t.Fatalf("event %d: dead letter arrived as %q: %v", e.ID, got, err)
	}
	if diff := cmp.Diff(want, arrived); diff != "" {
		t.Errorf("event %d: dead letter (-want +got):\n%s", e.ID, diff)
	}
}
