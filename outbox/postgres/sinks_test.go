package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// openSinks opens a buffer with several sinks.
func openSinks(t *testing.T, p *testDB, owner string, mode buffer.ClaimMode, routes ...buffer.Route) *postgres.Buffer {
	t.Helper()
	c := postgres.Config{URL: p.url, Pipeline: "orders", Owner: owner, Claim: mode, Connections: 16, Sinks: routes}
	b, err := postgres.Open(p.ofCustom(c))
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

var threeSinks = []buffer.Route{
	{Sink: "all", BatchSize: 100},
	{Sink: "crm", Match: []string{"contact.*"}, BatchSize: 3},
	{Sink: "odd", Match: []string{"*.odd", "contact.new"}, BatchSize: 100},
}

func insertTopics(t *testing.T, p *testDB, topics ...string) {
	t.Helper()
	for _, topic := range topics {
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ($1, '{}')", topic)
		check(t, err)
	}
}

func countRows(t *testing.T, p *testDB, table string) int64 {
	t.Helper()
	return query(t, p.pool, "SELECT count(*) FROM "+table, pgx.RowTo[int64])[0]
}

func forEachMode(t *testing.T, f func(t *testing.T, mode buffer.ClaimMode)) {
	t.Helper()
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp, "integer", "cursor"} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f(t, mode)
		})
	}
}

// ofCustom completes the configuration of a custom table.
func (p *testDB) ofCustom(c postgres.Config) postgres.Config {
	if p.custom != nil {
		c.Claim, c.Custom = buffer.ClaimStamp, p.custom.projecting("outbox_events", "")
	}
	return c
}

// newSinksDB returns a database with the relay's own table, or a custom one of that kind under the same name.
func newSinksDB(t *testing.T, mode buffer.ClaimMode) *testDB {
	t.Helper()
	shape := map[buffer.ClaimMode]*customShape{"integer": integerKeys, "cursor": cursorKeys}[mode]
	if shape == nil {
		return newMigratedDB(t, buffertest.Options{Claim: mode})
	}
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	p.custom = shape
	_, err := p.pool.Exec(t.Context(), shape.ddl("outbox_events", false))
	check(t, err)
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "outbox_events", Custom: true})
	check(t, err)
	return p
}

func takeOverOf(t *testing.T, q buffer.Queue, topics ...string) *buffer.Lease {
	t.Helper()
	batch, err := q.TakeOver(t.Context(), lease, buffer.DueRetry)
	check(t, err)
	if batch == nil {
		if len(topics) > 0 {
			t.Fatalf("nothing is due, want %v", topics)
		}
		return nil
	}
	var got []string
	for i := range batch.Events {
		got = append(got, batch.Events[i].Topic)
	}
	if fmt.Sprint(got) != fmt.Sprint(topics) {
		t.Fatalf("took over %v, want %v", got, topics)
	}
	return batch
}

