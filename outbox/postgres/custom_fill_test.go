package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// newActivityFill is newActivitySinks with sinks and an archive if the table can have one; register opens it with others.
func newActivityFill(t *testing.T, key string, routes ...buffer.Route) *customFixture {
	t.Helper()
	archive := ""
	if key == "Integer" {
		archive = "outbox_archive"
	}
	o := newActivitySinks(t, key, archive)
	o.config.Connections = 16
	o.register(t, routes...)
	return o
}

func (o *customFixture) register(t *testing.T, routes ...buffer.Route) {
	t.Helper()
	o.config.Sinks = routes
	o.Buffer = o.open(t, o.config)
	check(t, o.RegisterSinks(t.Context()))
}

// activities inserts events with these topics. Their numbers go on.
func (o *customFixture) activities(t *testing.T, topics ...string) {
	t.Helper()
	n := query(t, o.pool, "SELECT count(*)::int FROM activities", pgx.RowTo[int])[0]
	for i, topic := range topics {
		o.activity(t, n+i+1, topic, "1")
	}
}

// fill fills a sink, and counts before. The archive is left out if there is one.
func (o *customFixture) fill(t *testing.T, sink string, since time.Time, want buffer.Filled) {
	t.Helper()
	want.NoArchive = o.config.Archive != ""
	fillSink(t, o.Buffer, sink, since, want)
}

var (
	allRoute = buffer.Route{Sink: "all", BatchSize: 100}
	oddRoute = buffer.Route{Sink: "odd", Match: []string{"*.odd"}, BatchSize: 2}
	newRoute = buffer.Route{Sink: "new", Match: []string{"a.#", "b.*"}, BatchSize: 3}
)

// TestCustomFill: a sink that is added to a custom table gets what waits for others, once. What the archive has is left out.
func TestCustomFill(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute, oddRoute)
		o.activities(t, "a.odd") // delivered everywhere
		routeAll(t, o.Buffer, "[all odd]")
		drainSink(t, o.Buffer, "all")
		drainSink(t, o.Buffer, "odd")
		o.activities(t, "a.odd", "b.even", "x.even", "b.odd", "a.odd.more")
		routeAll(t, o.Buffer, "[all odd]")
		o.activities(t, "b.6") // a row of its own
		_, err := o.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		deliverAll(t, o.Sink("odd"), takeOverOf(t, o.Sink("odd"), "a.odd", "b.odd"))

		o.register(t, allRoute, oddRoute, newRoute)
		o.activities(t, "a.7", "unclaimed.8")
		_, err = o.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		o.fill(t, "new", time.Time{}, buffer.Filled{Waiting: 5})
		o.fill(t, "new", time.Time{}, buffer.Filled{})
		o.wantAgreement(t, "the fill")
		expectDrained(t, o.Buffer, "new", "a.7 a.odd b.even b.odd a.odd.more b.6")
		o.fill(t, "new", time.Time{}, buffer.Filled{})
		expectDrained(t, o.Buffer, "all", "a.odd b.even x.even b.odd a.odd.more b.6 a.7 unclaimed.8")
		expectDrained(t, o.Buffer, "odd", "")
		o.expect(t, nothingLeft, "0/0")
		o.fill(t, "new", time.Time{}, buffer.Filled{})
		o.wantAgreement(t, "all")
	})
}

