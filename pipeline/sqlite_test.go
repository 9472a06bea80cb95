package pipeline_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/outbox/sqliteoutbox"
	"github.com/outboxrelay/relay/pipeline"
)

// file is a SQLite file and the application that works in it.
type file struct {
	url string
	app *sql.DB
}

func newFile(t testing.TB) *file {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	f := &file{url: "sqlite://" + path}
	_, err := sqlite.Migrate(t.Context(), f.url, sqlite.SchemaConfig{})
	testkit.NoError(t, err)
	f.app, err = sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(20000)")
	testkit.NoError(t, err)
	f.app.SetMaxOpenConns(1)
	t.Cleanup(func() { testkit.NoError(t, f.app.Close()) })
	return f
}

func (f *file) buffer(t testing.TB, owner string) *sqlite.Buffer {
	t.Helper()
	b, err := sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: owner})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	return b
}

// transaction inserts n events, and commits or rolls back.
func (f *file) transaction(t testing.TB, n int, commit bool) {
	t.Helper()
	tx, err := f.app.BeginTx(t.Context(), nil)
	testkit.NoError(t, err)
	for range n {
		testkit.NoError(t, sqliteoutbox.Insert(t.Context(), tx, outbox.Event{Topic: "orders", Payload: []byte(`{"n":1}`)}))
	}
	if commit {
		testkit.NoError(t, tx.Commit())
	} else {
		testkit.NoError(t, tx.Rollback())
	}
}

func (f *file) exec(t testing.TB, statement string) {
	t.Helper()
	_, err := f.app.ExecContext(t.Context(), statement)
	testkit.NoError(t, err)
}

func (f *file) queryValue(t testing.TB, query string) (n int64) {
	t.Helper()
	testkit.NoError(t, f.app.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

func (f *file) expectDrained(t testing.TB) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if n := f.queryValue(t, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"); n > 0 {
			return fmt.Errorf("%d events and batches are left", n)
		}
		return nil
	})
}

// upTo are the ids 1 to n, which AUTOINCREMENT gives to committed events.
func upTo(n int64) (ids []int64) {
	for id := range n {
		ids = append(ids, id+1)
	}
	return ids
}

// Two processes, an application with roll-backs, and a flaky sink.
func TestSQLite(t *testing.T) {
	t.Parallel()
	f, to := newFile(t), redisAt(t, testserver.SharedRedis(t))
	f.transaction(t, 2000, true)
	for i := range 2 {
		start(t, f.buffer(t, fmt.Sprint("relay-", i)), flakySink(to), nil)
	}
	for i := range 40 {
		f.transaction(t, 1+i, i%3 != 2)
	}
	last := f.queryValue(t, "SELECT seq FROM sqlite_sequence WHERE name = 'outbox_events'")
	f.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), upTo(last))
	testkit.Equal(t, "dead letters", f.queryValue(t, "SELECT count(*) FROM outbox_dead_letters"), 0)
}

func TestSQLite_PoisonEvent(t *testing.T) {
	t.Parallel()
	f, r := newFile(t), newReceiver(t)
	to := httpAt(t, r)
	f.transaction(t, 300, true)
	r.answers(func(ids []int64) int {
		if slices.Contains(ids, 77) {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	start(t, f.buffer(t, "relay"), to, nil)
	f.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), without(upTo(300), 77))
	testkit.Equal(t, "the dead letter", f.queryValue(t, "SELECT group_concat(event_id) FROM outbox_dead_letters"), 77)
}

// A trigger keeps what the relay deletes: each event is sent once, readiness fails, doctor names the trigger, and the events go
// when it has gone.
func TestSQLite_KeptEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		table, project, first string
	}{
		"relay's own table": {"outbox_events", "", ""},
		"custom table": {
			"changes", "SELECT id, 'orders' AS topic, '{}' AS payload FROM {events}",
			"UPDATE changes SET deleted_at = 'now' WHERE id = OLD.id;",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, to := newFile(t), redisAt(t, testserver.SharedRedis(t))
			f.exec(t, "CREATE TABLE changes (id INTEGER PRIMARY KEY AUTOINCREMENT, topic, payload, deleted_at TEXT, group_id TEXT)")
			_, err := sqlite.Migrate(t.Context(), f.url, sqlite.SchemaConfig{Table: c.table, Custom: c.project != ""})
			testkit.NoError(t, err)
			f.exec(t, fmt.Sprintf(`CREATE TRIGGER "soft delete" BEFORE DELETE ON %s BEGIN %s SELECT RAISE(IGNORE); END`, c.table, c.first))
			for range 25 {
				f.exec(t, fmt.Sprintf("INSERT INTO %s (topic, payload) VALUES ('orders', '{}')", c.table))
			}
			b, err := sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: "relay", Table: c.table, Custom: buffer.CustomTable{ID: "id", Project: c.project}})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			p := start(t, b, to, oneBatch)
			testserver.Eventually(t, func() error { // each batch is tried again
				tried := f.queryValue(t, "SELECT coalesce(sum(events), 0) FROM outbox_batches WHERE state = 'delivered' AND lease_no > 1")
				if tried != 25 {
					return fmt.Errorf("the delete of %d events was tried again; want 25", tried)
				}
				return nil
			})
			if reason := expectClass(t, p, "stalled"); !strings.Contains(reason, "were not deleted") {
				t.Errorf("the reason is %q; want that events were not deleted", reason)
			}
			named := func(f buffer.Finding) bool {
				return strings.Contains(f.Text, `"soft delete"`) && f.Level != buffer.LevelOK
			}
			if found := b.Diagnose(t.Context()); !slices.ContainsFunc(found, named) {
				t.Errorf("doctor found %+v", found)
			}
			f.exec(t, `DROP TRIGGER "soft delete"`)
			testserver.Eventually(t, func() error {
				if n := f.queryValue(t, fmt.Sprintf("SELECT (SELECT count(*) FROM %s) + (SELECT count(*) FROM outbox_batches)", c.table)); n > 0 {
					return fmt.Errorf("%d events and batches are left", n)
				}
				return nil
			})
			expectOnce(t, to.arrived(t, "orders"), upTo(25))
			p.expectReady(t)
		})
	}
}

// A writer that holds the file longer than anybody waits for it.
func TestSQLite_Busy(t *testing.T) {
	t.Parallel()
	f, to := newFile(t), redisAt(t, testserver.SharedRedis(t))
	log := &lockedBuffer{}
	start(t, f.buffer(t, "relay"), to, func(c *pipeline.Config) { c.Log = logInto(t, log) }).expectReady(t)
	f.transaction(t, 20_000, true)
	tx, err := f.app.BeginTx(t.Context(), nil)
	testkit.NoError(t, err)
	testserver.Eventually(t, func() error {
		if log.count("level=WARN") == 0 {
			return errors.New("no writer was locked out")
		}
		return nil
	})
	testkit.NoError(t, tx.Rollback())
	f.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), upTo(20_000))
}
