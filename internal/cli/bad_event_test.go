package cli

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Good events are delivered and bad ones become dead deadLetters. No batch waits for a bad event, and few are sent twice.
func TestRun_BadEventInEveryBatch(t *testing.T) {
	t.Parallel()
	const (
		events, size, every = 3000, 100, 50
		most                = 2 * events / size // requests

		none = "'[.events[].payload]'"
		trip = `'[.events[].payload | if .n % 50 == 0 then error("not this one") else . end]'`
	)
	for name, c := range map[string]struct {
		isNull        string // when the payload is
		request, says string
	}{
		"projection": {"n % 50 = 0", none, "payload"},
		"request":    {"n < 0", trip, "not this one"},
	} {
		for buffer, open := range map[string]func(t *testing.T) (source, deadLetters string, exec func(string), count func(string) int64){
			"postgres": func(t *testing.T) (string, string, func(string), func(string) int64) {
				db := newDatabase(t)
				db.exec("CREATE TABLE happened (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL, group_id uuid)")
				source := fmt.Sprintf(`{url: %q, table: happened, schema: relay, project: "SELECT id, CASE WHEN NOT %s THEN jsonb_build_object('n', n) END AS payload FROM happened WHERE group_id = $1"}`, db.url, c.isNull)
				return source, "relay.outbox_dead_letters", func(s string) { db.exec(s) }, func(s string) int64 { return int64(db.count(s)) }
			},
			"sqlite": func(t *testing.T) (string, string, func(string), func(string) int64) {
				file := filepath.Join(t.TempDir(), "app.db")
				db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := db.Close(); err != nil {
						t.Error(err)
					}
				})
				exec := func(s string) {
					if _, err := db.ExecContext(t.Context(), s); err != nil {
						t.Fatal(err)
					}
				}
				exec("CREATE TABLE happened (id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL, group_id TEXT)")
				source := fmt.Sprintf(`{url: "sqlite://%s", table: happened, project: "SELECT id, CASE WHEN NOT %s THEN json_object('n', n) END AS payload FROM happened WHERE group_id = ?"}`, file, c.isNull)
				return source, "outbox_dead_letters", exec, func(s string) (n int64) {
					if err := db.QueryRowContext(t.Context(), s).Scan(&n); err != nil {
						t.Fatal(err)
					}
					return n
				}
			},
		} {
			t.Run(name+"/"+buffer, func(t *testing.T) {
				t.Parallel()
				api := numbers(t)
				source, deadLetters, exec, count := open(t)
				path := write(t, fmt.Sprintf("admin: {listen: \"\"}\npipelines:\n  - name: p\n    source: %s\n    batch_size: %d\n    sink: {url: %q, request: %s}\n", source, size, api.url, c.request))
				do(t, nil, "migrate", "-c", path).want(t, 0, "p: applied", "")
				exec(fmt.Sprintf("INSERT INTO happened (n) WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < %d) SELECT i FROM s", events))
				run := start(t, nil, "run", "-c", path)
				wait(t, 2*time.Minute, func() error {
					if n := count("SELECT (SELECT count(*) FROM happened) + (SELECT count(*) FROM " + strings.Replace(deadLetters, "dead_letters", "batches", 1) + ")"); n != 0 {
						return fmt.Errorf("%d rows are left in buffer and ledger", n)
					}
					return nil
				})
				run.signal(os.Interrupt)
				if code := run.exit(); code != 0 {
					t.Errorf("exit status %d", code)
				}
				api.wants(t, events, every, most)
				if n := count("SELECT count(*) FROM " + deadLetters); n != events/every {
					t.Errorf("%d events are buried, want %d", n, events/every)
				}
				if n := count("SELECT count(*) FROM " + deadLetters + " WHERE error LIKE '%" + c.says + "%'"); n != events/every {
					t.Errorf("%d dead letters contain %q, want %d", n, c.says, events/every)
				}
			})
		}
	}
}

// numbersAPI accepts arrays of {"n": 1}.
type numbersAPI struct {
	url      string
	mu       sync.Mutex
	requests int
	got      []int
}

func numbers(t *testing.T) *numbersAPI {
	t.Helper()
	a := &numbersAPI{}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

// ServeHTTP implements http.Handler.
func (a *numbersAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var all []struct{ N int }
	if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	for _, one := range all {
		a.got = append(a.got, one.N)
	}
}

// wants checks that each number arrived once, except the multiples of every, in at most most requests.
func (a *numbersAPI) wants(t *testing.T, events, every, most int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.requests > most {
		t.Errorf("%d requests, want at most %d", a.requests, most)
	}
	slices.Sort(a.got)
	var want []int
	for n := 1; n <= events; n++ {
		if n%every != 0 {
			want = append(want, n)
		}
	}
	if !slices.Equal(a.got, want) {
		t.Errorf("%d events arrived, of them %d different ones, want %d", len(a.got), len(slices.Compact(a.got)), len(want))
	}
}
