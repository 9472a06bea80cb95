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

// TestSinks_Order: a key waits behind its earlier events in its own sink only. A batch of which a part waits is cut, and loses nothing.
func TestSinks_Order(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	insertKeys(t, p, "a", "b", "a", "c", "", "a", "b")
	taken := routeOrdered(t, b, 2) // (a b) (a c) ("" a) (b)
	if len(taken) != 4 || slices.ContainsFunc(taken, func(l buffer.SinkLease) bool { return l.Sink != "fast" }) {
		t.Fatalf("%d batches were taken at the route; want the 4 of the sink without order", len(taken))
	}
	for _, l := range taken {
		check(t, b.Sink("fast").Settle(t.Context(), l.Lease, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	}
	if n := dueBatches(t, b, "all"); n != 3 {
		t.Errorf("%d batches are ready, want those with c and without a key behind the first", n)
	}
	first := expectKeys(t, b, "all", "a", "b")
	c := expectKeys(t, b, "all", "c")
	none := expectKeys(t, b, "all", "")
	expectKeys(t, b, "all")
	if n := dueBatches(t, b, "all"); n != 0 {
		t.Errorf("%d batches are ready while all wait for the first", n)
	}
	other := expectKeys(t, b, "crm", "a", "b") // not held back by the other sink
	settle := func(sink string, l *buffer.Lease, o ...buffer.Outcome) {
		t.Helper()
		check(t, b.Sink(sink).Settle(t.Context(), l, o))
	}
	delivered := buffer.Outcome{Verdict: buffer.Delivered}
	settle("crm", other, delivered)
	settle("all", none, delivered)
	// a is refused, b is delivered.
	settle("all", first, buffer.Outcome{Verdict: buffer.Delivered, IDs: first.IDs()[1:]},
		buffer.Outcome{Verdict: buffer.Retry, IDs: first.IDs()[:1], GroupID: buffer.NewGroupID(), After: time.Hour, Attempts: 1, Error: "refused"})
	settle("all", c, delivered)
	b2 := expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
	settle("all", b2, delivered)
	_, err := p.pool.Exec(t.Context(), "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'")
	check(t, err)
	for range 3 {
		settle("all", expectKeys(t, b, "all", "a"), delivered)
	}
	for _, want := range [][]string{{"a", "c"}, {"", "a"}, {"b"}} {
		settle("crm", expectKeys(t, b, "crm", want...), delivered)
	}
	expectKeys(t, b, "all")
	if n := countRows(t, p, "outbox_events") + countRows(t, p, "outbox_batches"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// TestSinks_OrderUnrouted: a batch that is claimed and not routed yet comes before the later ones of its keys.
func TestSinks_OrderUnrouted(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	insertKeys(t, p, "a")
	if l, err := b.Claim(t.Context(), 1, time.Hour); err != nil || l == nil { // its process ends
		t.Fatal(l, err)
	}
	insertKeys(t, p, "a", "b")
	routeOrdered(t, b, 10)
	l := expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
	_, err := p.pool.Exec(t.Context(), "UPDATE outbox_batches SET due_at = clock_timestamp() WHERE sink = '*'")
	check(t, err)
	if routed, err := b.RouteDue(t.Context(), time.Hour); err != nil || routed == nil {
		t.Fatal(routed, err)
	}
	if first := expectKeys(t, b, "all", "a"); first.FirstID >= l.FirstID {
		t.Errorf("event %d came first", first.FirstID)
	}
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

// TestSinks_OrderHalves: halves of a batch that was sent are taken in turn, and neither is cut.
func TestSinks_OrderHalves(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	insertKeys(t, p, "a", "b", "a", "c")
	routeOrdered(t, b, 10)
	l := expectKeys(t, b, "all", "a", "b", "a", "c")
	half := func(ids []int64) buffer.Outcome {
		return buffer.Outcome{Verdict: buffer.Retry, IDs: ids, GroupID: buffer.NewGroupID()}
	}
	insertKeys(t, p, "c", "d")
	routeOrdered(t, b, 10)
	check(t, b.Sink("all").Settle(t.Context(), l, []buffer.Outcome{half(l.IDs()[:2]), half(l.IDs()[2:])}))
	expectKeys(t, b, "all", "d") // it was due before the halves
	first := expectKeys(t, b, "all", "a", "b")
	expectKeys(t, b, "all")
	check(t, b.Sink("all").Settle(t.Context(), first, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	second := expectKeys(t, b, "all", "a", "c")
	expectKeys(t, b, "all")
	check(t, b.Sink("all").Settle(t.Context(), second, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	expectKeys(t, b, "all", "c")
}

// TestSinks_OrderReplay: what is replayed comes behind what waits, and claims go on.
func TestSinks_OrderReplay(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	insertKeys(t, p, "a", "b")
	routeOrdered(t, b, 10)
	l := expectKeys(t, b, "all", "a", "b")
	check(t, b.Sink("all").Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "refused"}}))
	insertKeys(t, p, "a", "c")
	routeOrdered(t, b, 10)
	if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	waiting := expectKeys(t, b, "all", "a", "c")
	expectKeys(t, b, "all", "b")
	expectKeys(t, b, "all")
	check(t, b.Sink("all").Settle(t.Context(), waiting, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	expectKeys(t, b, "all", "a")
	insertKeys(t, p, "d")
	routeOrdered(t, b, 10)
	expectKeys(t, b, "all", "d")
}

// TestSinks_OrderDue: of the batches that wait for no other, the one that has been due longest is taken over first, not the one of the first claim. A sink
// that seems to refuse everything tries one at a time, and would only try the bad one.
func TestSinks_OrderDue(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	insertKeys(t, p, "bad", "good")
	routeOrdered(t, b, 1)
	bad := expectKeys(t, b, "all", "bad")
	check(t, b.Sink("all").Settle(t.Context(), bad, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: bad.GroupID, Attempts: 1, Error: "400"}}))
	_, err := p.pool.Exec(t.Context(), "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1 minute' WHERE group_id <> $1", bad.GroupID)
	check(t, err)
	expectKeys(t, b, "all", "good")
	expectKeys(t, b, "all", "bad")
}

// TestSinks_OrderStuckKey: the batches that a stuck key leaves, one of each claim, hide no other key, and do not count as retries.
func TestSinks_OrderStuckKey(t *testing.T) {
	t.Parallel()
	p, b := newOrderedSinks(t)
	insertKeys(t, p, "a")
	routeOrdered(t, b, 10)
	stuck := expectKeys(t, b, "all", "a")
	_, err := p.pool.Exec(t.Context(), `INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
		first_id, last_id, oldest_at, newest_at, members, sink, claim_id, seq, lanes)
		SELECT gen_random_uuid(), buffer, claim, 'waiting', 0, clock_timestamp(), '', 0, 0, 0, 1, first_id, last_id, oldest_at, newest_at, members, sink, claim_id, seq + n, lanes
		FROM outbox_batches, generate_series(1, 300) n WHERE group_id = $1`, stuck.GroupID)
	check(t, err)
	insertKeys(t, p, "a", "b")
	routeOrdered(t, b, 10)
	backlog, err := b.Sink("all").CountBacklog(t.Context(), 0)
	check(t, err)
	if backlog.Due != 1 || backlog.Waiting != 0 {
		t.Errorf("%d batches are due and %d wait for a retry, want 1 and 0", backlog.Due, backlog.Waiting)
	}
	expectKeys(t, b, "all", "b")
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
