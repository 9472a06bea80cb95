package sinktest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// account is the sent events by id. Audits compare it with the arrivals.
type account map[string]sent

type sent struct {
	event   *outbox.Event
	dead    *buffer.DeadLetter
	groupID string // "" if one of several may have delivered the event
}

func (a account) add(batches ...*buffer.Batch) {
	for _, b := range batches {
		for i := range b.Events {
			a[strconv.FormatInt(b.Events[i].ID, 10)] = sent{&b.Events[i], b.DeadLetter(i), b.GroupID.String()}
		}
	}
}

func accountOf(batches ...*buffer.Batch) account {
	a := account{}
	a.add(batches...)
	return a
}

// ofAnyGroup forgets the group_ids, for events that were sent under several.
func (a account) ofAnyGroup() account {
	for id, of := range a {
		of.groupID = ""
		a[id] = of
	}
	return a
}

// exactly fails the test unless each event arrived once and unchanged, and no other did.
func (a account) exactly(t *testing.T, h Harness, d Destination) {
	t.Helper()
	a.audit(t, h, d, false)
}

// atLeast is exactly, but an event may arrive more than once.
func (a account) atLeast(t *testing.T, h Harness, d Destination) {
	t.Helper()
	a.audit(t, h, d, true)
}

func (a account) audit(t *testing.T, h Harness, d Destination, mayRepeat bool) {
	t.Helper()
	seen := make(map[string]int, len(a))
	for _, got := range d.Arrivals(t) {
		want, known := a[got.ID]
		if !known {
			t.Errorf("event %q arrived but was not sent", got.ID)
			continue
		}
		seen[got.ID]++
		if seen[got.ID] == 1 && !t.Failed() { // one difference is enough
			h.compare(t, d, want, got)
		}
	}
	var missing, twice []string
	for id := range a {
		switch n := seen[id]; {
		case n == 0:
			missing = append(missing, id)
		case n > 1:
			twice = append(twice, id)
		}
	}
	if len(missing) > 0 {
		t.Errorf("%d of %d events are missing, such as %s", len(missing), len(a), missing[0])
	}
	if len(twice) > 0 && !mayRepeat {
		t.Errorf("%d of %d events arrived more than once, such as %s", len(twice), len(a), twice[0])
	}
}

// inOrder fails the test unless the events of each batch arrived in id order at each address.
func (a account) inOrder(t *testing.T, d Destination) {
	t.Helper()
	type stream struct{ address, groupID string }
	last := map[stream]int64{}
	for _, got := range d.Arrivals(t) {
		want := a[got.ID]
		at := stream{got.Address, want.groupID}
		if want.event.ID <= last[at] {
			t.Fatalf("event %s arrived at %q after event %d", got.ID, got.Address, last[at])
		}
		last[at] = want.event.ID
	}
}

// compare reports the fields in which an arrival differs from the sent event.
func (h Harness) compare(t *testing.T, d Destination, want sent, got Arrival) {
	t.Helper()
	e := want.event
	differ := func(field string, got, want any) {
		t.Helper()
		t.Errorf("event %d: %s arrived as %q; want %q", e.ID, field, got, want)
	}
	payload := e.Payload
	if !h.Keeps.LineBreaks {
		payload = oneLine(payload)
	}
	if !bytes.Equal(got.Payload, payload) && (!h.Keeps.Reencoded || !sameJSON(got.Payload, e.Payload)) {
		differ("payload", got.Payload, payload)
	}
	if h.Keeps.Topic && got.Topic != e.Topic {
		differ("topic", got.Topic, e.Topic)
	}
	if h.Keeps.Key && text(got.Key) != text(e.Key) {
		differ("key", text(got.Key), text(e.Key))
	}
	if h.Keeps.Headers {
		h.compareHeaders(t, e, got.Headers)
	}
	if h.Keeps.GroupID && want.groupID != "" && got.GroupID != want.groupID {
		differ("group_id", got.GroupID, want.groupID)
	}
	if h.Keeps.CreatedAt && !got.CreatedAt.Equal(e.CreatedAt.Truncate(time.Microsecond)) {
		differ("created_at", got.CreatedAt, e.CreatedAt)
	}
	compareDeadLetters(t, want, got.DeadLetter)
	if d.Address != nil && got.Address != d.Address(e.Topic) {
		differ("address", got.Address, d.Address(e.Topic))
	}
}

// sameJSON reports whether both are JSON of one value, digit for digit.
func sameJSON(a, b []byte) bool {
	var values [2]any
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

func (h Harness) compareHeaders(t *testing.T, e *outbox.Event, got outbox.Headers) {
	t.Helper()
	if h.Keeps.HeadersText {
		want := []byte(e.Headers)
		if !h.Keeps.LineBreaks {
			want = oneLine(want)
		}
		if (got == nil) != (e.Headers == nil) || !bytes.Equal(got, want) {
			t.Errorf("event %d: headers arrived as %q; want %q", e.ID, got, want)
		}
		return
	}
	wantMap, err := e.Headers.Map()
	if err != nil {
		t.Fatalf("event %d: %v", e.ID, err)
	}
	gotMap, err := got.Map()
	if err != nil || !maps.Equal(gotMap, wantMap) {
		t.Errorf("event %d: headers arrived as %q; want %q (%v)", e.ID, got, e.Headers, err)
	}
}

// text distinguishes NULL from "".
func text(s *string) string {
	if s == nil {
		return "NULL"
	}
	return fmt.Sprintf("%q", *s)
}

// oneLine compacts JSON with line breaks between its tokens.
func oneLine(text []byte) []byte {
	var line bytes.Buffer
	if bytes.ContainsAny(text, "\r\n") && json.Compact(&line, text) == nil {
		return line.Bytes()
	}
	return text
}
