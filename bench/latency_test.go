package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkLatency commits events one by one from one connection and from eight, each event with BEGIN, INSERT and COMMIT, at four
// rates, on schedule whether earlier ones have arrived or not. It reports the time from the return of the COMMIT to the return of
// a blocking XREAD, with one clock, and the CPU time of PostgreSQL, inserts included, by event: for the relay with the default wake
// mode, for the relay that polls, and for the loop, which polls every 10 ms.
func BenchmarkLatency(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	relay.migrate(b, settings{})
	lasting := scaledTime(10 * time.Second)
	for b.Loop() {
		t := table{head: []string{"", "connections", "inserts/s", "p50 ms", "p99 ms", "PostgreSQL µs an event", "own µs an event"}}
		for _, connections := range []int{1, 8} {
			for _, perSecond := range []int{10, 100, 500, 2000} {
				for _, c := range []struct {
					name, table string
					start       func(*testing.B, *testserver.RedisServer) (pid int, stop func())
				}{
					{"relay", eventsTable, func(b *testing.B, to *testserver.RedisServer) (int, func()) {
						return relay.run(b, settings{sink: to.URL})
					}},
					{"wake: poll", eventsTable, func(b *testing.B, to *testserver.RedisServer) (int, func()) {
						return relay.run(b, settings{sink: to.URL, wake: "poll"})
					}},
					{"loop", loopTable, db.pollingLoop},
				} {
					if !wanted(c.name) {
						continue
					}
					db.fill(b, c.table, 0)
					server := testserver.Redis(b, "--appendonly", "no")
					pid, stop := c.start(b, server)
					w := db.latency(b, c.table, server.Addr, pid, connections, perSecond, lasting)
					stop()
					db.mustBeEmpty(b, c.table)
					t.add(c.name, float64(connections), float64(perSecond), quantile(w.ms, .5), quantile(w.ms, .99), w.postgres, w.own)
				}
			}
		}
		b.Logf("commit to sink\n%s", t)
	}
	b.ReportMetric(0, "ns/op")
}

// pollingLoop runs the loop in this process, with a pause of 10 ms after it found nothing.
func (db *database) pollingLoop(b *testing.B, to *testserver.RedisServer) (pid int, stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	client := redis.NewClient(&redis.Options{Addr: to.Addr})
	conn, err := pgx.Connect(ctx, db.url)
	testkit.NoError(b, err)
	ended := make(chan error, 1)
	push := xadds(client)
	go func() {
		for {
			n, err := loopBatch(context.WithoutCancel(ctx), conn, batchSize, push, func(time.Duration) {})
			if err != nil || ctx.Err() != nil {
				ended <- err
				return
			}
			if n == 0 {
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the loop polls
			}
		}
	}()
	return 0, func() {
		cancel()
		testkit.NoError(b, <-ended)
		testkit.NoError(b, conn.Close(b.Context()))
		testkit.NoError(b, client.Close())
	}
}

type latencies struct {
	ms            []float64
	postgres, own float64 // CPU time in microseconds an event
}

// latency commits events for a time and measures.
func (db *database) latency(b *testing.B, table, redisAddr string, pid, connections, perSecond int, lasting time.Duration) (w latencies) {
	b.Helper()
	ctx, cancel := bounded(b, lasting+time.Minute)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer func() { testkit.NoError(b, client.Close()) }()
	conns := make([]*pgx.Conn, connections)
	for i := range conns {
		var err error
		conns[i], err = pgx.Connect(ctx, db.url)
		testkit.NoError(b, err)
		defer conns[i].Close(b.Context())
	}
	from := "0"
	warm := max(20, perSecond/10) / connections * connections
	run := func(n int) (committed, read *moments) {
		committed, read = &moments{at: map[int64]time.Time{}}, &moments{at: map[int64]time.Time{}}
		var group errgroup.Group
		group.Go(func() error { return readStream(ctx, client, read, &from, n) })
		began := time.Now()
		for c, conn := range conns {
			group.Go(func() error {
				for i := c; i < n; i += connections {
					due := began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))
					time.Sleep(time.Until(due)) //nolint:forbidigo // the rate
					id, err := insertOne(ctx, conn, table)
					if err != nil {
						return err
					}
					committed.set(id, time.Now())
				}
				return nil
			})
		}
		testkit.NoError(b, group.Wait())
		return committed, read
	}
	run(warm)
	pause(b, 2*time.Second)
	n := int(lasting.Seconds() * float64(perSecond))
	postgres, own := familyTime(b, db.pid), cpuTime(b, pid)
	committed, read := run(n)
	w.postgres = (familyTime(b, db.pid) - postgres).Seconds() * 1e6 / float64(n)
	w.own = (cpuTime(b, pid) - own).Seconds() * 1e6 / float64(n)
	for id, at := range committed.at {
		there, ok := read.at[id]
		if !ok {
			b.Fatalf("event %d did not arrive", id)
		}
		w.ms = append(w.ms, max(0, milliseconds(there.Sub(at))))
	}
	pause(b, time.Second)
	return w
}

// moments are times of events, by id.
type moments struct {
	mu sync.Mutex
	at map[int64]time.Time
}

func (m *moments) set(id int64, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at[id] = at
}

// readStream reads a number of entries and records when they arrived.
func readStream(ctx context.Context, client *redis.Client, read *moments, from *string, entries int) error {
	for seen := 0; seen < entries; {
		streams, err := client.XRead(ctx, &redis.XReadArgs{Streams: []string{orders, *from}, Count: 1000, Block: time.Minute}).Result()
		if err != nil {
			return fmt.Errorf("%d of %d entries were read: %w", seen, entries, err)
		}
		now := time.Now()
		for _, entry := range streams[0].Messages {
			id, err := strconv.ParseInt(fmt.Sprint(entry.Values["id"]), 10, 64)
			if err != nil {
				return err
			}
			read.set(id, now)
			*from = entry.ID
			seen++
		}
	}
	return nil
}

// insertOne commits one event in a transaction of its own.
func insertOne(ctx context.Context, conn *pgx.Conn, table string) (id int64, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing to roll back after the commit
	insert := fmt.Sprintf(`INSERT INTO %s (topic, payload) SELECT 'orders', %s FROM (VALUES (1)) v (i) RETURNING id`, table, payloadSQL)
	if err := tx.QueryRow(ctx, insert).Scan(&id); err != nil {
		return 0, err
	}
	return id, tx.Commit(ctx)
}