// TestCustomFill_Since: the time is that of the projection, or that of the claim if neither it nor the table has one.
func TestCustomFill_Since(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.activities(t, "a.1", "a.2")
		routeAll(t, o.Buffer, "[all]")
		o.register(t, allRoute, newRoute)
		var claimed time.Time
		check(t, o.pool.QueryRow(t.Context(), "SELECT claimed_at FROM relay.outbox_batches").Scan(&claimed))
		o.fill(t, "new", claimed.Add(time.Microsecond), buffer.Filled{})
		o.config.Custom.Project = "SELECT e.id, a.topic, to_jsonb(1) AS payload, timestamptz '2026-01-02 UTC' + a.id * interval '1 microsecond' AS created_at FROM {events} e JOIN activities a ON a.id = e.activity"
		o.register(t, allRoute, newRoute)
		since := time.Date(2026, 1, 2, 0, 0, 0, 2000, time.UTC)
		o.fill(t, "new", since.Add(time.Microsecond), buffer.Filled{})
		o.fill(t, "new", since, buffer.Filled{Waiting: 1})
		expectDrained(t, o.Buffer, "new", "a.2")
		expectDrained(t, o.Buffer, "all", "a.1 a.2")
	})
}

// TestCustomFill_Time: a table without a time sends each sink the time of the claim.
func TestCustomFill_Time(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.activities(t, "a.1")
		routeAll(t, o.Buffer, "[all]")
		o.register(t, allRoute, newRoute)
		o.fill(t, "new", time.Time{}, buffer.Filled{Waiting: 1})
		at := takeOverOf(t, o.Sink("all"), "a.1").Events[0].CreatedAt
		if got := takeOverOf(t, o.Sink("new"), "a.1").Events[0].CreatedAt; !got.Equal(at) {
			t.Errorf("the filled event is of %v, want %v", got, at)
		}
	})
}

// TestCustomFill_Parts: a batch that came back in parts is filled, the part with the others.
func TestCustomFill_Parts(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.activities(t, "a.1", "a.2", "a.3")
		routeAll(t, o.Buffer, "[all]")
		leased := takeOverOf(t, o.Sink("all"), "a.1", "a.2", "a.3")
		check(t, o.Sink("all").Settle(t.Context(), leased, retryRest(leased)))
		leased = takeOverOf(t, o.Sink("all"), "a.2", "a.3")
		o.register(t, allRoute, newRoute)
		o.fill(t, "new", time.Time{}, buffer.Filled{Waiting: 2})
		deliverAll(t, o.Sink("all"), leased)
		expectDrained(t, o.Buffer, "new", "a.2 a.3")
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomFill_Single: what waits for the single sink of before is filled. A batch that is being sent and shares no event is awaited.
func TestCustomFill_Single(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key)
		o.activities(t, "a.1", "x.2", "a.3")
		batch, err := o.Claim(t.Context(), 10, lease)
		check(t, err)
		check(t, o.Settle(t.Context(), batch, retryAll(batch)))
		all := buffer.Route{Sink: "all", Was: "default", BatchSize: 100}
		o.register(t, all, newRoute)
		leased := takeOverOf(t, o.Sink("all"), "a.1", "x.2", "a.3")
		o.fillDry(t, "new", buffer.Filled{Waiting: 2})
		done, looked := make(chan error), make(chan bool, 1)
		go func() {
			filled, err := o.FillSink(context.WithoutCancel(t.Context()), "new", time.Time{}, false, func(buffer.Filled) {
				select {
				case looked <- true:
				default:
				}
			})
			if err == nil && filled.Waiting != 2 {
				err = fmt.Errorf("filled %+v, want 2 events", filled)
			}
			done <- err
		}()
		<-looked
		check(t, o.Sink("all").Settle(t.Context(), leased, []buffer.Outcome{{Verdict: buffer.Retry, IDs: leased.IDs(), GroupID: buffer.NewGroupID(), Outages: 1}}))
		check(t, <-done)
		o.wantAgreement(t, "the fill")
		expectDrained(t, o.Buffer, "new", "a.1 a.3")
		expectDrained(t, o.Buffer, "all", "a.1 x.2 a.3")
		o.expect(t, nothingLeft, "0/0")
	})
}

func (o *customFixture) fillDry(t *testing.T, sink string, want buffer.Filled) {
	t.Helper()
	want.NoArchive = o.config.Archive != ""
	if got, err := o.FillSink(t.Context(), sink, time.Time{}, true, nil); got != want || err != nil {
		t.Fatalf("counted %+v, %v; want %+v", got, err, want)
	}
}

