package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testdb"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// flakySink is a sink that is unavailable for each batch at first, and rejects the ids
// that divide by 97 for a while: so retries, parts and due times are in play.
func flakySink(to sink.Sink) *sendHook {
	var (
		mu   sync.Mutex
		seen = map[int64]int{}
		bad  = map[int64]bool{} // refused once
	)
	return &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		mu.Lock()
		seen[b.Events[0].ID]++
		times := seen[b.Events[0].ID]
		refused := &sink.BatchError{}
		switch {
		case times == 1 && b.Events[0].ID%3 == 0:
			mu.Unlock()
			return sink.Unavailable(errTest)
		default:
			for i := range b.Events {
				if id := b.Events[i].ID; id%97 == 0 && !bad[id] {
					bad[id] = true
					refused.Events = append(refused.Events, sink.EventError{Index: i, Err: errTest})
				}
			}
		}
		mu.Unlock()
		if len(refused.Events) == 0 {
			return next()
		}
		for i := range b.Events { // none of the others was sent either
			if b.Events[i].ID%97 != 0 {
				refused.Events = append(refused.Events, sink.EventError{Index: i, Err: sink.Unavailable(errTest)})
			}
		}
		return refused
	}}
}

// testWholeWay lets two processes carry what several applications produce, over
// outages, refusals and retries.
func testWholeWay(t *testing.T, d *database, relayURL string) {
	t.Helper()
	to := redisAt(t, testserver.SharedRedis(t))
	wanted := d.insert(t, "orders", 4000)
	log := &lockedBuffer{}
	for i := range 2 {
		start(t, bufferAt(t, relayURL, fmt.Sprint("relay-", i)), flakySink(to), func(c *pipeline.Config) {
			c.Log = logInto(t, log)
		})
	}
	wanted = append(wanted, d.produce(t, "orders", 3, 30)...)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), wanted)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), 0)
	testkit.Equal(t, "claims that failed", log.count("claiming a batch failed"), 0)
	testkit.Equal(t, "settles that failed", log.count("settling a batch failed"), 0)
	testkit.Equal(t, "counts that failed", log.count("counting backlog failed"), 0)
}

func TestListener_TransactionPooler(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	testWholeWay(t, d, testserver.PgBouncer(t, d.url))
}

// What a database can be set to that the relay must not depend on.
func TestDatabase_OddDefaults(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{
		{"default_transaction_isolation": "repeatable read", "timezone": "Pacific/Kiritimati"}, // UTC+14
		{
			"default_transaction_isolation": "serializable", "timezone": "Pacific/Marquesas", // UTC-9:30
			"datestyle": "German", "intervalstyle": "sql_standard", "bytea_output": "escape",
			"synchronous_commit": "off", "extra_float_digits": "0", "lc_messages": "C",
		},
	} {
		t.Run(settings["default_transaction_isolation"], func(t *testing.T) {
			t.Parallel()
			url := testdb.Postgres(t, postgres.SchemaConfig{})
			d := migratedAt(t, url)
			for name, value := range settings {
				d.exec(t, fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", pgx.Identifier{nameOf(t, url)}.Sanitize(), name, value))
			}
			d.app.Reset()
			testkit.Equal(t, "time zone of a new session", queryValue[string](t, d, "SHOW timezone"), settings["timezone"])
			testWholeWay(t, d, url)
		})
	}
}

func nameOf(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	testkit.NoError(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// Transactions that drew their ids long ago commit late, one or several, before
// and after others that are rolled back.
func TestLateCommits_Arrive(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	b := &counts{Queue: d.buffer(t, "relay")}
	start(t, b, to, nil)
	wanted := d.insert(t, "orders", 100)
	early := d.begin(t)
	late := insertBy(t, early, "orders", 10)
	never := d.begin(t)
	insertBy(t, never, "orders", 10)
	wanted = append(wanted, d.insert(t, "orders", 5000)...)
	to.expectArrivals(t, "orders", len(wanted))
	later := d.begin(t)
	lateToo := insertBy(t, later, "orders", 250) // more than a batch
	wanted = append(wanted, d.insert(t, "orders", 3000)...)
	to.expectArrivals(t, "orders", len(wanted))

	testkit.NoError(t, later.Commit(t.Context()))
	wanted = append(wanted, lateToo...)
	to.expectArrivals(t, "orders", len(wanted))
	testkit.NoError(t, never.Rollback(t.Context()))
	wanted = append(wanted, d.insert(t, "orders", 50)...)
	to.expectArrivals(t, "orders", len(wanted))
	b.expectCountsFor(t, 5*time.Second) // long enough for the cursor to pass the ids
	testkit.NoError(t, early.Commit(t.Context()))
	wanted = append(wanted, late...)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), wanted)
}

// counts knows when the backlog was last counted.
type counts struct {
	buffer.Queue
	last atomic.Int64 // nanoseconds since 1970
}

func (c *counts) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	b, err := c.Queue.CountBacklog(ctx, limit)
	c.last.Store(time.Now().UnixNano())
	return b, err
}

