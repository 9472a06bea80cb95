package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// orderedSinks keep order by key, except fast.
var orderedSinks = []buffer.Route{
	{Sink: "all", BatchSize: 100, Ordered: true},
	{Sink: "crm", Match: []string{"contact.*"}, BatchSize: 3, Ordered: true},
	{Sink: "fast", BatchSize: 100},
}

func newOrderedSinks(t *testing.T) (*testDB, *postgres.Buffer) {
	t.Helper()
	p := newMigratedDB(t, buffertest.Options{})
	return p, openSinks(t, p, "a", "", orderedSinks...)
}

// insertKeys inserts an event for each key; "" stands for NULL.
func insertKeys(t *testing.T, p *testDB, keys ...string) {
	t.Helper()
	for _, key := range keys {
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, key, payload) VALUES ('contact.new', nullif($1, ''), '{}')", key)
		check(t, err)
	}
}

// routeOrdered routes what is there, a claim of limit events after the other, and takes what it may.
func routeOrdered(t *testing.T, b *postgres.Buffer, limit int) (taken []buffer.SinkLease) {
	t.Helper()
	for {
		routed, err := b.Route(t.Context(), limit, time.Hour, func(string) bool { return true })
		check(t, err)
		if routed == nil {
			return taken
		}
		taken = append(taken, routed.Leases...)
	}
}

// takeOverKeys takes over a batch of a sink and returns the keys of its events; nil: none is ready.
func takeOverKeys(t *testing.T, b *postgres.Buffer, sink string) (*buffer.Lease, []string) {
	t.Helper()
	batch, err := b.Sink(sink).TakeOver(t.Context(), time.Hour, buffer.DueRetry)
	check(t, err)
	if batch == nil {
		return nil, nil
	}
	keys := []string{}
	for _, e := range batch.Events {
		if e.Key == nil {
			keys = append(keys, "")
		} else {
			keys = append(keys, *e.Key)
		}
	}
	return batch, keys
}

func expectKeys(t *testing.T, b *postgres.Buffer, sink string, want ...string) *buffer.Lease {
	t.Helper()
	batch, keys := takeOverKeys(t, b, sink)
	if !slices.Equal(keys, want) {
		t.Fatalf("sink %s got the keys %q, want %q", sink, keys, want)
	}
	return batch
}

func dueBatches(t *testing.T, b *postgres.Buffer, sink string) int {
	t.Helper()
	backlog, err := b.Sink(sink).CountBacklog(t.Context(), 0)
	check(t, err)
	return backlog.Due
}

// TestSinks_OrderLateCommit: an event that commits behind a later one of another key still comes before the next of its key.
func TestSinks_OrderLateCommit(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	tx, err := p.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), "INSERT INTO outbox_events (topic, key, payload) VALUES ('t', 'a', '{}')")
	check(t, err)
	insertKeys(t, p, "b", "c")
	routeOrdered(t, b, 10)
	check(t, tx.Commit(t.Context()))
	insertKeys(t, p, "a", "b")
	routeOrdered(t, b, 10)
	expectKeys(t, b, "all", "b", "c")
	expectKeys(t, b, "all", "a", "a")
	expectKeys(t, b, "all")
}

// TestSinks_OrderBacklog: with 20,000 batches that wait for a sink and the statistics of an empty ledger, neither claims nor take-overs nor counts
// read them all.
func TestSinks_OrderBacklog(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql, args...)
		check(t, err)
	}
	exec("ALTER TABLE outbox_batches SET (autovacuum_enabled = false)")
	exec("ANALYZE outbox_batches")
	insertKeys(t, p, "a")
	routeOrdered(t, b, 10)
	first := expectKeys(t, b, "all", "a")
	exec(`INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
		first_id, last_id, oldest_at, newest_at, members, sink, claim_id, seq, lanes)
		SELECT gen_random_uuid(), buffer, claim, 'waiting', 0, clock_timestamp(), '', 0, 0, 0, 1, first_id, last_id, oldest_at, newest_at, members, sink, claim_id, seq + n, ARRAY[n]
		FROM outbox_batches, generate_series(1, 20000) n WHERE group_id = $1`, first.GroupID)
	for range 10 {
		insertKeys(t, p, "b")
		routeOrdered(t, b, 1)
		if n := dueBatches(t, b, "all"); n == 0 {
			t.Fatal("no batch is ready")
		}
		if l, err := b.Sink("all").TakeOver(t.Context(), time.Hour, buffer.DueRetry); err != nil || l == nil {
			t.Fatal(l, err)
		}
	}
	check(t, b.Close()) // a session reports its statistics when it ends
	p.pool.Reset()
	var read int64
	testserver.Eventually(t, func() error {
		var inserted int64
		err := p.pool.QueryRow(t.Context(), "SELECT n_tup_ins, seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'outbox_batches'").Scan(&inserted, &read)
		if err == nil && inserted < 20_030 {
			err = fmt.Errorf("%d inserts are known", inserted)
		}
		return err
	})
	if read > 150_000 { // a count reads at most 5000
		t.Errorf("%d rows of the ledger were read, the backlog again and again", read)
	}
}