func deliverAll(t *testing.T, q buffer.Queue, batch *buffer.Lease) {
	t.Helper()
	check(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

// TestRoute: each sink gets what it takes, and an event stays until the last of its sinks has it.
func TestRoute(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
		routed, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		if routed == nil || routed.Events != 4 || len(routed.Sinks) != 3 {
			t.Fatalf("routed %+v, want 4 events to 3 sinks", routed)
		}
		all, crm, odd := b.Sink("all"), b.Sink("crm"), b.Sink("odd")
		backlog, err := crm.CountBacklog(t.Context(), 0)
		check(t, err)
		if backlog.Due != 1 {
			t.Errorf("crm has %d batches due, want 1", backlog.Due)
		}
		deliverAll(t, all, takeOverOf(t, all, "contact.new", "order.new", "contact.old", "order.odd"))
		if n := countRows(t, p, "outbox_events"); n != 3 {
			t.Errorf("%d events are left, want those of crm and odd: 3", n)
		}
		deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.old"))
		if n := countRows(t, p, "outbox_events"); n != 2 {
			t.Errorf("%d events are left, want those of odd: 2", n)
		}
		deliverAll(t, odd, takeOverOf(t, odd, "contact.new", "order.odd"))
		for _, table := range []string{"outbox_events", "outbox_batches"} {
			if n := countRows(t, p, table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
		if again, err := b.Route(t.Context(), 100, lease, keepNone); again != nil || err != nil {
			t.Errorf("routed %+v again, %v", again, err)
		}
	})
}

// TestRoute_Unmatched: an event that no sink takes is a dead letter, and is deleted.
func TestRoute_Unmatched(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks[1])
		insertTopics(t, p, "order.new", "contact.new", "x")
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		if routed, err := b.RouteDue(t.Context(), lease); err != nil || routed == nil || routed.Events != 2 {
			t.Fatalf("deleted %+v, %v; want 2 events", routed, err)
		}
		dead := query(t, p.pool, "SELECT sink || ': ' || error FROM outbox_dead_letters ORDER BY event_id", pgx.RowTo[string])
		if fmt.Sprint(dead) != "[*: no sink takes topic order.new *: no sink takes topic x]" {
			t.Errorf("dead letters: %v", dead)
		}
		crm := b.Sink("crm")
		deliverAll(t, crm, takeOverOf(t, crm, "contact.new"))
		for _, table := range []string{"outbox_events", "outbox_batches"} {
			if n := countRows(t, p, table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
	})
}

// TestRoute_AfterKill: what a process claimed and did not route before it ended is routed by another.
func TestRoute_AfterKill(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		insertTopics(t, p, "contact.new", "order.new")
		batch, err := b.Claim(t.Context(), 100, lease)
		check(t, err)
		_, err = p.pool.Exec(t.Context(), "UPDATE outbox_batches SET due_at = clock_timestamp() - interval '1s'")
		check(t, err)
		second := openSinks(t, p, "second", mode, threeSinks...)
		routed, err := second.RouteDue(t.Context(), lease)
		check(t, err)
		if routed == nil || routed.Events != 2 {
			t.Fatalf("routed %+v, want 2 events", routed)
		}
		if _, err := postgres.RouteLease(t.Context(), b, batch); !errors.Is(err, buffer.ErrLeaseLost) {
			t.Errorf("the first owner routes it too: %v", err)
		}
		all, crm, odd := b.Sink("all"), b.Sink("crm"), b.Sink("odd")
		deliverAll(t, odd, takeOverOf(t, odd, "contact.new"))
		deliverAll(t, crm, takeOverOf(t, crm, "contact.new"))
		deliverAll(t, all, takeOverOf(t, all, "contact.new", "order.new"))
		if n := countRows(t, p, "outbox_events"); n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}

// TestRoute_ChangedRegistry: a process that started earlier routes to a sink that was added since.
func TestRoute_ChangedRegistry(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		old := openSinks(t, p, "old", mode, threeSinks[0])
		check(t, old.RegisterSinks(t.Context()))
		check(t, openSinks(t, p, "new", mode, threeSinks[:2]...).RegisterSinks(t.Context()))
		check(t, openSinks(t, p, "old again", mode, threeSinks[0]).RegisterSinks(t.Context())) // removes none
		insertTopics(t, p, "contact.new")
		routed, err := old.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" {
			t.Errorf("routed %+v, want to all and crm", routed)
		}
	})
}

// TestRoute_Pooled: behind PgBouncer a route whose fence finds nothing, because the registry changed or the lease is lost, says so in a session that never
// had a fence.
func TestRoute_Pooled(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	direct := openSinks(t, p, "new", buffer.ClaimAuto, threeSinks[:2]...)
	pooled := *p
	pooled.url = testserver.PgBouncer(t, p.url)
	old := openSinks(t, &pooled, "old", buffer.ClaimAuto, threeSinks[0])
	check(t, old.RegisterSinks(t.Context()))
	check(t, direct.RegisterSinks(t.Context()))
	insertTopics(t, p, "contact.new")
	routed, err := old.Route(t.Context(), 100, lease, keepNone)
	check(t, err)
	if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" {
		t.Errorf("routed %+v, want to all and crm", routed)
	}
	insertTopics(t, p, "contact.new")
	batch, err := old.Claim(t.Context(), 100, lease)
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "UPDATE outbox_batches SET lease_no = lease_no + 1 WHERE sink = '*'")
	check(t, err)
	if _, err := postgres.RouteLease(t.Context(), old, batch); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Errorf("a lease that is lost: %v", err)
	}
}

