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
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// newFillDB returns a database with an archive.
func newFillDB(t *testing.T, mode buffer.ClaimMode) *testDB {
	t.Helper()
	p := newMigratedDB(t, buffertest.Options{Claim: mode})
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Archive: "outbox_archive"})
	check(t, err)
	return p
}

// openFill opens a buffer with an archive and registers its sinks.
func openFill(t *testing.T, p *testDB, mode buffer.ClaimMode, routes ...buffer.Route) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Owner: "fill", Claim: mode, Archive: "outbox_archive", Sinks: routes})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.RegisterSinks(t.Context()))
	return b
}

func fillSink(t *testing.T, b *postgres.Buffer, sink string, since time.Time, want buffer.Filled) {
	t.Helper()
	for _, dry := range []bool{true, false} {
		got, err := b.FillSink(t.Context(), sink, since, dry, nil)
		check(t, err)
		if got != want {
			t.Fatalf("filled %+v (dry: %v), want %+v", got, dry, want)
		}
	}
}

// drainSink delivers all that is due for a sink, and returns the topics in order.
func drainSink(t *testing.T, b *postgres.Buffer, sink string) string {
	t.Helper()
	var topics []string
	for {
		batch, err := b.Sink(sink).TakeOver(t.Context(), lease, buffer.DueRetry)
		check(t, err)
		if batch == nil {
			return strings.Join(topics, " ")
		}
		for i := range batch.Events {
			topics = append(topics, batch.Events[i].Topic)
		}
		deliverAll(t, b.Sink(sink), batch)
	}
}

func expectDrained(t *testing.T, b *postgres.Buffer, sink, want string) {
	t.Helper()
	if got := drainSink(t, b, sink); got != want {
		t.Fatalf("sink %s got %q, want %q", sink, got, want)
	}
}

func forEachFillMode(t *testing.T, f func(t *testing.T, mode buffer.ClaimMode)) {
	t.Helper()
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f(t, mode)
		})
	}
}

// TestFillSink: a sink that is added gets what was routed before, in the table and in the archive, once. The other sinks get none of it again.
func TestFillSink(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 2}
		b := openFill(t, p, mode, all, crm)
		insertTopics(t, p, "a.1", "b.1", "x.1", "a.2") // archived
		routeAll(t, b, "[all crm]")
		drainSink(t, b, "all")
		drainSink(t, b, "crm")
		insertTopics(t, p, "a.3", "b.3", "x.3", "a.4", "a.5") // wait for both, or for one
		routeAll(t, b, "[all crm]")
		insertTopics(t, p, "b.6") // a row of its own under a stamp
		_, err := b.Route(t.Context(), 100, lease, keepNone)
		check(t, err)
		deliverAll(t, b.Sink("crm"), takeOverOf(t, b.Sink("crm"), "a.3", "a.4"))

		added := buffer.Route{Sink: "new", Match: []string{"a.#", "b.*"}, BatchSize: 3}
		b = openFill(t, p, mode, all, crm, added)
		insertTopics(t, p, "a.7", "unclaimed.8", "a.8")
		routeAll(t, b, "[all crm new]")
		fillSink(t, b, "new", time.Time{}, buffer.Filled{Waiting: 5, Archived: 3})
		fillSink(t, b, "new", time.Time{}, buffer.Filled{})
		expectDrained(t, b, "new", "a.7 a.8 a.3 b.3 a.4 a.5 b.6 a.1 b.1 a.2")
		fillSink(t, b, "new", time.Time{}, buffer.Filled{})
		expectDrained(t, b, "all", "a.3 b.3 x.3 a.4 a.5 b.6 a.7 unclaimed.8 a.8")
		fillSink(t, b, "new", time.Time{}, buffer.Filled{})
		expectDrained(t, b, "crm", "a.5 a.7 a.8")
		expectEmpty(t, p)
		fillSink(t, b, "new", time.Time{}, buffer.Filled{})
		audited, err := b.Audit(t.Context())
		check(t, err)
		if !audited.Agrees() {
			t.Errorf("the audit is %+v", audited)
		}

		// What is settled by the others while the fill has not come there is in the archive.
		other := openFill(t, p, mode, all, crm, added, buffer.Route{Sink: "late", Match: []string{"b.6", "x.*", "a.7"}, BatchSize: 10})
		fillSink(t, other, "late", time.Time{}, buffer.Filled{Archived: 4})
		expectDrained(t, other, "late", "x.1 x.3 b.6 a.7")
		expectEmpty(t, p)
	})
}

