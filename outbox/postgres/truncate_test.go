package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// TRUNCATE ... RESTART IDENTITY locks the table and then its sequence. A claim and
// a look that wait for the table must not hold the sequence meanwhile.
func TestTruncateDoesNotDeadlockWithTheRelay(t *testing.T) {
	t.Parallel()
	p := newPlace(t, testserver.Postgres(t), buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	if _, err := f.Buffer.Look(t.Context(), 100); err != nil { // sees the database once
		t.Fatal(err)
	}
	tx, err := p.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
	check(t, err)

	var relay errgroup.Group
	relay.Go(func() error {
		_, err := f.Buffer.Look(t.Context(), 100)
		return err
	})
	relay.Go(func() error {
		_, err := f.Buffer.Claim(t.Context(), 10, time.Hour)
		return err
	})
	testserver.Eventually(t, func() error {
		var n int
		err := p.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()`).Scan(&n)
		if err == nil && n < 2 {
			err = fmt.Errorf("%d wait for a lock, look and claim were expected", n)
		}
		return err
	})
	if _, err := tx.Exec(t.Context(), "TRUNCATE outbox_events RESTART IDENTITY"); err != nil {
		t.Errorf("the application was the victim: %v", err)
	}
	check(t, tx.Commit(t.Context()))
	if err := relay.Wait(); err != nil {
		t.Errorf("the relay was the victim: %v", err)
	}
}
