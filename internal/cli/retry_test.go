package cli

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// An API asks for a day; it gets an hour. status says what waits until when, and retry ends the wait of a relay
// that runs in another process.
func TestRetry_EndsARetryAfter(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (url string, insert func()){
		"postgres": func(t *testing.T) (string, func()) {
			db := newDatabase(t)
			return db.url, func() { db.insert(3) }
		},
		"sqlite": func(t *testing.T) (string, func()) {
			file := filepath.Join(t.TempDir(), "app.db")
			return "sqlite://" + file, func() {
				db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
				if err == nil {
					_, err = db.ExecContext(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('t', '1'), ('t', '2'), ('t', '3')")
				}
				if err = errors.Join(err, db.Close()); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var busy, refused, accepted atomic.Int64
			busy.Store(1)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method != http.MethodPost:
				case busy.Load() == 0:
					accepted.Add(1)
				default:
					refused.Add(1)
					w.Header().Set("Retry-After", "86400")
					http.Error(w, "come back tomorrow", http.StatusTooManyRequests)
				}
			}))
			t.Cleanup(api.Close)
			url, insert := open(t)
			path := write(t, onePipeline("orders", url, api.URL))
			do(t, nil, "migrate", "-c", path).want(t, 0, "orders: ", "")
			do(t, nil, "retry", "-c", path).want(t, 0, "orders: nothing waits\n", "")
			insert()
			r := start(t, nil, "run", "-c", path)
			waits := func(n int64) {
				t.Helper()
				wait(t, time.Minute, func() error {
					text := do(t, nil, "status", "-c", path).stdout
					if refused.Load() < n || !strings.Contains(text, "orders: 1 batch waits (3 events), due in ") ||
						!strings.Contains(text, "429 Too Many Requests: come back tomorrow") {
						return fmt.Errorf("%d refusals, status is %q", refused.Load(), text)
					}
					if !strings.Contains(text, "due in 59m") && !strings.Contains(text, "due in 1h") {
						return fmt.Errorf("the wait is not an hour: %q", text)
					}
					return nil
				})
			}
			waits(1)
			do(t, nil, "retry", "-c", path, "--now").want(t, 0, "orders: 1 batch is due now\n", "")
			waits(2) // it was tried, and the API asks for another pause
			busy.Store(0)
			do(t, nil, "retry", "-c", path, "--pipeline", "orders").want(t, 0, "orders: 1 batch is due now\n", "")
			wait(t, time.Minute, func() error {
				if accepted.Load() == 0 {
					return errors.New("the batch is not sent")
				}
				return nil
			})
			r.signal(os.Interrupt)
			if code := r.exit(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if n := refused.Load(); n != 2 {
				t.Errorf("%d refusals, want one for each time that it was tried", n)
			}
		})
	}
	do(t, nil, "retry", "-c", write(t, onePipeline("orders", unreachable, "stdout:")), "--pipeline", "other").want(t, 2, "", `--pipeline is "other"; expected orders`)
}
