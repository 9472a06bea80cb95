package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// During an upgrade, and after a way back, the relay works on the tables of the next version: they have columns and indexes that it does
// not know, a table more, and a migration.
func TestRun_TablesOfTheNextVersion(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err != nil || strings.Contains(string(body), "orders.bad") {
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
		}))
		t.Cleanup(api.Close)
		path := write(t, onePipeline("orders", db.url, api.URL, "    retry: {initial: 10ms, max: 10ms, max_attempts: 2}"))
		db.nextVersion()
		db.insert(3)
		db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('orders.bad', '{}')")
		run := start(t, nil, "run", "-c", path)
		testkit.Eventually(t, func() error {
			if waiting, dead := db.count("SELECT count(*) FROM outbox_events"), db.count("SELECT count(*) FROM outbox_dead_letters"); waiting > 0 || dead != 1 {
				return fmt.Errorf("%d events wait, %d dead letters", waiting, dead)
			}
			return nil
		})
		do(t, nil, "status", "-c", path).want(t, 0, "orders", "")
		if r := do(t, nil, "doctor", "-c", path); strings.Contains(r.stdout, "ERROR") {
			t.Errorf("doctor prints %s", r.stdout)
		}
		do(t, nil, "dead", "replay", "--all", "-y", "-c", path).want(t, 0, "orders: replayed 1 dead letter\n", "")
		do(t, nil, "migrate", "-c", path).want(t, 1, "", "run relay migrate of the newer relay")
		run.signal(syscall.SIGTERM)
		if code := run.exit(); code != 0 {
			t.Errorf("exit status %d", code)
		}
		do(t, nil, "verify", "-c", path).want(t, 0, "agree\n", "")
	})
}

// nextVersion changes the tables as a migration of the next version may.
func (d *database) nextVersion() {
	d.t.Helper()
	for _, table := range []string{"outbox_events", "outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_sinks", "outbox_relays", "outbox_rates"} {
		d.exec("ALTER TABLE " + table + " ADD COLUMN of_next_version integer NOT NULL DEFAULT 7")
		d.exec("ALTER TABLE " + table + " ADD COLUMN maybe_of_next_version text")
	}
	d.exec("CREATE INDEX outbox_events_of_next_version ON outbox_events (of_next_version)")
	d.exec("CREATE TABLE outbox_of_next_version (id integer)")
	d.exec("INSERT INTO outbox_events_migrations (version_id, is_applied) VALUES (2, true)")
}