// TestCustomFill_Projection: an event that is not projected any more is left out. A batch on whose data the projection fails is left as it is, and a later fill
// gives it. If the projection fails otherwise, the fill ends, and nothing is lost.
func TestCustomFill_Projection(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.activities(t, "a.1", "a.2")
		routeAll(t, o.Buffer, "[all]")
		o.activities(t, "a.3", "a.4")
		_, err := o.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		o.register(t, allRoute, newRoute)
		o.exec(t, "DELETE FROM activities WHERE id = 1")
		o.exec(t, "UPDATE activities SET amount = 'bad' WHERE id = 3")
		filled, err := o.FillSink(t.Context(), "new", time.Time{}, false, nil)
		check(t, err)
		if filled.Waiting != 1 || filled.Rejected != 1 || filled.Failed != 2 || !errors.Is(filled.Err, buffer.ErrEventData) {
			t.Errorf("filled %+v", filled)
		}
		expectDrained(t, o.Buffer, "new", "a.2")
		o.exec(t, "ALTER TABLE activities RENAME TO hidden")
		if filled, err := o.FillSink(t.Context(), "new", time.Time{}, false, nil); filled.Events() > 0 || err == nil || !strings.Contains(err.Error(), "source.project") {
			t.Errorf("filled %+v, %v", filled, err)
		}
		o.exec(t, "ALTER TABLE hidden RENAME TO activities")
		o.exec(t, "UPDATE activities SET amount = '3' WHERE id = 3")
		o.fill(t, "new", time.Time{}, buffer.Filled{Waiting: 2})
		expectDrained(t, o.Buffer, "new", "a.3 a.4")
		o.fill(t, "new", time.Time{}, buffer.Filled{})
	})
}

// TestCustomFill_ByGroup: a projection by group_id returns the rows of the whole claim. Its payloads may exceed what a batch may have.
func TestCustomFill_ByGroup(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute, oddRoute)
		o.activities(t, "a.odd", "a.even", "b.odd")
		routeAll(t, o.Buffer, "[all odd]")
		deliverAll(t, o.Sink("all"), takeOverOf(t, o.Sink("all"), "a.odd", "a.even", "b.odd"))
		o.config.Custom.Project = "SELECT t.id, a.topic, repeat('x', 3000000)::bytea AS payload FROM things t JOIN activities a ON a.id = t.activity WHERE t.group_id = $1"
		o.register(t, allRoute, oddRoute, newRoute)
		o.fill(t, "new", time.Time{}, buffer.Filled{Waiting: 2})
		o.expect(t, "SELECT count(*)::text FROM relay.outbox_batches WHERE sink = '*'", "0")
	})
}

