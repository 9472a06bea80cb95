package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// Statistics that are wrong do not make a claim that keeps order read the backlog.
func TestPlans_Ordered(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Ordered: true})
	f := p.fixture(t, "outbox_events", "orders")
	insert := func(n int) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, key, payload) SELECT 't', gen_random_uuid(), '{}' FROM generate_series(1, $1::int)", n)
		check(t, err)
	}
	f.Exec(t, "ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
	f.Exec(t, "ALTER TABLE outbox_batches SET (autovacuum_enabled = false)")
	f.Exec(t, "ANALYZE outbox_batches")
	insert(2000)
	if b, err := f.Buffer.Claim(t.Context(), 2000, time.Hour); err != nil || len(b.Events) != 2000 {
		t.Fatalf("claimed %v, %v", b, err)
	}
	f.Exec(t, "ANALYZE outbox_events")
	insert(30_000)
	for range 10 {
		if b, err := f.Buffer.Claim(t.Context(), 10, time.Hour); err != nil || len(b.Events) != 10 {
			t.Fatalf("claimed %v, %v", b, err)
		}
	}
	check(t, f.Buffer.Close()) // a session reports its statistics when it ends
	p.pool.Reset()
	var read int64
	testserver.Eventually(t, func() error {
		var updates, inserts int64
		err := p.pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_ins, seq_tup_read + idx_tup_fetch
			FROM pg_stat_user_tables WHERE relname = 'outbox_events'`).Scan(&updates, &inserts, &read)
		if err == nil && (updates < 2100 || inserts < 32_000) {
			err = fmt.Errorf("%d updates and %d inserts are known; want 2100 and 32000", updates, inserts)
		}
		return err
	})
	if read > 100_000 {
		t.Errorf("%d rows were read, the backlog again and again", read)
	}
}

// A claim in the other mode that is under way keeps the mode as it is.
func TestClaimMode_WaitsForOrdered(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Ordered: true})
	f := p.fixture(t, "outbox_events", "orders")
	f.Insert(t, outbox.Event{Topic: "t", Payload: []byte("{}")})
	check(t, f.Plain(t).Check(t.Context()))
	ctx := t.Context()
	tx, err := p.pool.Begin(ctx)
	check(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // it was committed, or the test has failed
	_, err = tx.Exec(ctx, `INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
			attempts, outages, events, first_id, last_id, oldest_at)
		SELECT gen_random_uuid(), buffer, 'stamp', 'leased', 1, now() + interval '1h', 'other', 1, 0, 0, 1, 1, 1, now()
		FROM outbox_buffers`)
	check(t, err)
	claimed := make(chan error, 1)
	go func() {
		_, err := f.Buffer.Claim(ctx, 10, lease)
		claimed <- err
	}()
	testserver.Eventually(t, func() error { // it waits, or has waited long enough
		var waits bool
		err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks
			WHERE relation = 'outbox_batches'::regclass AND mode = 'ShareLock' AND NOT granted)`).Scan(&waits)
		if err == nil && !waits && len(claimed) == 0 {
			err = errors.New("no session waits for the claim")
		}
		return err
	})
	check(t, tx.Commit(ctx))
	if err := <-claimed; err == nil {
		t.Error("the claim in order says nothing")
	}
	var mode string
	check(t, p.pool.QueryRow(ctx, "SELECT claim FROM outbox_buffers").Scan(&mode))
	if mode != "range" {
		t.Errorf("the mode is %q, while a batch lives that was claimed in the other", mode)
	}
	f.Exec(t, "DELETE FROM outbox_batches")
	testserver.Eventually(t, func() error {
		b, err := f.Buffer.Claim(ctx, 10, lease)
		if err == nil && b == nil {
			err = errors.New("nothing was claimed")
		}
		return err
	})
}