// TestSinks_Workers: workers of several sinks settle batches of the same claims at the same time, in part, late, and
// more than once, and dead letters are replayed meanwhile. Every sink gets each of its events exactly once.
func TestSinks_Workers(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		const events = 1200
		topics := []string{"contact.new", "order.new", "contact.old", "order.odd"}
		buffers := []*postgres.Buffer{openSinks(t, p, "first", mode, threeSinks...), openSinks(t, p, "second", mode, threeSinks...)}
		var inserting, workers sync.WaitGroup
		inserting.Go(func() {
			for i := range events / 4 {
				_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT unnest($1::text[]), to_json($2::int)", topics, i)
				check(t, err)
			}
		})
		done := make(chan struct{})
		var mu sync.Mutex
		settled := map[string]map[int64]int{}
		record := func(sink string, ids []int64) {
			mu.Lock()
			defer mu.Unlock()
			if settled[sink] == nil {
				settled[sink] = map[int64]int{}
			}
			for _, id := range ids {
				settled[sink][id]++
			}
		}
		for _, b := range buffers {
			workers.Go(func() {
				for {
					routed, err := b.Route(t.Context(), 50, lease, func(string) bool { return rand.IntN(2) == 0 })
					if err == nil && routed == nil {
						routed, err = b.RouteDue(t.Context(), lease)
					}
					check(t, err)
					if routed != nil {
						for _, l := range routed.Leases {
							record(l.Sink, settleAtRandom(t, b.Sink(l.Sink), l.Lease))
						}
					}
					if routed == nil {
						select {
						case <-done:
							return
						default:
						}
					}
				}
			})
			for _, r := range threeSinks {
				q := b.Sink(r.Sink)
				for range 2 {
					workers.Go(func() {
						for {
							batch, err := q.TakeOver(t.Context(), lease, buffer.DueRetry)
							check(t, err)
							if batch == nil {
								select {
								case <-done:
									return
								default:
									continue
								}
							}
							record(r.Sink, settleAtRandom(t, q, batch))
						}
					})
				}
			}
		}
		workers.Go(func() { // sweeps, and an audit sees every event in a batch or unclaimed
			for {
				b := openSinks(t, p, "third", mode, threeSinks...)
				_, err := b.CountBacklog(t.Context(), 1000)
				check(t, err)
				audit, err := b.Audit(t.Context())
				check(t, err)
				if audit.Orphaned.Events > 0 || audit.Unclaimed < 0 {
					t.Errorf("audit: %+v", audit)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
		workers.Go(func() {
			for {
				_, err := buffers[0].Replay(t.Context(), buffer.DeadFilter{}, 5)
				check(t, err)
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		inserting.Wait()
		open := "(SELECT id FROM outbox_events UNION ALL SELECT event_id FROM outbox_dead_letters WHERE closed_at IS NULL) open"
		deadline := time.Now().Add(2 * time.Minute)
		for countRows(t, p, open) > 0 && time.Now().Before(deadline) && !t.Failed() {
			_, err := p.pool.Exec(t.Context(), "SELECT pg_sleep(0.05)")
			check(t, err)
		}
		close(done)
		workers.Wait()
		for _, table := range []string{"outbox_events", "outbox_batches", open} {
			if n := countRows(t, p, table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
		if n := countRows(t, p, "outbox_dead_letters"); n == 0 {
			t.Error("no event died")
		}
		for _, r := range threeSinks {
			want := events
			if r.Sink != "all" {
				want = events / 2
			}
			if n := len(settled[r.Sink]); n != want {
				t.Errorf("sink %s got %d events, want %d", r.Sink, n, want)
			}
			for id, n := range settled[r.Sink] {
				if n != 1 {
					t.Errorf("sink %s got event %d %d times", r.Sink, id, n)
				}
			}
		}
	})
}

// settleAtRandom settles a batch in one of several ways and returns the ids that it delivered.
func settleAtRandom(t *testing.T, q buffer.Queue, batch *buffer.Lease) []int64 {
	t.Helper()
	ids := batch.IDs()
	if batch.DeliveryRecorded() {
		err := q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
		if !errors.Is(err, buffer.ErrLocked) {
			check(t, err)
		}
		return nil
	}
	way := rand.IntN(10)
	switch {
	case way == 0: // all is sent again
		check(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: 1, Error: "no"}}))
		return nil
	case way == 1: // the settle fails after the send
		check(t, q.MarkDelivered(t.Context(), batch, ids))
		return ids
	case way <= 4 && len(ids) > 2: // a part is sent again, another dies
		n := len(ids) / 3
		check(t, q.Settle(t.Context(), batch, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: ids[:n]},
			{Verdict: buffer.Dead, IDs: ids[n : n+1], Attempts: 1, Error: "bad"},
			{Verdict: buffer.Retry, IDs: ids[n+1:], GroupID: buffer.NewGroupID(), Attempts: 1, Error: "no"},
		}))
		return ids[:n]
	}
	check(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
	return ids
}

// TestReplay_Routed: an event that is dead at one sink is replayed to that sink alone, while another still waits for it, and
// after it is gone.
func TestReplay_Routed(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
				t.Parallel()
				p := newSinksDB(t, mode)
				b := openSinks(t, p, "first", mode, threeSinks[:2]...)
				insertTopics(t, p, "contact.new", "contact.old")
				_, err := b.Route(t.Context(), 100, lease, keepNone)
				check(t, err)
				all, crm := b.Sink("all"), b.Sink("crm")
				dies := takeOverOf(t, crm, "contact.new", "contact.old")
				check(t, crm.Settle(t.Context(), dies, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
				batch := takeOverOf(t, all, "contact.new", "contact.old")
				if gone {
					deliverAll(t, all, batch)
				}
				letters, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
				check(t, err)
				if len(letters) != 2 || letters[0].Sink != "crm" {
					t.Errorf("dead letters: %+v", letters)
				}
				if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 2 || err != nil {
					t.Fatalf("replayed %d, %v; want 2", n, err)
				}
				if !gone {
					deliverAll(t, all, batch)
				}
				takeOverOf(t, all)
				deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.old"))
				for _, table := range []string{"outbox_events", "outbox_batches"} {
					if n := countRows(t, p, table); n != 0 {
						t.Errorf("%d rows are left in %s", n, table)
					}
				}
			})
		}
	})
}

