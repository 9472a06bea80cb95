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

// deadLetters checks that each dead letter arrives with its reason, for all characters of the
// reason and all fields of the event.
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
	})
	b.DeadLetters = make([]*buffer.DeadLetter, len(b.Events))
	for i := range b.Events {
		if i%7 == 0 {
			continue // an ordinary event among dead letters
		}
		b.DeadLetters[i] = &buffer.DeadLetter{
			Pipeline: Pipeline, GroupID: buffer.NewGroupID(), Attempts: i, Error: reasons[i/4],
			DiedAt: time.Date(2026, 2, 3, 4, 5, i, 1000, time.FixedZone("", -3600)),
		}
	}
	accountOf(mustDeliver(t, connect(t, d), b)...).exactly(t, h, d)
}

func compareDeadLetters(t *testing.T, want sent, got string) {
	t.Helper()
	id, dead := want.event.ID, want.dead
	if dead == nil || got == "" {
		if dead != nil || got != "" {
			t.Errorf("event %d: dead letter arrived as %q; want %+v", id, got, dead)
		}
		return
	}
	// Each invalid byte is replaced; those above come in threes.
	const replaced = "\uFFFD\uFFFD\uFFFD"
	wantJSON := deadLetter{
		Pipeline: dead.Pipeline, GroupID: dead.GroupID, Attempts: dead.Attempts,
		Error:  strings.ToValidUTF8(dead.Error, replaced),
		DiedAt: dead.DiedAt.UTC().Format("2006-01-02T15:04:05.000000Z"),
	}
	var arrived deadLetter
	dec := json.NewDecoder(strings.NewReader(got))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&arrived); err != nil || dec.More() || strings.ContainsAny(got, "\r\n") {
		t.Fatalf("event %d: dead letter arrived as %q: %v", id, got, err)
	}
	if diff := cmp.Diff(wantJSON, arrived); diff != "" {
		t.Errorf("event %d: dead letter (-want +got):\n%s", id, diff)
	}
}
