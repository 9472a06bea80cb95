package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func isNotReady(err error) bool { return errors.Is(err, buffer.ErrNotReady) }

func TestOpen_RejectsConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []sqlite.Config{
		{},
		{URL: "sqlite:///a.db"},
		{Pipeline: "p"},
		{Pipeline: "p", URL: "sqlite://a.db"},
		{Pipeline: "p", URL: "sqlite:a.db"},
		{Pipeline: "p", URL: "sqlite:///a.db?mode=memory"},
		{Pipeline: "p", URL: "postgres:///a.db"},
		{Pipeline: "p", URL: "/a.db"},
		{Pipeline: "p", URL: "sqlite:///%zz"},
	} {
		if b, err := sqlite.Open(c); err == nil {
			t.Errorf("Open took %+v: %v", c, b.Close())
		}
	}
}

// TestCheck_File: every call reports the fault of the file.
func TestCheck_File(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	garbage := filepath.Join(folder, "garbage.db")
	testkit.NoError(t, os.WriteFile(garbage, []byte("this is not a database, and it is long enough to have a header of its own, which it has not"), 0o600))
	missing := filepath.Join(folder, "missing.db")
	for file, says := range map[string]string{
		missing:                               "relay migrate -c relay.yaml",
		garbage:                               "not a SQLite database",
		folder:                                "cannot be opened",
		filepath.Join(folder, "none", "a.db"): "mkdir -p",
	} {
		b, err := sqlite.Open(sqlite.Config{URL: urlOf(file), Pipeline: "orders"})
		testkit.NoError(t, err)
		expectNotReady(t, b.Check(t.Context()), says)
		_, err = b.Claim(t.Context(), 1, time.Minute)
		expectNotReady(t, err, says)
		_, err = b.Status(t.Context())
		expectNotReady(t, err, says)
		testkit.NoError(t, b.Close())
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("looking at a missing file made one: %v", err)
	}
}

func TestCheck_Autoincrement(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	_, err := db.Exec(`CREATE TABLE outbox_events (id INTEGER PRIMARY KEY, topic TEXT, key TEXT, payload TEXT, headers TEXT, created_at TEXT, group_id TEXT)`)
	testkit.NoError(t, err)
	migrate(t, url, sqlite.SchemaConfig{})
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders"})
	testkit.NoError(t, err)
	expectNotReady(t, b.Check(t.Context()), "AUTOINCREMENT")
	testkit.NoError(t, b.Close())
}

// TestClaim_NullLanes: lanes that are a JSON null, as of a change by hand, hold no key.
func TestClaim_NullLanes(t *testing.T) {
	t.Parallel()
	db, url := database(t)
	migrate(t, url, sqlite.SchemaConfig{})
	b, err := sqlite.Open(sqlite.Config{URL: url, Pipeline: "orders", Ordered: true})
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, b.Close()) }()
	exec(t, db, "INSERT INTO outbox_events (topic, key, payload) VALUES ('t', 'a', '1'), ('t', 'b', '2')")
	for range 2 {
		if batch, err := b.Claim(t.Context(), 1, time.Minute); err != nil || batch == nil {
			t.Fatalf("claimed %+v, %v", batch, err)
		}
		exec(t, db, "UPDATE outbox_batches SET lanes = 'null'")
	}
}

// TestClaim_WaitsForOtherWriter: a claim waits for an application's open transaction, at most for
// the busy timeout.
func TestClaim_WaitsForOtherWriter(t *testing.T) {
	t.Parallel()
	f := harness("outbox_events", buffer.ClaimStamp).Open(t, buffertest.Options{Claim: buffer.ClaimStamp})
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("1")})
	tx := f.Begin(t)
	defer tx.Rollback(t)
	tx.Insert(t, outbox.Event{Topic: "t", Payload: []byte("2")})

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Buffer.Claim(ctx, 10, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Claim under another's lock: got error %v, want the context's", err)
	}
	backlog, err := f.Buffer.CountBacklog(t.Context(), 10) // readers do not wait
	testkit.NoError(t, err)
	if backlog.Unclaimed != 1 {
		t.Fatalf("CountBacklog during an open transaction: got %+v; want one unclaimed event", backlog)
	}

	claimed := make(chan *buffer.Lease, 1)
	go func() {
		defer close(claimed)
		b, err := f.Buffer.Claim(t.Context(), 10, time.Minute)
		if err != nil {
			t.Errorf("Claim: %v", err)
		}
		claimed <- b
	}()
	tx.Commit(t)
	if b := <-claimed; b == nil || len(b.Events) != 2 {
		t.Fatalf("Claim after the lock was gone: %+v, want both events", b)
	}
}
