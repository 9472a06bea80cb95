package inserttest

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/outbox/sqliteoutbox"
)

// database makes a file with the relay's tables.
func database(t *testing.T, c sqlite.SchemaConfig) (db *sql.DB, url string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	url = "sqlite://" + path
	_, err := sqlite.Migrate(t.Context(), url, c)
	testkit.NoError(t, err)
	db, err = sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(20000)")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close()) })
	return db, url
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	testkit.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM outbox_events").Scan(&n))
	return n
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	testkit.NoError(t, err)
	t.Cleanup(func() {
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			t.Error(err)
		}
	})
	return tx
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	key := "customer-7"
	for _, opaque := range []bool{false, true} {
		db, url := database(t, sqlite.SchemaConfig{Table: "my events", Bytes: opaque})
		buffer, err := sqlite.Open(sqlite.Config{URL: url, Table: "my events", Pipeline: "orders"})
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, buffer.Close()) })
		table := sqliteoutbox.Table{Name: "my events", Bytes: opaque}
		events := make([]outbox.Event, 1234) // several statements, the last one not full
		for i := range events {
			events[i] = outbox.Event{Topic: fmt.Sprintf("topic.%d", i), Payload: fmt.Appendf(nil, `{"order": %d}`, i), ID: 99, CreatedAt: time.Unix(0, 0)}
			if i%2 == 0 {
				events[i].Key, events[i].Headers = &key, outbox.NewHeaders(map[string]string{"i": "é\"\\"})
			}
			if opaque && i%3 == 0 {
				events[i].Payload = []byte{0xff, 0, byte(i)}
			}
			if opaque && i%5 == 0 {
				events[i].Payload = []byte{}
			}
		}
		tx := begin(t, db)
		testkit.NoError(t, table.Insert(t.Context(), tx))
		testkit.NoError(t, table.Insert(t.Context(), tx, events...))
		testkit.NoError(t, tx.Commit())

		b, err := buffer.Claim(t.Context(), 2000, time.Hour)
		testkit.NoError(t, err)
		if len(b.Events) != len(events) {
			t.Fatalf("%d events came out, want %d", len(b.Events), len(events))
		}
		for i, got := range b.Events {
			want := events[i]
			same := got.Topic == want.Topic && string(got.Payload) == string(want.Payload) && string(got.Headers) == string(want.Headers) &&
				(got.Headers == nil) == (want.Headers == nil) && (got.Key == nil) == (want.Key == nil) && (got.Key == nil || *got.Key == *want.Key)
			if !same || time.Since(got.CreatedAt) > time.Hour {
				t.Fatalf("event %d came out as %+v, want %+v", i, got, want)
			}
		}
	}
}

func TestSQLite_RollsBack(t *testing.T) {
	t.Parallel()
	db, _ := database(t, sqlite.SchemaConfig{})
	tx := begin(t, db)
	testkit.NoError(t, sqliteoutbox.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("1")}))
	testkit.NoError(t, tx.Rollback())
	if n := count(t, db); n != 0 {
		t.Fatalf("%d events are there after a rollback", n)
	}
}

// TestSQLite_Delayed: delayed events are inserted with others, and not claimed before their time, whatever the application's zone.
func TestSQLite_Delayed(t *testing.T) {
	t.Parallel()
	db, url := database(t, sqlite.SchemaConfig{})
	buffer, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "p"})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, buffer.Close()) })
	at := time.Now().Add(36 * time.Hour).In(time.FixedZone("", 5*3600)).Truncate(time.Millisecond).Add(time.Microsecond)
	events := someEvents()
	events[0].AvailableAt, events[2].AvailableAt = at, time.Date(-7, 1, 1, 0, 0, 0, 0, time.UTC)
	tx := begin(t, db)
	testkit.NoError(t, sqliteoutbox.Insert(t.Context(), tx, events...))
	testkit.NoError(t, tx.Commit())
	b, err := buffer.Claim(t.Context(), 100, lease)
	testkit.NoError(t, err)
	if b == nil || b.Len() != 2 || string(b.Events[0].Payload) != `{"id": 2}` || string(b.Events[1].Payload) != "null" {
		t.Fatalf("claimed %+v, want the second and the third event", b)
	}
	s, err := buffer.Status(t.Context())
	testkit.NoError(t, err)
	if wait := time.Until(at); s.NextDelayed < wait-time.Minute || s.NextDelayed > wait+time.Minute {
		t.Errorf("the next is available in %v, want %v", s.NextDelayed, wait)
	}
	var stored string
	testkit.NoError(t, db.QueryRow("SELECT available_at FROM outbox_events WHERE group_id IS NULL AND available_at IS NOT NULL ORDER BY available_at DESC").Scan(&stored))
	if want := at.Add(time.Millisecond).Truncate(time.Millisecond).UTC().Format("2006-01-02T15:04:05.000Z"); stored != want {
		t.Errorf("available_at is %s, want %s: it must not be earlier", stored, want)
	}
	for _, bad := range []string{"tomorrow", "", "2026-01-01 00:00:00", "now"} {
		if _, err := db.Exec("INSERT INTO outbox_events (topic, payload, available_at) VALUES ('t', '1', ?)", bad); err == nil || !strings.Contains(err.Error(), "CHECK") {
			t.Errorf("available_at = %q: got error %v", bad, err)
		}
	}
}

// TestSQLite_RejectsInvalidEvents: if one event is invalid none is inserted, and the transaction
// can continue.
func TestSQLite_RejectsInvalidEvents(t *testing.T) {
	t.Parallel()
	db, _ := database(t, sqlite.SchemaConfig{})
	good := outbox.Event{Topic: "t", Payload: []byte("1")}
	tx := begin(t, db)
	for says, bad := range map[string]outbox.Event{
		"topic is empty":      {Payload: []byte("1")},
		"payload is not JSON": {Topic: "t", Payload: []byte("{")},
		"payload is empty":    {Topic: "t"},
		"headers are not":     {Topic: "t", Payload: []byte("1"), Headers: outbox.Headers("[]")},
		"available_at is 3":   {Topic: "t", Payload: []byte("1"), AvailableAt: time.Now().AddDate(1000, 0, 0)},
	} {
		err := sqliteoutbox.Insert(t.Context(), tx, good, bad, good)
		if !errors.Is(err, outbox.ErrInvalidEvent) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "event 2 of 3") {
			t.Errorf("Insert: got error %v, want one that names event 2 and says %q", err, says)
		}
	}
	testkit.NoError(t, sqliteoutbox.Insert(t.Context(), tx, good))
	testkit.NoError(t, tx.Commit())
	if n := count(t, db); n != 1 {
		t.Fatalf("%d events are there, want the one good insert", n)
	}
}

func TestSQLite_WithoutTable(t *testing.T) {
	t.Parallel()
	db, _ := database(t, sqlite.SchemaConfig{})
	err := sqliteoutbox.Table{Name: "none"}.Insert(t.Context(), begin(t, db), outbox.Event{Topic: "t", Payload: []byte("1")})
	if err == nil || !strings.Contains(err.Error(), "into none") {
		t.Fatalf("Insert into a table that is not there: got error %v", err)
	}
}
