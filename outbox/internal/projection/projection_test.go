package projection_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/projection"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	sql, uses := projection.Expand("SELECT e.id FROM {events} e -- {events}", "SELECT 1")
	if want := "SELECT e.id FROM (SELECT 1) e -- (SELECT 1)"; sql != want || !uses {
		t.Errorf("got %s, %t; expected %s", sql, uses, want)
	}
	if sql, uses := projection.Expand("SELECT 1", "SELECT 2"); sql != "SELECT 1" || uses {
		t.Errorf("got %s, %t", sql, uses)
	}
}

func TestTrim(t *testing.T) {
	t.Parallel()
	for project, want := range map[string]string{
		"":                                "",
		" ; -- x":                         "",
		"SELECT ';' ;\n; \n":              "SELECT ';'",
		"SELECT 1 ; ;\n":                  "SELECT 1",
		"SELECT 1 -- it's\n":              "SELECT 1",
		"SELECT 1 -- it's\n, 2 ;":         "SELECT 1 -- it's\n, 2",
		"SELECT 1 /* ; */ ; --":           "SELECT 1",
		"SELECT 1; /* a **/ -- b\n /***/": "SELECT 1",
		"SELECT 1 /* a */, 2 /* b */;":    "SELECT 1 /* a */, 2",
		"SELECT 1 /* it's":                "SELECT 1",
		"SELECT 1 /*/ ; 2":                "SELECT 1",
		"SELECT 1 /* **":                  "SELECT 1",
		"SELECT '-- ;' ;":                 "SELECT '-- ;'",
		"SELECT 'it''s; --' ;":            "SELECT 'it''s; --'",
		"SELECT \"/*\" AS `--`; -- */":    "SELECT \"/*\" AS `--`",
		"SELECT [--'] ;":                  "SELECT [--']",
		"SELECT 1 - -1 / 2;":              "SELECT 1 - -1 / 2",
		"SELECT 1; DELETE FROM t; -- x":   "SELECT 1; DELETE FROM t",
		"SELECT 'é' ;":                    "SELECT 'é'",
		"SELECT é \xff;":                  "SELECT é \xff",
		"SELECT 'open ;":                  "SELECT 'open ;",
		"SELECT e.id\nFROM {events} e;\n": "SELECT e.id\nFROM {events} e",
	} {
		if got := projection.Trim(project); got != want {
			t.Errorf("%q: got %q; expected %q", project, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	c, err := projection.Find([]string{"other", "Payload", "id", "created_at"}, strings.EqualFold)
	want := projection.Columns{projection.ID: 2, projection.Payload: 1, projection.Topic: -1, projection.Key: -1, projection.Headers: -1, projection.CreatedAt: 3}
	if err != nil || c != want {
		t.Errorf("got %v, %v; expected %v", c, err, want)
	}
	c, err = projection.Find([]string{"id", "Topic", "payload", "Payload", "created_at"}, projection.SameName)
	want[projection.ID], want[projection.Payload], want[projection.CreatedAt] = 0, 2, 4
	if err != nil || c != want {
		t.Errorf("by exact names: got %v, %v; expected %v", c, err, want)
	}
	for want, names := range map[string][]string{
		"expected a column id":      {"payload", "ident"},
		"expected a column payload": {"id"},
		"column id twice":           {"id", "payload", "id"},
	} {
		if _, err := projection.Find(names, projection.SameName); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v; expected %q", names, err, want)
		}
	}
}

func text(s string) *string { return &s }

func TestRows(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	events := []outbox.Event{{ID: 3}, {ID: 5, CreatedAt: at}, {ID: 9}}
	rows := projection.NewRows(events, "activities")
	for _, id := range []int64{5, 3, 9} {
		i, found := rows.Find(id)
		if !found || events[i].ID != id {
			t.Fatalf("event %d was found at %d, %t", id, i, found)
		}
	}
	if _, found := rows.Find(4); found {
		t.Error("event 4 was found")
	}
	rows.Add(1, &projection.Row{Payload: []byte(`{"a": 1}`), Topic: text("t"), Key: text(""), Headers: []byte(" {}")})
	rows.Add(0, &projection.Row{Payload: []byte{}, Kind: projection.Bytes, CreatedAt: at})
	if e := events[1]; rows.Err(1) != nil || string(e.Payload) != `{"a": 1}` || e.Topic != "t" || *e.Key != "" || string(e.Headers) != " {}" || e.CreatedAt != at {
		t.Errorf("got %+v, %v", e, rows.Err(1))
	}
	if e := events[0]; rows.Err(0) != nil || e.Payload == nil || e.Topic != "activities" || e.Key != nil || e.Headers != nil || e.CreatedAt != at {
		t.Errorf("got %+v, %v", e, rows.Err(0))
	}
	if ids := rows.MissingIDs(); !slices.Equal(ids, []int64{9}) || !rows.Missing(2) || rows.Missing(0) {
		t.Errorf("missing %v", ids)
	}
}

func TestRows_Rejects(t *testing.T) {
	t.Parallel()
	payload := []byte(`{}`)
	for want, row := range map[string]projection.Row{
		"event 7 has payload NULL":                             {},
		"text and not JSON":                                    {Payload: []byte("x"), Kind: projection.Text},
		"has an empty topic":                                   {Payload: payload, Topic: text("")},
		"headers that are not a JSON object":                   {Payload: payload, Headers: []byte(`["a"]`)},
		"event 7 has topic a blob; expected text":              {Payload: payload, Err: projection.WrongType(projection.Topic, "a blob", "text")},
		"event 7 is returned twice; expected one row an event": {Payload: payload},
	} {
		events := []outbox.Event{{ID: 7, CreatedAt: time.Unix(1, 0)}}
		rows := projection.NewRows(events, "activities")
		rows.Add(0, &row)
		rows.Add(0, &row)
		if err := rows.Err(0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; expected %q", err, want)
		}
		if e := events[0]; e.Payload != nil || e.Topic != "activities" || e.CreatedAt.IsZero() {
			t.Errorf("a rejected event is %+v", e)
		}
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	cause := errors.New("syntax\r\n  error")
	err := projection.EventData(projection.Failed(cause))
	if !errors.Is(err, cause) || !errors.Is(err, buffer.ErrEventData) || strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("got %q", err)
	}
	if err := projection.Unavailable(cause); !errors.Is(err, buffer.ErrDatabaseUnavailable) {
		t.Errorf("got %v", err)
	}
}
