package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/internal/testkit"
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