// TestReplay_RoutedBytes: a transaction replays up to buffer.MaxBytes, and one whose dead letters all have to stay does not end the replay.
func TestReplay_RoutedBytes(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks[:2]...)
		exec := func(statement string) {
			t.Helper()
			_, err := p.pool.Exec(t.Context(), statement)
			check(t, err)
		}
		all, crm := b.Sink("all"), b.Sink("crm")
		for _, topic := range []string{"contact.a", "contact.b", "contact.c"} {
			insertTopics(t, p, topic)
			exec("UPDATE outbox_events SET payload = to_json(repeat('x', 3000000)) WHERE topic = '" + topic + "'")
			_, err := b.Route(t.Context(), 100, lease, keepNone)
			check(t, err)
			check(t, crm.Settle(t.Context(), takeOverOf(t, crm, topic), []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
			if batch := takeOverOf(t, all, topic); topic != "contact.a" {
				deliverAll(t, all, batch)
			}
		}
		replay := func(want int) {
			t.Helper()
			if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != want || err != nil {
				t.Fatalf("replayed %d, %v; want %d", n, err, want)
			}
		}
		replay(1)
		exec("UPDATE outbox_dead_letters SET closed_at = NULL, closed_as = NULL") // crm has the event of the first one anyway
		replay(1)
		replay(1)
		replay(0)
		for _, topic := range []string{"contact.a", "contact.b", "contact.c"} {
			deliverAll(t, crm, takeOverOf(t, crm, topic))
		}
	})
}