// TestFillSink_Since: only events that were created since a time, also within a batch.
func TestFillSink_Since(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		all := buffer.Route{Sink: "all", BatchSize: 100}
		b := openFill(t, p, mode, all)
		since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		insert := func(topic string, created time.Time) {
			_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload, created_at) VALUES ($1, '{}', $2)", topic, created)
			check(t, err)
		}
		for _, archived := range []bool{true, false} {
			insert(fmt.Sprint("before ", archived), since.Add(-time.Microsecond))
			insert(fmt.Sprint("at ", archived), since)
			routeAll(t, b, "[all]")
			if archived {
				drainSink(t, b, "all")
			}
		}
		b = openFill(t, p, mode, all, buffer.Route{Sink: "new", BatchSize: 10})
		fillSink(t, b, "new", since, buffer.Filled{Waiting: 1, Archived: 1})
		expectDrained(t, b, "new", "at false at true")
	})
}

// TestFillSink_Leased: a batch that is being sent and shares no event is filled when it comes back, one that shares events at once; parts are filled, too.
func TestFillSink_Leased(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		all := buffer.Route{Sink: "all", BatchSize: 100}
		b := openFill(t, p, mode, all)
		insertTopics(t, p, "a.1", "a.2", "a.3")
		routeAll(t, b, "[all]")
		leased := takeOverOf(t, b.Sink("all"), "a.1", "a.2", "a.3")
		b = openFill(t, p, mode, all, buffer.Route{Sink: "new", BatchSize: 10})
		type result struct {
			buffer.Filled
			error
		}
		done, looked := make(chan result), make(chan bool, 1)
		go func() {
			filled, err := b.FillSink(context.WithoutCancel(t.Context()), "new", time.Time{}, false, func(buffer.Filled) {
				select {
				case looked <- true:
				default:
				}
			})
			done <- result{filled, err}
		}()
		<-looked
		check(t, b.Sink("all").Settle(t.Context(), leased, retryRest(leased)))
		r := <-done
		check(t, r.error)
		// a.1 may be delivered before or after the fill has its batch.
		if r.Events() != 3 {
			t.Fatalf("filled %+v, want 3 events", r.Filled)
		}
		if got := drainSink(t, b, "new"); len(strings.Fields(got)) != 3 {
			t.Errorf("the new sink got %q", got)
		}
		expectDrained(t, b, "all", "a.2 a.3")
		expectEmpty(t, p)
	})
}

// TestFillSink_Join: a relay that had routed events before the sink was added adds none to the same batches: a fill could not tell which of their events the
// sink has.
func TestFillSink_Join(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		routes := []buffer.Route{{Sink: "all", BatchSize: 100}, {Sink: "crm", BatchSize: 100}}
		old := openFill(t, p, mode, routes...)
		insertTopics(t, p, "before")
		routeAll(t, old, "[all crm]")
		b := openFill(t, p, mode, append(routes, buffer.Route{Sink: "new", BatchSize: 100})...)
		check(t, old.ServeSinks(t.Context())) // it reads the registry
		insertTopics(t, p, "after")
		routeAll(t, old, "[all crm new]")
		expectDrained(t, b, "new", "after")
		fillSink(t, b, "new", time.Time{}, buffer.Filled{Waiting: 1})
		expectDrained(t, b, "new", "before")
		expectDrained(t, b, "all", "before after")
		expectDrained(t, b, "crm", "before after")
		expectEmpty(t, p)
	})
}

// TestFillSink_Workers: the other sinks settle while a fill runs, in part and late. Every event reaches each sink once.
func TestFillSink_Workers(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		routes := []buffer.Route{{Sink: "all", BatchSize: 7}, {Sink: "crm", Match: []string{"a.#"}, BatchSize: 5}}
		b := openFill(t, p, mode, routes...)
		const events = 600
		_, err := p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT CASE i % 3 WHEN 0 THEN 'b.' ELSE 'a.' END || i, '{}' FROM generate_series(1, $1::int) i", events)
		check(t, err)
		for range events / 12 {
			_, err := b.Route(t.Context(), 12, lease, keepNone)
			check(t, err)
		}
		b = openFill(t, p, mode, append(routes, buffer.Route{Sink: "new", BatchSize: 10})...)
		var (
			mu   sync.Mutex
			got  = map[string]int{} // by sink and id
			done sync.WaitGroup
		)
		filled := make(chan struct{})
		for i, sink := range []string{"all", "crm", "new", "all", "crm", "new"} {
			done.Go(func() {
				for ended := false; ; {
					select {
					case <-filled:
						ended = true
					default:
					}
					batch, err := b.Sink(sink).TakeOver(t.Context(), lease, buffer.DueRetry)
					if err != nil {
						t.Error(err)
						return
					}
					if batch == nil {
						if ended {
							return
						}
						continue
					}
					outcomes := []buffer.Outcome{{Verdict: buffer.Delivered}}
					ids := batch.IDs()
					if i < 3 && len(ids) > 2 {
						outcomes, ids = retryRest(batch), ids[:1]
					}
					if err := b.Sink(sink).Settle(t.Context(), batch, outcomes); err != nil {
						t.Errorf("sink %s: %v", sink, err)
						return
					}
					mu.Lock()
					for _, id := range ids {
						got[fmt.Sprint(sink, " ", id)]++
					}
					mu.Unlock()
				}
			})
		}
		sum, err := b.FillSink(t.Context(), "new", time.Time{}, false, nil)
		check(t, err)
		close(filled)
		done.Wait()
		t.Logf("filled %+v", sum)
		ids := query(t, p.pool, "SELECT DISTINCT id FROM outbox_archive", pgx.RowTo[int64])
		if len(ids) != events || sum.Events() != events {
			t.Errorf("archived %d, filled %+v, want %d", len(ids), sum, events)
		}
		for _, id := range ids {
			if all, added := got[fmt.Sprint("all ", id)], got[fmt.Sprint("new ", id)]; all != 1 || added != 1 {
				t.Errorf("event %d arrived %d times at all and %d times at new", id, all, added)
			}
		}
		expectEmpty(t, p)
	})
}

