package admin

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestDeadLetter_UUID(t *testing.T) {
	t.Parallel()
	const one, two = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
	ids, uuids, err := ParseIDs([]string{two, " 17", one, "4", strings.ToUpper(one)})
	if err != nil || len(ids) != 2 || ids[0] != 4 || len(uuids) != 2 || uuids[0].String() != one {
		t.Errorf("got %v, %v, %v", ids, uuids, err)
	}
	// Uuids alone match no number.
	if ids, _, err := ParseIDs([]string{one}); err != nil || ids == nil || len(ids) != 0 {
		t.Errorf("got %#v, %v", ids, err)
	}
	for _, text := range []string{"", "x", "1.5", one + "0", uuid.Nil.String()} {
		if _, _, err := ParseIDs([]string{"1", text}); err == nil || !strings.Contains(err.Error(), "expected a number or a uuid") {
			t.Errorf("%q: %v", text, err)
		}
	}

	q, err := parseDeadQuery(url.Values{"id": {one, "17"}})
	if err != nil || len(q.filter.IDs) != 1 || len(q.filter.UUIDs) != 1 {
		t.Errorf("got %+v, %v", q, err)
	}
	f, err := (&changeRequest{IDs: json.RawMessage(`["` + one + `"]`)}).filter()
	if err != nil || len(f.IDs) != 0 || f.IDs == nil || len(f.UUIDs) != 1 {
		t.Errorf("got %+v, %v", f, err)
	}

	// A number stays one, in JSON, and a uuid is a text; the next page is found by number.
	e := buffer.DeadEvent{Event: outbox.Event{ID: 1000001, UUID: uuid.MustParse(one)}, DeadLetter: buffer.DeadLetter{Pipeline: "p"}, Row: []byte(`{"id": 1}`)}
	shown := NewDeadLetter(&e, func(s string) string { return s })
	text, err := json.Marshal(shown)
	if err != nil || !strings.Contains(string(text), `"event_id":"`+one+`"`) || !strings.Contains(string(text), `"event_row":{"id":1}`) {
		t.Errorf("got %s, %v", text, err)
	}
	if next := q.next(&url.URL{Path: "/api/dead"}, shown); !strings.Contains(next, url.QueryEscape("p,1000001,")) {
		t.Errorf("the next page is %s", next)
	}
	e.UUID, e.Row = uuid.Nil, nil
	if text, err = json.Marshal(NewDeadLetter(&e, func(s string) string { return s })); err != nil ||
		!strings.Contains(string(text), `"event_id":1000001`) || strings.Contains(string(text), "event_row") {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestChangeDead_UUIDMatchesNoInteger(t *testing.T) {
	t.Parallel()
	m := newDeadFixture(t, "a", 3)
	s := New([]Pipeline{m.pipeline()}, NewMetrics("1.2.3"), Config{Redact: redactor})
	w := post(t, s, "/api/dead/discard", `{"pipeline": "a", "ids": ["0198c0de-0000-7000-8000-000000000001"]}`)
	if open := m.open(t); open != "1 2 3" {
		t.Errorf("got %d %s, and %q are open", w.Code, w.Body, open)
	}
}