// TestReplay_Unmatched: the replay of an event that no sink took routes it again.
func TestReplay_Unmatched(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks[1])
		insertTopics(t, p, "x.odd")
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		_, err = b.RouteDue(t.Context(), lease)
		check(t, err)
		b = openSinks(t, p, "second", mode, threeSinks...)
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v; want 1", n, err)
		}
		routed, err := b.RouteDue(t.Context(), lease)
		check(t, err)
		if routed == nil || fmt.Sprint(routed.Sinks) != "[all odd]" {
			t.Fatalf("routed %+v, want to all and odd", routed)
		}
		for _, sink := range routed.Sinks {
			deliverAll(t, b.Sink(sink), takeOverOf(t, b.Sink(sink), "x.odd"))
		}
		if n := countRows(t, p, "outbox_events"); n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}

// TestRoute_SingleSinkStops: a relay whose configuration has a single sink claims nothing while events are routed to several.
func TestRoute_SingleSinkStops(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		old := openSinks(t, p, "old", mode)
		check(t, old.Check(t.Context()))
		b := openSinks(t, p, "new", mode, threeSinks...)
		check(t, b.RegisterSinks(t.Context()))
		insertTopics(t, p, "order.new")
		if batch, err := old.Claim(t.Context(), 10, lease); batch != nil || !errors.Is(err, buffer.ErrNotReady) {
			t.Errorf("the old relay claims %v, %v", batch, err)
		}
		// An empty registry is filled again.
		_, err := p.pool.Exec(t.Context(), "TRUNCATE outbox_sinks, outbox_buffers")
		check(t, err)
		routed, err := b.Route(t.Context(), 10, lease, keepNone)
		check(t, err)
		if routed == nil || fmt.Sprint(routed.Sinks) != "[all]" {
			t.Errorf("routed %+v, want to all", routed)
		}
	})
}

// TestRoute_Orphans: an event that carries a group_id without a ledger row is routed.
func TestRoute_Orphans(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload, group_id) VALUES ('contact.old', '{}', gen_random_uuid())")
		check(t, err)
		_, err = b.CountBacklog(t.Context(), 100)
		check(t, err)
		routed, err := b.RouteDue(t.Context(), lease)
		check(t, err)
		if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" {
			t.Fatalf("routed %+v, want to all and crm", routed)
		}
		for _, sink := range routed.Sinks {
			deliverAll(t, b.Sink(sink), takeOverOf(t, b.Sink(sink), "contact.old"))
		}
		if n := countRows(t, p, "outbox_events"); n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}

// keepNone leaves all batches to take-overs.
func keepNone(string) bool { return false }

// TestRoute_Leases: batches that the process takes are leased, with their events.
func TestRoute_Leases(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		insertTopics(t, p, "contact.a", "contact.b", "contact.c", "contact.d", "order.new")
		taken := 0
		routed, err := b.Route(t.Context(), 100, lease, func(sink string) bool {
			taken++
			return sink == "all" || taken == 2 // the first of two for crm
		})
		check(t, err)
		if len(routed.Leases) != 2 || fmt.Sprint(routed.Sinks) != "[crm]" {
			t.Fatalf("leased %v; %v have more", routed.Leases, routed.Sinks)
		}
		takeOverOf(t, b.Sink("all"))
		deliverAll(t, b.Sink("crm"), takeOverOf(t, b.Sink("crm"), "contact.d"))
		for _, l := range routed.Leases {
			if l.Len() != map[string]int{"all": 5, "crm": 3}[l.Sink] || string(l.Events[0].Payload) != "{}" {
				t.Errorf("sink %s has %+v", l.Sink, l.Events)
			}
			deliverAll(t, b.Sink(l.Sink), l.Lease)
		}
		for _, table := range []string{"outbox_events", "outbox_batches"} {
			if n := countRows(t, p, table); n != 0 {
				t.Errorf("%d rows are left in %s", n, table)
			}
		}
	})
}

