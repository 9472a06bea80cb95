package admin

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// deadFixture is a pipeline with dead letters, in its own database.
type deadFixture struct {
	*sqlite.Buffer
	name    string
	db      *sql.DB
	hasHook bool
}

// pipeline is the fixture on the admin endpoint.
func (m *deadFixture) pipeline() Pipeline {
	return Pipeline{Name: m.name, Health: m, DeadLetters: DeadLetters{Store: m, HasHook: m.hasHook, BatchSize: 2}}
}

func newDeadFixture(t *testing.T, name string, dead int) *deadFixture {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "app.db")
	_, err := sqlite.Migrate(t.Context(), "sqlite://"+file, sqlite.SchemaConfig{})
	must(err)
	m := &deadFixture{name: name}
	m.Buffer, err = sqlite.Open(sqlite.Config{URL: "sqlite://" + file, Pipeline: name})
	must(err)
	m.db, err = sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	must(err)
	t.Cleanup(func() { must(m.Close()); must(m.db.Close()) })
	for i := range dead {
		m.exec(t, `INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at)
			VALUES (?1, ?2, 'topic' || (?2 % 2), '{"a": "<b>"}', '2026-01-02T03:04:05.123Z', '0198c0de-0000-7000-8000-' || printf('%012d', ?2), 3, 'Refused ' || ?2 || ' s3cret',
			        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-2 hours'))`, name, i+1)
	}
	return m
}

func (m *deadFixture) Ready() error { return nil }

func (m *deadFixture) Limits() (batchSize, workers int)         { return 0, 0 }
func (m *deadFixture) Worst() (h buffer.VacuumBlocker, ok bool) { return h, ok }