// TestCustomFill_Workers: relays route, send, settle in part and late while a sink is filled, again and again, by fills that are broken off. Every event reaches each sink once.
func TestCustomFill_Workers(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, buffer.Route{Sink: "all", BatchSize: 7}, buffer.Route{Sink: "odd", Match: []string{"*.odd"}, BatchSize: 5})
		const events = 600
		insert := func(from, to int) {
			o.exec(t, fmt.Sprintf("INSERT INTO activities SELECT i, CASE i %% 3 WHEN 0 THEN 'a.odd' WHEN 1 THEN 'a.even' ELSE 'x' END, '1' FROM generate_series(%d, %d) i", from, to))
			o.exec(t, fmt.Sprintf("INSERT INTO things (activity) SELECT i FROM generate_series(%d, %d) i", from, to))
		}
		insert(1, events)
		for range events / 12 {
			_, err := o.Route(t.Context(), 12, lease, keepNone)
			check(t, err)
		}
		o.register(t, buffer.Route{Sink: "all", BatchSize: 7}, buffer.Route{Sink: "odd", Match: []string{"*.odd"}, BatchSize: 5}, buffer.Route{Sink: "new", BatchSize: 10})
		insert(events+1, events+60) // routed to it meanwhile
		var (
			mu     sync.Mutex
			got    = map[string]int{} // by sink and event
			done   sync.WaitGroup
			filled = make(chan struct{})
		)
		ended := func() bool {
			select {
			case <-filled:
				return true
			default:
				return false
			}
		}
		for i, sink := range []string{"odd", "new", "all", "odd", "new"} {
			done.Go(func() {
				for {
					last := ended()
					batch, err := o.Sink(sink).TakeOver(t.Context(), lease, buffer.DueRetry)
					if err != nil {
						t.Error(err)
						return
					}
					if batch == nil {
						if last {
							return
						}
						continue
					}
					outcomes, sent := []buffer.Outcome{{Verdict: buffer.Delivered}}, batch.Events
					if i < 3 && len(sent) > 2 {
						outcomes, sent = retryRest(batch), sent[:1]
					}
					if err := o.Sink(sink).Settle(t.Context(), batch, outcomes); err != nil {
						t.Errorf("sink %s: %v", sink, err)
						return
					}
					mu.Lock()
					for i := range sent {
						got[sink+" "+sent[i].Identity()]++
					}
					mu.Unlock()
				}
			})
		}
		done.Go(func() {
			for range 60 / 12 {
				if _, err := o.Route(t.Context(), 12, lease, keepNone); err != nil {
					t.Error(err)
				}
			}
		})
		given := int64(60) // and by the routes
		for i := range 6 {
			ctx, stop := context.WithCancel(t.Context())
			sum, err := o.FillSink(ctx, "new", time.Time{}, false, func(f buffer.Filled) {
				if i < 5 && f.Events() > 60 {
					stop()
				}
			})
			stop()
			given += sum.Events()
			if err != nil && (i == 5 || !errors.Is(err, context.Canceled)) {
				t.Error(err)
			}
		}
		close(filled)
		done.Wait()
		arrived := map[string]int{}
		for at, n := range got {
			sink, _, _ := strings.Cut(at, " ")
			arrived[sink]++
			if n != 1 {
				t.Errorf("%s arrived %d times", at, n)
			}
		}
		t.Logf("arrived %v, given %d", arrived, given)
		if arrived["all"] != events+60 || arrived["odd"] != (events+60)/3 || int64(arrived["new"]) < given {
			t.Errorf("arrived %v, given %d to the new sink", arrived, given)
		}
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomFill_Two: of two sinks that were added together, each lacks what was routed before, also when the other one got it.
func TestCustomFill_Two(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.activities(t, "a.1", "x.2", "b.3")
		routeAll(t, o.Buffer, "[all]")
		late := buffer.Route{Sink: "late", Match: []string{"a.#", "x.#"}, BatchSize: 10}
		o.register(t, allRoute, newRoute, late)
		o.fill(t, "new", time.Time{}, buffer.Filled{Waiting: 2})
		expectDrained(t, o.Buffer, "all", "a.1 x.2 b.3")
		o.fill(t, "late", time.Time{}, buffer.Filled{Waiting: 1})
		expectDrained(t, o.Buffer, "late", "a.1")
		o.fill(t, "new", time.Time{}, buffer.Filled{})
		expectDrained(t, o.Buffer, "new", "a.1 b.3")
		if left := query(t, o.pool, "SELECT (SELECT count(*) FROM things) + (SELECT count(*) FROM outbox_batches)", pgx.RowTo[int64])[0]; left != 0 {
			t.Errorf("%d rows are left in buffer and ledger", left)
		}
	})
}