// expectCountsFor waits until events were counted this much later than now.
func (c *counts) expectCountsFor(t testing.TB, d time.Duration) {
	t.Helper()
	then := time.Now().Add(d)
	testserver.Eventually(t, func() error {
		if last := time.Unix(0, c.last.Load()); last.Before(then) {
			return fmt.Errorf("the last count was at %v", last)
		}
		return nil
	})
}

// The same, and the process that passed the ids by is gone when they commit.
func TestLateCommits_ArriveAtTheNextProcess(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	first := start(t, d.buffer(t, "first"), to, nil)
	wanted := d.insert(t, "orders", 100)
	tx := d.begin(t)
	late := insertBy(t, tx, "orders", 10)
	wanted = append(wanted, d.insert(t, "orders", 1000)...)
	to.expectArrivals(t, "orders", len(wanted))
	first.stop(t)
	start(t, d.buffer(t, "next"), to, nil)
	wanted = append(wanted, d.insert(t, "orders", 1000)...)
	to.expectArrivals(t, "orders", len(wanted))
	testkit.NoError(t, tx.Commit(t.Context()))
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), append(wanted, late...))
}

// A prepared transaction holds its ids without a connection.
func TestLateCommits_PreparedTransaction(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	start(t, d.buffer(t, "relay"), to, nil)
	tx := d.begin(t)
	late := insertBy(t, tx, "orders", 10)
	_, err := tx.Exec(t.Context(), "PREPARE TRANSACTION 'late'")
	testkit.NoError(t, err)
	testkit.NoError(t, ignoreNoTransaction(tx.Commit(t.Context())))
	wanted := d.insert(t, "orders", 1000)
	to.expectArrivals(t, "orders", len(wanted))
	d.exec(t, "COMMIT PREPARED 'late'")
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), append(wanted, late...))
}

// ignoreNoTransaction: after PREPARE TRANSACTION there is none to commit, which
// PostgreSQL only warns of.
func ignoreNoTransaction(err error) error {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return nil
	}
	return err
}

// A transaction pins a snapshot, in this database and in another one.
func TestPinnedSnapshot_StopsNothing(t *testing.T) {
	t.Parallel()
	d, neighbour := newDatabase(t), newDatabase(t)
	to := redisAt(t, testserver.SharedRedis(t))
	for _, elsewhere := range []*database{d, neighbour} {
		tx, err := elsewhere.app.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		testkit.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT count(*) FROM outbox_events")
		testkit.NoError(t, err)
		t.Cleanup(func() { testkit.NoError(t, tx.Rollback(context.Background())) })
	}
	start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) { c.BatchSize = 500 })
	var wanted []int64
	for range 10 {
		wanted = append(wanted, d.insert(t, "orders", 3000)...)
		d.expectDrained(t)
	}
	expectOnce(t, to.arrived(t, "orders"), wanted)
}

// The sequence starts again, with batches that wait for a retry and without.
func TestSequence_SetBack(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	hold := make(chan struct{})
	g := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		if b.Events[0].Topic == "stuck" {
			select {
			case <-hold:
			default:
				return sink.Unavailable(errTest)
			}
		}
		return next()
	}}
	// As after a long life: nothing is left up to 1000.
	d.exec(t, "SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1000)")
	d.exec(t, "INSERT INTO outbox_buffers (buffer, claim, floor) VALUES ('public.outbox_events', 'stamp', 1000)")
	start(t, d.buffer(t, "relay"), g, nil)
	first := d.insert(t, "first", 1000)
	d.expectDrained(t)
	d.exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
	second := d.insert(t, "second", 300)
	testkit.Equal(t, "the first id after it", second[0], 1)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "first"), first)
	expectOnce(t, to.arrived(t, "second"), second)

	d.insert(t, "stuck", 150)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT coalesce(min(outages), 0) FROM outbox_batches"); n == 0 {
			return errors.New("the stuck events were not tried")
		}
		return nil
	})
	d.exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
	third := d.insert(t, "third", 200) // fewer than 300, where the cursor may still be
	to.expectArrivals(t, "third", len(third))
	close(hold)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "third"), third)
	expectOnce(t, to.arrived(t, "stuck"), nil)
}

// Events inserted with explicit ids are behind the cursor. Only the scan from the beginning at the start
// finds them.
func TestLateCommits_ManualID(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	d.exec(t, "SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1000)")
	first := start(t, d.buffer(t, "relay"), to, nil)
	wanted := d.insert(t, "orders", 100)
	d.expectDrained(t)
	first.stop(t)
	d.exec(t, "INSERT INTO outbox_events (id, topic, payload) VALUES (5, 'orders', '{}')")
	start(t, d.buffer(t, "next"), to, nil)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), append(wanted, 5))
}

// One connection for all workers makes it slow, and does not stop it.
func TestConnections_OneIsEnough(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 1})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	ids := d.insert(t, "orders", 2000)
	start(t, b, flakySink(to), func(c *pipeline.Config) { c.Workers = 8 })
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}
