package sqlite_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func takeOverOf(t *testing.T, q buffer.Queue, topics ...string) *buffer.Lease {
	t.Helper()
	batch, err := q.TakeOver(t.Context(), lease, buffer.DueRetry)
	testkit.NoError(t, err)
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
	testkit.NoError(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
}

// TestRoute: each sink gets what it takes, and an event stays until the last of its sinks has it.
func TestRoute(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b := openSinks(t, p, "first", mode, threeSinks...)
		insertTopics(t, p, "contact.new", "order.new", "contact.old", "order.odd")
		routed, err := b.Route(t.Context(), 100, lease, keepNone)
		testkit.NoError(t, err)
		if routed == nil || routed.Events != 4 || len(routed.Sinks) != 3 {
			t.Fatalf("routed %+v, want 4 events to 3 sinks", routed)
		}
		all, crm, odd := b.Sink("all"), b.Sink("crm"), b.Sink("odd")
		backlog, err := crm.CountBacklog(t.Context(), 0)
		testkit.NoError(t, err)
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
		testkit.NoError(t, err)
		if routed, err := b.RouteDue(t.Context(), lease); err != nil || routed == nil || routed.Events != 2 {
			t.Fatalf("deleted %+v, %v; want 2 events", routed, err)
		}
		dead := texts(t, p, "SELECT sink || ': ' || error FROM outbox_dead_letters ORDER BY event_id")
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
		testkit.NoError(t, err)
		exec(t, p.db, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')")
		second := openSinks(t, p, "second", mode, threeSinks...)
		routed, err := second.RouteDue(t.Context(), lease)
		testkit.NoError(t, err)
		if routed == nil || routed.Events != 2 {
			t.Fatalf("routed %+v, want 2 events", routed)
		}
		if _, err := sqlite.RouteLease(t.Context(), b, batch); !errors.Is(err, buffer.ErrLeaseLost) {
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

// TestRoute_LeaseLost: an owner that lost its lease of what it claimed routes nothing.
func TestRoute_LeaseLost(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		b, second := openSinks(t, p, "first", mode, threeSinks...), openSinks(t, p, "second", mode, threeSinks...)
		insertTopics(t, p, "order.new")
		batch, err := b.Claim(t.Context(), 100, lease)
		testkit.NoError(t, err)
		testkit.NoError(t, second.RegisterSinks(t.Context()))
		exec(t, p.db, "UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')")
		taken, err := testkit.TakeOver(t.Context(), second, lease)
		testkit.NoError(t, err)
		if _, err := sqlite.RouteLease(t.Context(), b, batch); !errors.Is(err, buffer.ErrLeaseLost) {
			t.Errorf("the first owner routes it: %v", err)
		}
		routed, err := sqlite.RouteLease(t.Context(), second, taken)
		testkit.NoError(t, err)
		if fmt.Sprint(routed.Sinks) != "[all]" {
			t.Errorf("routed %+v, want to all", routed)
		}
	})
}

// TestRoute_ChangedRegistry: a process that started earlier routes to a sink that was added since.
func TestRoute_ChangedRegistry(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		old := openSinks(t, p, "old", mode, threeSinks[0])
		testkit.NoError(t, old.RegisterSinks(t.Context()))
		testkit.NoError(t, openSinks(t, p, "new", mode, threeSinks[:2]...).RegisterSinks(t.Context()))
		testkit.NoError(t, openSinks(t, p, "old again", mode, threeSinks[0]).RegisterSinks(t.Context())) // removes none
		insertTopics(t, p, "contact.new")
		routed, err := old.Route(t.Context(), 100, lease, keepNone)
		testkit.NoError(t, err)
		if routed == nil || fmt.Sprint(routed.Sinks) != "[all crm]" {
			t.Errorf("routed %+v, want to all and crm", routed)
		}
	})
}