// TestCustomFill_Held: no other sink settles its events before the fills, of which one is broken off and two run at the same time. They give each event once.
func TestCustomFill_Held(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.exec(t, "INSERT INTO activities SELECT i, 'a.' || i, '1' FROM generate_series(1, 300) i")
		o.exec(t, "INSERT INTO things (activity) SELECT i FROM generate_series(1, 300) i")
		for range 30 {
			_, err := o.Route(t.Context(), 10, lease, keepNone)
			check(t, err)
		}
		o.register(t, allRoute, newRoute)
		ctx, stop := context.WithCancel(t.Context())
		filled, err := o.FillSink(ctx, "new", time.Time{}, false, func(f buffer.Filled) {
			if f.Events() > 100 {
				stop()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("filled %+v, %v", filled, err)
		}
		var (
			fills sync.WaitGroup
			sums  [2]buffer.Filled
		)
		for i := range sums {
			fills.Go(func() {
				var err error
				if sums[i], err = o.FillSink(t.Context(), "new", time.Time{}, false, nil); err != nil {
					t.Error(err)
				}
			})
		}
		fills.Wait()
		if n := filled.Waiting + sums[0].Waiting + sums[1].Waiting; n != 300 {
			t.Errorf("gave %d, %d and %d events, want 300", filled.Waiting, sums[0].Waiting, sums[1].Waiting)
		}
		if n := len(strings.Fields(drainSink(t, o.Buffer, "new"))); n != 300 {
			t.Errorf("%d events arrived, want 300", n)
		}
		o.fill(t, "new", time.Time{}, buffer.Filled{})
	})
}

// TestCustomFill_Plans: with the statistics of empty tables, no statement of a fill reads the table in sequence.
func TestCustomFill_Plans(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.config.Custom.Project = "SELECT id, 'a.1' AS topic, to_jsonb(e.id) AS payload FROM {events} e"
		o.register(t, allRoute)
		o.exec(t, "ALTER TABLE things SET (autovacuum_enabled = false)")
		o.exec(t, "ANALYZE things, relay.outbox_batches")
		o.exec(t, "INSERT INTO things (activity) SELECT 1 FROM generate_series(1, 20000)")
		for range 200 {
			_, err := o.Route(t.Context(), 100, lease, keepNone)
			check(t, err)
		}
		filling, err := postgres.Open(func() postgres.Config {
			c := o.config
			c.Sinks = []buffer.Route{allRoute, {Sink: "new", BatchSize: 1000}}
			return c
		}())
		check(t, err)
		check(t, filling.RegisterSinks(t.Context()))
		stats := func() (sequential, read int64) {
			check(t, o.pool.QueryRow(t.Context(), `SELECT seq_tup_read, idx_tup_fetch + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
				FROM pg_stat_user_tables t WHERE relname = 'things'`).Scan(&sequential, &read))
			return sequential, read
		}
		check(t, o.Close())
		o.pool.Reset()
		sequential, read := stats()
		began := time.Now()
		filled, err := filling.FillSink(t.Context(), "new", time.Time{}, false, nil)
		check(t, err)
		t.Logf("filled %+v in %s", filled, time.Since(began))
		check(t, filling.Close()) // its sessions report what they read
		testserver.Eventually(t, func() error {
			nowSequential, nowRead := stats()
			switch {
			case nowRead-read < 40_000:
				return fmt.Errorf("%d rows are reported", nowRead-read)
			case nowSequential > sequential || nowRead-read > 250_000:
				t.Errorf("read %d rows in sequence, %d by indexes", nowSequential-sequential, nowRead-read)
			}
			return nil
		})
	})
}

// blockingProjection waits for the advisory lock 42.
const blockingProjection = "SELECT e.id, 'a.odd' AS topic, coalesce(pg_advisory_xact_lock_shared(42)::text, '') AS key, to_jsonb(1) AS payload FROM {events} e"

// begin runs a statement in a transaction that stays open.
func (o *customFixture) begin(t *testing.T, statement string) pgx.Tx {
	t.Helper()
	tx, err := o.pool.Begin(t.Context())
	check(t, err)
	t.Cleanup(func() { tx.Rollback(context.WithoutCancel(t.Context())) }) //nolint:errcheck // if the test fails
	_, err = tx.Exec(t.Context(), statement)
	check(t, err)
	return tx
}

