package db_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// TestFollower_WaitsForOldConnections: another file is opened when no connection of the process to the old one is left,
// because they would share what SQLite knows of it.
func TestFollower_WaitsForOldConnections(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	made, err := db.Open(file, "rwc", "journal_mode(WAL)")
	testkit.NoError(t, err)
	testkit.NoError(t, made.PingContext(t.Context()))
	testkit.NoError(t, made.Close())
	pool := db.NewFollower(file).Open("rw", 1, nil)
	other := db.NewFollower(file)
	otherPool := other.Open("rw", 1, nil)
	old, err := pool.Conn(t.Context())
	testkit.NoError(t, err)
	for _, suffix := range []string{"-wal", "-shm"} {
		testkit.NoError(t, os.Remove(file+suffix))
	}
	testkit.NoError(t, other.Check())

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := otherPool.Conn(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("opened beside a connection to the old file: %v", err)
	}
	testkit.NoError(t, old.Close())
	testkit.NoError(t, otherPool.PingContext(t.Context()))
	testkit.NoError(t, pool.PingContext(t.Context()))
	testkit.NoError(t, pool.Close())
	testkit.NoError(t, otherPool.Close())
}
