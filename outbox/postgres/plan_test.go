package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffertest"
)

// Statistics taken while all there was had been claimed say that hardly any event
// is unclaimed. A plan that believes them reads the whole backlog for each claim,
// and for each count.
func TestStatisticsThatAreWrongCostNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, testserver.Postgres(t), buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	insert := func(n int) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, $1::int)", n)
		check(t, err)
	}
	f.Exec(t, "ALTER TABLE outbox_events SET (autovacuum_enabled = false)")
	insert(2000)
	if _, err := f.Buffer.Look(t.Context(), 1); err != nil { // the first one looks everywhere
		t.Fatal(err)
	}
	if b, err := f.Buffer.Claim(t.Context(), 2000, time.Hour); err != nil || len(b.Events) != 2000 {
		t.Fatalf("claimed %v, %v", b, err)
	}
	f.Exec(t, "ANALYZE outbox_events")
	insert(30_000)

	for range 10 {
		if _, err := f.Buffer.Look(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if b, err := f.Buffer.Claim(t.Context(), 10, time.Hour); err != nil || len(b.Events) != 10 {
			t.Fatalf("claimed %v, %v", b, err)
		}
	}

	check(t, f.Buffer.Close()) // sessions that end give their counts away
	p.pool.Reset()
	var read int64
	testserver.Eventually(t, func() error {
		var updates, inserts int64
		err := p.pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_ins, seq_tup_read + idx_tup_fetch
			FROM pg_stat_user_tables WHERE relname = 'outbox_events'`).Scan(&updates, &inserts, &read)
		if err == nil && (updates < 2100 || inserts < 32_000) {
			err = fmt.Errorf("%d updates and %d inserts are known, 2100 and 32000 were expected", updates, inserts)
		}
		return err
	})
	if read > 100_000 {
		t.Errorf("%d rows were read, the backlog again and again", read)
	}
}