// TestFillSink_Restored: a sink that was dropped gets what was routed meanwhile, and nothing that it had before.
func TestFillSink_Restored(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		all, crm := buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", BatchSize: 100}
		b := openFill(t, p, mode, all, crm)
		for _, step := range []string{"had", "dropped", "again"} {
			switch step {
			case "dropped":
				check(t, b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
			case "again":
				check(t, b.RestoreSink(t.Context(), "crm"))
			}
			check(t, b.ServeSinks(t.Context()))
			insertTopics(t, p, step+".waits")
			want := "[all crm]"
			if step == "dropped" {
				want = "[all]"
			}
			routeAll(t, b, want)
		}
		expectDrained(t, b, "crm", "had.waits again.waits")
		fillSink(t, b, "crm", time.Time{}, buffer.Filled{Waiting: 1})
		expectDrained(t, b, "crm", "dropped.waits")
		expectDrained(t, b, "all", "had.waits dropped.waits again.waits")
		expectEmpty(t, p)
		fillSink(t, b, "crm", time.Time{}, buffer.Filled{})
	})
}

// TestFillSink_Single: a pipeline with a single sink got several. What it has archived, and what waits for its sink, goes to a new one.
func TestFillSink_Single(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		single, err := postgres.Open(postgres.Config{URL: p.url, Pipeline: "orders", Owner: "single", Claim: mode, Archive: "outbox_archive"})
		check(t, err)
		t.Cleanup(func() { check(t, single.Close()) })
		for _, topic := range []string{"archived", "waits"} {
			insertTopics(t, p, topic)
			batch, err := single.Claim(t.Context(), 10, lease)
			check(t, err)
			if topic == "archived" {
				deliverAll(t, single, batch)
			} else {
				check(t, single.Settle(t.Context(), batch, retryAll(batch)))
			}
		}
		b := openFill(t, p, mode, buffer.Route{Sink: "all", Was: "default", BatchSize: 100}, buffer.Route{Sink: "new", BatchSize: 100})
		fillSink(t, b, "new", time.Time{}, buffer.Filled{Waiting: 1, Archived: 1})
		expectDrained(t, b, "new", "waits archived")
		expectDrained(t, b, "all", "waits")
		expectEmpty(t, p)
		fillSink(t, b, "new", time.Time{}, buffer.Filled{})
	})
}

// TestFillSink_DeadLetters: an event that no sink took is a dead letter, and in the archive. A fill leaves it to the replay, so the new sink gets it once; after a
// discard a fill sends it.
func TestFillSink_DeadLetters(t *testing.T) {
	forEachFillMode(t, func(t *testing.T, mode buffer.ClaimMode) {
		p := newFillDB(t, mode)
		crm := buffer.Route{Sink: "crm", Match: []string{"a.*"}, BatchSize: 10}
		b := openFill(t, p, mode, crm)
		insertTopics(t, p, "x.1", "a.1", "x.2")
		routeAll(t, b, "[crm]")
		drainSink(t, b, "crm")
		if _, err := b.RouteDue(t.Context(), lease); err != nil { // deletes what no sink took
			t.Fatal(err)
		}
		if n := countRows(t, p, "outbox_archive"); n != 3 {
			t.Fatalf("%d events are in the archive, want 3", n)
		}
		b = openFill(t, p, mode, crm, buffer.Route{Sink: "new", Match: []string{"#"}, BatchSize: 10})
		fillSink(t, b, "new", time.Time{}, buffer.Filled{Archived: 1})
		expectDrained(t, b, "new", "a.1")
		if n, err := b.Replay(t.Context(), buffer.DeadFilter{Topic: "x.1"}, 10); n != 1 || err != nil {
			t.Fatalf("replayed %d, %v", n, err)
		}
		fillSink(t, b, "new", time.Time{}, buffer.Filled{})
		routed, err := b.RouteDue(t.Context(), lease)
		check(t, err)
		if routed != nil {
			t.Logf("routed %+v", routed)
		}
		expectDrained(t, b, "new", "x.1")
		if n, err := b.Discard(t.Context(), buffer.DeadFilter{}, 10); n != 1 || err != nil {
			t.Fatalf("discarded %d, %v", n, err)
		}
		fillSink(t, b, "new", time.Time{}, buffer.Filled{Archived: 1})
		expectDrained(t, b, "new", "x.2")
		expectEmpty(t, p)
	})
}