// TestSinks_Workers: workers of several sinks settle batches of the same claims at the same time, in part, late, and
// more than once, and dead letters are replayed meanwhile. Every sink gets each of its events exactly once.
func TestSinks_Workers(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newSinksDB(t, mode)
		const events = 1200
		topics := []string{"contact.new", "order.new", "contact.old", "order.odd"}
		buffers := []*sqlite.Buffer{openSinks(t, p, "first", mode, threeSinks...), openSinks(t, p, "second", mode, threeSinks...)}
		var inserting, workers sync.WaitGroup
		inserting.Go(func() {
			for range events / 4 {
				insertTopics(t, p, topics...)
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
					testkit.NoError(t, err)
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
							testkit.NoError(t, err)
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
				testkit.NoError(t, err)
				audit, err := b.Audit(t.Context())
				testkit.NoError(t, err)
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
				testkit.NoError(t, err)
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
			<-time.After(50 * time.Millisecond)
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
			testkit.NoError(t, err)
		}
		return nil
	}
	way := rand.IntN(10)
	switch {
	case way == 0: // all is sent again
		testkit.NoError(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: batch.GroupID, Attempts: 1, Error: "no"}}))
		return nil
	case way == 1: // the settle fails after the send
		testkit.NoError(t, q.MarkDelivered(t.Context(), batch, ids))
		return ids
	case way <= 4 && len(ids) > 2: // a part is sent again, another dies
		n := len(ids) / 3
		testkit.NoError(t, q.Settle(t.Context(), batch, []buffer.Outcome{
			{Verdict: buffer.Delivered, IDs: ids[:n]},
			{Verdict: buffer.Dead, IDs: ids[n : n+1], Attempts: 1, Error: "bad"},
			{Verdict: buffer.Retry, IDs: ids[n+1:], GroupID: buffer.NewGroupID(), Attempts: 1, Error: "no"},
		}))
		return ids[:n]
	}
	testkit.NoError(t, q.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}}))
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
				testkit.NoError(t, err)
				all, crm := b.Sink("all"), b.Sink("crm")
				dies := takeOverOf(t, crm, "contact.new", "contact.old")
				testkit.NoError(t, crm.Settle(t.Context(), dies, []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
				batch := takeOverOf(t, all, "contact.new", "contact.old")
				if gone {
					deliverAll(t, all, batch)
				}
				letters, err := b.ListDead(t.Context(), buffer.DeadFilter{}, nil, 10)
				testkit.NoError(t, err)
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
			_, err := p.db.Exec(statement)
			testkit.NoError(t, err)
		}
		all, crm := b.Sink("all"), b.Sink("crm")
		for _, topic := range []string{"contact.a", "contact.b", "contact.c"} {
			insertTopics(t, p, topic)
			exec("UPDATE outbox_events SET payload = json_quote(replace(hex(zeroblob(1500000)), '0', 'x')) WHERE topic = '" + topic + "'")
			_, err := b.Route(t.Context(), 100, lease, keepNone)
			testkit.NoError(t, err)
			testkit.NoError(t, crm.Settle(t.Context(), takeOverOf(t, crm, topic), []buffer.Outcome{{Verdict: buffer.Dead, Attempts: 1, Error: "bad"}}))
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
		testkit.NoError(t, err)
		_, err = b.RouteDue(t.Context(), lease)
		testkit.NoError(t, err)
		b = openSinks(t, p, "second", mode, threeSinks...)
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v; want 1", n, err)
		}
		routed, err := b.RouteDue(t.Context(), lease)
		testkit.NoError(t, err)
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
		testkit.NoError(t, old.Check(t.Context()))
		b := openSinks(t, p, "new", mode, threeSinks...)
		testkit.NoError(t, b.RegisterSinks(t.Context()))
		insertTopics(t, p, "order.new")
		if batch, err := old.Claim(t.Context(), 10, lease); batch != nil || !errors.Is(err, buffer.ErrNotReady) {
			t.Errorf("the old relay claims %v, %v", batch, err)
		}
		// An empty registry is filled again.
		exec(t, p.db, "DELETE FROM outbox_sinks; UPDATE outbox_buffers SET routed = 0, routes_no = 0")
		routed, err := b.Route(t.Context(), 10, lease, keepNone)
		testkit.NoError(t, err)
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
		exec(t, p.db, p.groupAsBytes("INSERT INTO outbox_events (topic, payload, group_id) VALUES ('contact.old', '{}', '0192f0c1-2d5e-7a41-9d4e-8b1b6c1d2e3f')", "outbox_events"))
		_, err := b.CountBacklog(t.Context(), 100)
		testkit.NoError(t, err)
		routed, err := b.RouteDue(t.Context(), lease)
		testkit.NoError(t, err)
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
		testkit.NoError(t, err)
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
		testkit.NoError(t, err)
		deliverAll(t, b.Sink("all"), takeOverOf(t, b.Sink("all"), "contact.new", "order.new"))
		backlog, err := openSinks(t, p, "second", mode, threeSinks...).CountBacklog(t.Context(), 100)
		testkit.NoError(t, err)
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