// waits returns when a statement that matches waits for a lock, or when there is a result.
func (o *customFixture) waits(t *testing.T, statement string, result chan error) {
	t.Helper()
	testserver.Eventually(t, func() error {
		const blockedSQL = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ '%s')"
		if len(result) == 0 && !query(t, o.pool, fmt.Sprintf(blockedSQL, statement), pgx.RowTo[bool])[0] {
			return fmt.Errorf("%s waits for no lock", statement)
		}
		return nil
	})
}

// startFill fills the new sink. The count may be read after the result.
func (o *customFixture) startFill(t *testing.T) (result chan error, filled *buffer.Filled) {
	t.Helper()
	result, filled = make(chan error, 1), new(buffer.Filled)
	go func() {
		var err error
		*filled, err = o.FillSink(context.WithoutCancel(t.Context()), "new", time.Time{}, false, nil)
		result <- err
	}()
	return result, filled
}

// TestCustomFill_Settled: a batch that another sink settles while a fill projects takes nothing from the fill: its events wait for a third.
func TestCustomFill_Settled(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute, oddRoute)
		o.config.Custom.Project = blockingProjection
		o.register(t, allRoute, oddRoute)
		o.activities(t, "a.odd", "b.odd")
		routeAll(t, o.Buffer, "[all odd]")
		all, odd := takeOverOf(t, o.Sink("all"), "a.odd", "a.odd"), takeOverOf(t, o.Sink("odd"), "a.odd", "a.odd")
		o.register(t, allRoute, oddRoute, newRoute)
		projecting := o.begin(t, "SELECT pg_advisory_xact_lock(42)")
		filling, filled := o.startFill(t)
		o.waits(t, "lock_shared", filling)
		deliverAll(t, o.Sink("all"), all)
		check(t, projecting.Rollback(t.Context()))
		check(t, <-filling)
		if filled.Waiting != 2 || filled.Rejected != 0 {
			t.Errorf("filled %+v, want 2 events", *filled)
		}
		expectDrained(t, o.Buffer, "new", "a.odd a.odd")
		deliverAll(t, o.Sink("odd"), odd)
		o.expect(t, nothingLeft, "0/0")
	})
}

// TestCustomFill_Settling: a fill that projects while the last of the other sinks settles gives nothing that the settle deletes.
func TestCustomFill_Settling(t *testing.T) {
	forThingKeys(t, func(t *testing.T, key string) {
		o := newActivityFill(t, key, allRoute)
		o.config.Custom.Project = blockingProjection
		o.register(t, allRoute)
		o.activities(t, "a.odd")
		routeAll(t, o.Buffer, "[all]")
		batch := takeOverOf(t, o.Sink("all"), "a.odd")
		o.register(t, allRoute, newRoute)
		projecting, deleting := o.begin(t, "SELECT pg_advisory_xact_lock(42)"), o.begin(t, "SELECT FROM things FOR UPDATE")
		filling, filled := o.startFill(t)
		o.waits(t, "lock_shared", filling)
		settling := make(chan error, 1)
		go func() {
			settling <- o.Sink("all").Settle(context.WithoutCancel(t.Context()), batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
		}()
		o.waits(t, "DELETE FROM", settling)
		check(t, projecting.Rollback(t.Context()))
		o.waits(t, "relay claim|held AS", filling) // a fill without the lock waits for the row of the ledger
		check(t, deleting.Rollback(t.Context()))
		settled := <-settling // on a busy machine with an error, because the event was locked for long
		check(t, <-filling)
		if settled == nil && filled.Events() > 0 {
			t.Errorf("gave %d events that were deleted", filled.Events())
		}
		if n := len(strings.Fields(drainSink(t, o.Buffer, "new"))); int64(n) != filled.Events() {
			t.Errorf("gave %d events, and %d arrived", filled.Events(), n)
		}
	})
}