// TestRoute_NoOrphans: a sweep leaves alone what the batches of several sinks hold.
func TestRoute_NoOrphans(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		insertTopics(t, p, "contact.new", "order.new")
		b := openSinks(t, p, "first", mode, threeSinks...)
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "contact.new", "order.new"))
		backlog, err := openSinks(t, p, "second", mode, threeSinks...).CountBacklog(t.Context(), 100)
		check(t, err)
		if backlog.Unclaimed+backlog.Due > 0 {
			t.Errorf("the sweep finds %+v", backlog)
		}
		deliverAll(t, b.Sink("odd"), takeOverOf(t, b.Sink("odd"), "contact.new"))
		deliverAll(t, b.Sink("crm"), takeOverOf(t, b.Sink("crm"), "contact.new"))
		if n := countRows(t, p, "outbox_events"); n != 0 {
			t.Errorf("%d events are left", n)
		}
	})
}

// TestRoute_Joins: what a sink that is behind gets is added to the row that waits for it, until a process leases that.
func TestRoute_Joins(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	route := func(all string, topics ...string) {
		t.Helper()
		insertTopics(t, p, topics...)
		routed, err := b.Route(t.Context(), 100, lease, func(sink string) bool { return sink == "all" })
		check(t, err)
		if len(routed.Leases) != 1 || fmt.Sprint(routed.Sinks) != all {
			t.Fatalf("leased %+v, and new rows for %v; want one of all, and %s", routed.Leases, routed.Sinks, all)
		}
		deliverAll(t, b.Sink("all"), routed.Leases[0].Lease)
	}
	crm, odd := b.Sink("crm"), b.Sink("odd")
	route("[crm odd]", "contact.new")
	route("[]", "contact.new", "order.new")
	route("[]", "contact.old")
	route("[crm]", "contact.new", "order.odd") // crm has its batch size, and odd is added to
	if n := countRows(t, p, "outbox_events"); n != 5 {
		t.Fatalf("%d events are left, want those of crm and odd: 5", n)
	}
	batch := takeOverOf(t, odd, "contact.new", "contact.new", "contact.new", "order.odd")
	route("[odd]", "contact.new") // nothing is added to a leased row
	deliverAll(t, odd, batch)
	if n := countRows(t, p, "outbox_events"); n != 5 {
		t.Fatalf("%d events are left, want those of crm: 5", n)
	}
	deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.new", "contact.old"))
	deliverAll(t, crm, takeOverOf(t, crm, "contact.new", "contact.new"))
	deliverAll(t, odd, takeOverOf(t, odd, "contact.new"))
	for _, table := range []string{"outbox_events", "outbox_batches"} {
		if n := countRows(t, p, table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
}

// TestRoute_JoinsNone: under a stamp, and behind rows of a claim that is not shared, each route writes rows of its own.
func TestRoute_JoinsNone(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, buffer.Route{Sink: "one", Match: []string{"a"}, BatchSize: 100}, buffer.Route{Sink: "two", Match: []string{"a", "b"}, BatchSize: 100})
		for _, topics := range [][]string{{"b"}, {"a"}, {"a"}} {
			insertTopics(t, p, topics...)
			_, err := b.Route(t.Context(), 100, lease, keepNone)
			check(t, err)
		}
		two := b.Sink("two")
		want := [][]string{{"b"}, {"a"}, {"a"}}
		if mode == buffer.ClaimRange {
			want = [][]string{{"b"}, {"a", "a"}}
		}
		for _, topics := range want {
			deliverAll(t, two, takeOverOf(t, two, topics...))
		}
		takeOverOf(t, two)
		if n := countRows(t, p, "outbox_events"); n != 2 {
			t.Errorf("%d events are left, want those of one: 2", n)
		}
	})
}

// TestRoute_JoinsRenamed: a row that waited for a sink of this name belongs to a renamed one now.
func TestRoute_JoinsRenamed(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{Claim: buffer.ClaimRange})
	b := openSinks(t, p, "first", buffer.ClaimRange, threeSinks...)
	for range 2 {
		insertTopics(t, p, "contact.old")
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		_, err = p.pool.Exec(t.Context(), "UPDATE outbox_batches SET sink = 'sales' WHERE sink = 'crm' AND NOT EXISTS (SELECT FROM outbox_batches WHERE sink = 'sales')")
		check(t, err)
	}
	takeOverOf(t, b.Sink("crm"), "contact.old")
	takeOverOf(t, b.Sink("sales"), "contact.old")
}