// TestFillSink_Refused: sinks that are unknown or dropped, and pipelines that keep order.
func TestFillSink_Refused(t *testing.T) {
	t.Parallel()
	p := newFillDB(t, buffer.ClaimRange)
	b := openFill(t, p, buffer.ClaimRange, buffer.Route{Sink: "all", BatchSize: 100}, buffer.Route{Sink: "crm", BatchSize: 100})
	check(t, b.DropSink(t.Context(), "crm", buffer.DroppedDiscarded))
	for _, name := range []string{"unknown", "crm", "*"} {
		if _, err := b.FillSink(t.Context(), name, time.Time{}, true, nil); err == nil || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("sink %s: %v", name, err)
		} else if _, ok := errors.AsType[*buffer.NoSinkError](err); !ok {
			t.Errorf("sink %s: %v", name, err)
		}
	}
	ordered := openFill(t, newFillDB(t, buffer.ClaimAuto), buffer.ClaimAuto, buffer.Route{Sink: "all", BatchSize: 100, Ordered: true}, buffer.Route{Sink: "new", BatchSize: 100})
	for _, name := range []string{"all", "new"} {
		if _, err := ordered.FillSink(t.Context(), name, time.Time{}, true, nil); !errors.Is(err, buffer.ErrFillOrder) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("sink %s of a pipeline with order: %v", name, err)
		}
	}
}

// TestFillSink_Plans: with the statistics of empty tables, no statement of a fill reads a table in sequence.
func TestFillSink_Plans(t *testing.T) {
	t.Parallel()
	p := newFillDB(t, buffer.ClaimRange)
	all := buffer.Route{Sink: "all", BatchSize: 100}
	b := openFill(t, p, buffer.ClaimRange, all)
	_, err := p.pool.Exec(t.Context(), "ANALYZE outbox_events, outbox_batches, outbox_archive")
	check(t, err)
	_, err = p.pool.Exec(t.Context(), `
		INSERT INTO outbox_archive (id, topic, payload, created_at, group_id)
		SELECT i + 100000, 't', '{}', now(), gen_random_uuid() FROM generate_series(1, 20000) i`)
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) SELECT 't', '{}' FROM generate_series(1, 20000)")
	check(t, err)
	_, err = p.pool.Exec(t.Context(), "SELECT setval('outbox_events_id_seq', 50000)")
	check(t, err)
	for range 200 {
		if routed, err := b.Route(t.Context(), 100, lease, keepNone); err != nil || routed == nil {
			t.Fatal(routed, err)
		}
	}
	filling, err := postgres.Open(postgres.Config{
		URL: p.url, Pipeline: "orders", Owner: "fill", Archive: "outbox_archive", Sinks: []buffer.Route{all, {Sink: "new", BatchSize: 1000}},
	})
	check(t, err)
	check(t, filling.RegisterSinks(t.Context()))
	scans := func() int64 {
		return query(t, p.pool, "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables WHERE relname IN ('outbox_events', 'outbox_archive')", pgx.RowTo[int64])[0]
	}
	before, began := scans(), time.Now()
	fillSink(t, filling, "new", time.Time{}, buffer.Filled{Waiting: 20000, Archived: 20000})
	t.Logf("filled 40,000 events in %s", time.Since(began))
	check(t, filling.Close()) // its sessions report what they read
	testserver.Eventually(t, func() error {
		if n := query(t, p.pool, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'outbox_archive'", pgx.RowTo[int64])[0]; n < 40000 {
			return fmt.Errorf("%d rows of the archive are reported", n)
		}
		return nil
	})
	if n := scans() - before; n > 0 {
		t.Errorf("read %d rows in sequence", n)
	}
}
