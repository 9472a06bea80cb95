package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// A long transaction of the application locks the buffer, so that Migrate must wait. The
// relay claims and settles meanwhile.
func TestMigrate_LetsTheRelayWorkWhileItWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage  string
		applied []string
	}{
		"NewVersion": {"DELETE FROM outbox_events_migrations WHERE version_id = 1", []string{"0001_outbox.sql"}},
		"LostTable":  {"DROP TABLE outbox_dead_letters", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newMigratedDB(t, buffertest.Options{})
			f := p.fixture(t, "outbox_events", "orders")
			check(t, f.Buffer.Check(t.Context()))
			f.Exec(t, c.damage)
			writer := f.Begin(t)
			defer writer.Rollback(t)
			writer.Exec(t, "LOCK TABLE outbox_events IN ROW EXCLUSIVE MODE")

			var applied []string
			migrated := make(chan error, 1)
			go func() {
				var err error
				applied, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
				migrated <- err
			}()
			for range 2 {
				testserver.Eventually(t, func() error {
					var waits int
					err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
						WHERE NOT granted AND mode IN ('ShareLock', 'ShareRowExclusiveLock') AND relation = 'outbox_events'::regclass`).Scan(&waits)
					if err == nil && waits == 0 {
						err = errors.New("the migration does not wait")
					}
					return err
				})
				ids := f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("1")})
				b, err := f.Buffer.Claim(t.Context(), 10, lease)
				check(t, err)
				expectIDs(t, "claimed", b.IDs(), ids)
				testserver.Eventually(t, func() error { // it waits for a lock no longer than half of deadlock_timeout
					return f.Buffer.Settle(t.Context(), b, []buffer.Outcome{{Verdict: buffer.Delivered}})
				})
			}
			select {
			case err := <-migrated:
				t.Fatalf("migrated although the buffer is locked: %v", err)
			default:
			}
			writer.Rollback(t)
			check(t, <-migrated)
			if diff := cmp.Diff(c.applied, applied); diff != "" {
				t.Errorf("applied (-want +got):\n%s", diff)
			}
			check(t, checkError(t, p.url, ""))
		})
	}

	ddl, err := postgres.Schema(postgres.SchemaConfig{})
	check(t, err)
	if strings.Contains(ddl, "lock_timeout") {
		t.Errorf("the printed DDL is for a session that has its own lock_timeout:\n%s", ddl)
	}
}
