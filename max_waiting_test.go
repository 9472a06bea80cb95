package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// TestMaxWaiting_BadEvents: as many events as may wait fail in their projection. A good one behind them is claimed all the same, which shows that they
// are to blame.
func TestMaxWaiting_BadEvents(t *testing.T) {
	t.Parallel()
	for name, sinks := range map[string]string{
		"OneSink":      "sink: {url: \"file://%[1]s/out.ndjson\"}",
		"SeveralSinks": "sinks: [{name: a, url: \"file://%[1]s/a.ndjson\"}, {name: b, url: \"file://%[1]s/b.ndjson\"}]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			db, err := sql.Open("sqlite", "file:"+dir+"/app.db?_pragma=busy_timeout(20000)")
			testkit.NoError(t, err)
			exec := func(statement string) {
				t.Helper()
				_, err := db.ExecContext(t.Context(), statement)
				testkit.NoError(t, err)
			}
			exec("CREATE TABLE things (id INTEGER PRIMARY KEY AUTOINCREMENT, amount TEXT, group_id TEXT)")
			text := fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: things
    source:
      url: "sqlite://%[1]s/app.db"
      table: things
      project: SELECT e.id, 'a' AS topic, json_object('amount', json(e.amount)) AS payload FROM {events} e
    max_waiting: 3
    `+sinks+"\n", dir)
			r, err := relay.Open(filepath.Join(dir, "relay.yaml"), relay.Options{Text: []byte(text), Log: slog.New(slog.DiscardHandler)})
			testkit.NoError(t, err)
			_, err = r.Migrate(t.Context())
			testkit.NoError(t, err)
			for range 6 {
				exec("INSERT INTO things (amount) VALUES ('bad')")
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				testkit.NoError(t, <-ended)
				testkit.NoError(t, r.Close())
				testkit.NoError(t, db.Close())
			})
			one := func(statement string) (n int) {
				t.Helper()
				testkit.NoError(t, db.QueryRowContext(t.Context(), statement).Scan(&n))
				return n
			}
			testkit.Eventually(t, func() error {
				if n := one("SELECT count(*) FROM outbox_batches WHERE state = 'waiting' AND outages > 0"); n < 3 {
					return fmt.Errorf("%d batches wait", n)
				}
				return nil
			})
			testkit.Eventually(t, func() error { // one that fails after the last good event waits for the next one
				exec("INSERT INTO things (amount) VALUES ('1')")
				if dead := one("SELECT count(*) FROM outbox_dead_letters"); dead != 6 {
					return fmt.Errorf("%d events are dead", dead)
				}
				return nil
			})
			testkit.Eventually(t, func() error {
				if left := one("SELECT count(*) FROM things"); left > 0 {
					return fmt.Errorf("%d events are left", left)
				}
				return nil
			})
		})
	}
}

// TestMaxWaiting_BadLater: as many events as may wait were good when they were routed to two sinks, and fail in their projection when they are sent
// again. Good ones behind them are claimed all the same, and show that they are to blame.
func TestMaxWaiting_BadLater(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	db, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close(context.Background())) })
	exec := func(statement string) {
		t.Helper()
		_, err := db.Exec(t.Context(), statement)
		testkit.NoError(t, err)
	}
	one := func(statement string) (n int) {
		t.Helper()
		testkit.NoError(t, db.QueryRow(t.Context(), statement).Scan(&n))
		return n
	}
	var away atomic.Bool
	away.Store(true)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil || away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(api.Close)
	exec("CREATE TABLE things (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount text, group_id uuid)")
	text := fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: things
    source:
      url: %q
      table: things
      project: SELECT e.id, 'a' AS topic, jsonb_build_object('amount', e.amount::numeric) AS payload FROM {events} e
    max_waiting: 3
    batch_size: 1
    retry: {max: 1s}
    sinks:
      - {name: a, url: %[2]q}
      - {name: b, url: "%[2]s/b"}
`, url, api.URL)
	r, err := relay.Open(filepath.Join(t.TempDir(), "relay.yaml"), relay.Options{Text: []byte(text), Log: slog.New(slog.DiscardHandler)})
	testkit.NoError(t, err)
	_, err = r.Migrate(t.Context())
	testkit.NoError(t, err)
	exec("INSERT INTO things (amount) SELECT '1' FROM generate_series(1, 3)")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-ended)
		testkit.NoError(t, r.Close())
	})
	testserver.Eventually(t, func() error {
		exec("UPDATE outbox_batches SET due_at = clock_timestamp() WHERE state = 'waiting'") // nothing else is claimed while both are away
		if n := one("SELECT count(*) FROM outbox_batches WHERE sink IN ('a', 'b')"); n < 6 {
			return fmt.Errorf("%d batches are routed", n)
		}
		return nil
	})
	exec("UPDATE things SET amount = 'bad'")
	away.Store(false)
	testserver.Eventually(t, func() error {
		if n := one("SELECT count(*) FROM outbox_batches WHERE state = 'waiting' AND error LIKE '%projection%'"); n < 6 {
			return fmt.Errorf("%d batches wait for their projection", n)
		}
		return nil
	})
	testserver.Eventually(t, func() error { // one that fails after the last good event waits for the next one
		exec("INSERT INTO things (amount) VALUES ('1')")
		if dead := one("SELECT count(*) FROM outbox_dead_letters"); dead != 6 {
			return fmt.Errorf("%d events are dead", dead)
		}
		return nil
	})
	testserver.Eventually(t, func() error {
		if left := one("SELECT count(*) FROM things"); left > 0 {
			return fmt.Errorf("%d events are left", left)
		}
		return nil
	})
}