func (m *deadFixture) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := m.db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// open returns the ids of open dead letters.
func (m *deadFixture) open(t *testing.T) (ids string) {
	t.Helper()
	if err := m.db.QueryRowContext(t.Context(), "SELECT coalesce(group_concat(event_id, ' '), '') FROM (SELECT event_id FROM outbox_dead_letters WHERE closed_at IS NULL ORDER BY event_id)").Scan(&ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

// ids returns the pipelines and ids in a response.
func ids(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var dead []struct {
		Pipeline string `json:"pipeline"`
		ID       int64  `json:"event_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &dead); err != nil {
		t.Errorf("%d %s is not a list: %v", w.Code, w.Body, err)
	}
	var all []string
	for _, l := range dead {
		all = append(all, fmt.Sprint(l.Pipeline, l.ID))
	}
	return strings.Join(all, " ")
}

func TestListDead(t *testing.T) {
	t.Parallel()
	a, b := newDeadFixture(t, "a", 3), newDeadFixture(t, "b", 2)
	a.exec(t, "UPDATE outbox_dead_letters SET closed_at = died_at, closed_as = 'replayed', closed_by = 'somebody', closed_reason = 'a reason', key = 'k', headers = '{\"h\": \"x\"}', payload = x'00ff' WHERE event_id = 3")
	s := New([]Pipeline{a.pipeline(), b.pipeline()}, NewMetrics("1.2.3"), Config{Redact: redactor})
	for query, want := range map[string]string{
		"": "a1 a2 b1 b2", "?pipeline=b": "b1 b2", "?topic=topic1": "a1 b1", "?error=REFUSED+2": "a2 b2", "?id=2&id=1&pipeline=a": "a1 a2",
		"?older_than=1h&newer_than=3h": "a1 a2 b1 b2", "?older_than=3h": "", "?newer_than=1h": "", "?closed=true&pipeline=a": "a1 a2 a3",
	} {
		if got := ids(t, get(t, s, "/api/dead"+query)); got != want {
			t.Errorf("%s lists %q, want %q", query, got, want)
		}
	}
	w := get(t, s, "/api/dead?id=3&closed=1")
	died := ids(t, w)
	var dead []map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &dead); err != nil || died != "a3" {
		t.Fatal(err, died)
	}
	delete(dead[0], "died_at")
	delete(dead[0], "closed_at")
	if diff := cmp.Diff(map[string]any{
		"pipeline": "a", "event_id": 3.0, "topic": "topic1", "key": "k", "payload_base64": "AP8=", "headers": map[string]any{"h": "x"},
		"created_at": "2026-01-02T03:04:05.123000Z", "group_id": "0198c0de-0000-7000-8000-000000000003", "attempts": 3.0,
		"error": "Refused 3 ***", "notified_at": nil, "closed_as": "replayed", "closed_by": "somebody", "closed_reason": "a reason",
	}, dead[0]); diff != "" {
		t.Error(diff)
	}
	if w := get(t, s, "/api/dead?id=1&pipeline=a"); !strings.Contains(w.Body.String(), `"a": "<b>"`) || !strings.Contains(w.Body.String(), `"headers": null`) {
		t.Errorf("got %s", w.Body)
	}
	for query, code := range map[string]int{
		"?pipeline=c": 404, "?topci=x": 400, "?id=x": 400, "?limit=0": 400, "?limit=1001": 400, "?limit=x": 400, "?older_than=1": 400,
		"?newer_than=-1h": 400, "?closed=x": 400, "?after=x": 400, "?after=a,1,2": 400,
	} {
		if w := get(t, s, "/api/dead"+query); w.Code != code || !strings.Contains(w.Body.String(), `"error": `) {
			t.Errorf("%s answers %d %s", query, w.Code, w.Body)
		}
	}
}

func TestListDead_LinksPages(t *testing.T) {
	t.Parallel()
	s := New([]Pipeline{newDeadFixture(t, "a", 5).pipeline(), newDeadFixture(t, "b", 0).pipeline(), newDeadFixture(t, "c", 4).pipeline()}, NewMetrics("1.2.3"), Config{})
	path, got := "/api/dead?limit=3&error=refused", ""
	for pages := 0; path != ""; pages++ {
		if pages > 5 {
			t.Fatal("the pages have no end")
		}
		w := get(t, s, path)
		got += ids(t, w) + ";"
		link := w.Header().Get("Link")
		path, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">")
		if link != "" && !strings.HasSuffix(link, `>; rel="next"`) {
			t.Errorf("the link is %q", link)
		}
	}
	if want := "a1 a2 a3;a4 a5 c1;c2 c3 c4;;"; got != want {
		t.Errorf("the pages are %q, want %q", got, want)
	}
}

// post sends a change as a script does; change modifies the request.
func post(t *testing.T, s *Server, path, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Host = "127.0.0.1:7070"
	r.Header.Set("Content-Type", "application/json")
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func TestChangeDead(t *testing.T) {
	t.Parallel()
	a := newDeadFixture(t, "a", 9)
	s := New([]Pipeline{newDeadFixture(t, "z", 3).pipeline(), a.pipeline()}, NewMetrics("1.2.3"), Config{})
	for _, c := range []struct {
		path, body, answer, open string
		events                   int
	}{
		{"discard", `{"pipeline": "a", "ids": ["1", "2", "99"], "reason": "a test"}`, `{"pipeline":"a","changed":2,"unnotified":0,"skipped":0,"closed_meanwhile":0,"dry_run":false}`, "3 4 5 6 7 8 9", 0},
		{"replay", `{"pipeline": "a", "ids": "all", "dry_run": true}`, `{"pipeline":"a","changed":7,"unnotified":0,"skipped":0,"closed_meanwhile":0,"dry_run":true}`, "3 4 5 6 7 8 9", 0},
		{"replay", `{"pipeline": "a", "ids": "all", "topic": "topic0", "error": "refused", "older_than": "1h", "newer_than": "3h"}`, `{"pipeline":"a","changed":3,"unnotified":0,"skipped":0,"closed_meanwhile":0,"dry_run":false}`, "3 5 7 9", 3},
		{"replay", `{"pipeline": "a", "ids": "all", "newer_than": "1h"}`, `{"pipeline":"a","changed":0,"unnotified":0,"skipped":0,"closed_meanwhile":0,"dry_run":false}`, "3 5 7 9", 3},
		{"replay", `{"pipeline": "a", "ids": ["3", "5", "7"]}`, `{"pipeline":"a","changed":3,"unnotified":0,"skipped":0,"closed_meanwhile":0,"dry_run":false}`, "9", 6},
	} {
		w := post(t, s, "/api/dead/"+c.path, c.body)
		var compact strings.Builder
		for _, field := range strings.Fields(w.Body.String()) {
			compact.WriteString(field)
		}
		if w.Code != http.StatusOK || compact.String() != c.answer || a.open(t) != c.open {
			t.Errorf("%s %s answers %d %s, open are %s", c.path, c.body, w.Code, w.Body, a.open(t))
		}
		var events int
		if err := a.db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events").Scan(&events); err != nil || events != c.events {
			t.Errorf("after %s %s there are %d events, %v", c.path, c.body, events, err)
		}
	}
	by := ""
	if err := a.db.QueryRowContext(t.Context(), "SELECT group_concat(DISTINCT closed_as || ' by ' || closed_by || coalesce(': ' || closed_reason, '')) FROM outbox_dead_letters WHERE closed_at IS NOT NULL").Scan(&by); err != nil ||
		by != "discarded by admin endpoint, 192.0.2.1: a test,replayed by admin endpoint, 192.0.2.1" {
		t.Errorf("closed were %q, %v", by, err)
	}
	if got := ids(t, get(t, s, "/api/dead?pipeline=z")); got != "z1 z2 z3" {
		t.Errorf("another pipeline has %s", got)
	}
}

func TestChangeDead_SkipsUnnotified(t *testing.T) {
	t.Parallel()
	a := newDeadFixture(t, "a", 5)
	a.hasHook = true
	a.exec(t, "UPDATE outbox_dead_letters SET notified_at = died_at WHERE event_id > 2")
	s := New([]Pipeline{a.pipeline()}, NewMetrics("1.2.3"), Config{})
	for path, want := range map[string]string{"discard": `"changed": 1,`, "replay": `"changed": 2,`} {
		body := map[string]string{"discard": `{"pipeline": "a", "ids": ["1", "3"]}`, "replay": `{"pipeline": "a", "ids": ["2", "4", "5"]}`}[path]
		if w := post(t, s, "/api/dead/"+path, body); !strings.Contains(w.Body.String(), want) || !strings.Contains(w.Body.String(), `"unnotified": 1,`) {
			t.Errorf("%s answers %d %s", path, w.Code, w.Body)
		}
	}
	if a.open(t) != "1 2" {
		t.Errorf("open are %s", a.open(t))
	}
}

func TestChangeDead_ValidatesRequest(t *testing.T) {
	t.Parallel()
	a := newDeadFixture(t, "a", 2)
	s := New([]Pipeline{a.pipeline()}, NewMetrics("1.2.3"), Config{})
	const good = `{"pipeline": "a", "ids": "all", "dry_run": true}`
	for body, code := range map[string]int{
		good: 200, "": 400, "{}": 400, "[]": 400, `{"pipeline": "a"}`: 400, `{"pipeline": "a", "ids": []}`: 400, `{"pipeline": "a", "ids": [17]}`: 400,
		`{"pipeline": "a", "ids": ["x"]}`: 400, `{"pipeline": "a", "ids": "17"}`: 400, `{"pipeline": "a", "ids": null}`: 400, `{"ids": "all"}`: 404, `{"pipeline": "b", "ids": "all"}`: 404,
		`{"pipeline": "a", "ids": "all", "dryrun": true}`: 400, good + good: 400, good + "x": 400, `{"pipeline": "a", "ids": "all", "older_than": "1"}`: 400,
		`{"pipeline": "a", "ids": "all", "reason": "two\nlines"}`: 400, `{"pipeline": "a", "ids": "all", "dry_run": true, "reason": "` + strings.Repeat("x", MaxReason) + `"}`: 200,
		`{"pipeline": "a", "ids": "all", "topic": "` + strings.Repeat("x", maxRequestBytes) + `"}`: 413,
	} {
		for _, path := range []string{"/api/dead/replay", "/api/dead/discard"} {
			if w := post(t, s, path, body); w.Code != code || code != 200 && !strings.Contains(w.Body.String(), `"error": `) {
				t.Errorf("%s %.100s answers %d %s, want %d", path, body, w.Code, w.Body, code)
			}
		}
	}
	if w := get(t, s, "/api/dead/replay"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET answers %d", w.Code)
	}
	if a.open(t) != "1 2" {
		t.Errorf("open are %s", a.open(t))
	}
}
