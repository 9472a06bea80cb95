package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// BenchmarkLatency commits 500 single events a second for twenty seconds, whether
// earlier ones have arrived or not. It reports the time from the return of the INSERT
// to the return of a blocking XREAD in a consumer, with one clock. That includes the
// wake-up, the claim, the send, Redis and this process's scheduling, but not the
// insert.
func BenchmarkLatency(b *testing.B) {
	for _, wake := range []string{"notify", "poll"} {
		b.Run(wake, func(b *testing.B) {
			db := newDatabase(b)
			relay := build(b, db)
			s := settings{wake: wake}
			relay.migrate(b, s)
			var all, inserts []float64
			for b.Loop() {
				db.truncate(b, eventsTable)
				server := testserver.Redis(b, "--appendonly", "no")
				s.sink = server.URL
				_, stop := relay.run(b, s)
				arrived, inserted := db.trickle(b, server.Addr, 500, scaledTime(20*time.Second))
				all, inserts = append(all, arrived...), append(inserts, inserted...)
				stop()
				db.mustBeEmpty(b, eventsTable)
			}
			t := table{head: []string{"ms", "p50", "p90", "p99", "most"}}
			row := func(name string, of []float64) {
				t.add(name, quantile(of, .5), quantile(of, .9), quantile(of, .99), quantile(of, 1))
			}
			row("commit to sink, wake: "+wake, all)
			row("the insert itself", inserts)
			b.Logf("%d events, claimed by %s\n%s", len(all), db.claimMode(b), t)
			b.ReportMetric(quantile(all, .5), "ms-p50")
			b.ReportMetric(quantile(all, .99), "ms-p99")
			b.ReportMetric(0, "ns/op")
		})
	}
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

// trickle inserts events one by one at a given rate. It returns, in milliseconds, the
// time from each commit to its arrival in the stream, and the time of each insert.
func (db *database) trickle(b *testing.B, addr string, perSecond int, lasting time.Duration) (arrived, inserted []float64) {
	b.Helper()
	ctx, cancel := bounded(b, lasting+time.Minute)
	defer cancel()
	config, err := pgxpool.ParseConfig(db.url)
	testkit.NoError(b, err)
	config.MinConns, config.MaxConns = 8, 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	testkit.NoError(b, err)
	defer pool.Close()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { testkit.NoError(b, client.Close()) }()

	// Warm up until everything is connected and idle again.
	warm := moments{at: map[int64]time.Time{}}
	pace(b, ctx, pool, &warm, perSecond, 200)
	from := "0"
	testkit.NoError(b, readStream(ctx, client, &warm, &from, 200))
	pause(b, 2*time.Second)

	n := int(lasting.Seconds() * float64(perSecond))
	committed, read := moments{at: map[int64]time.Time{}}, moments{at: map[int64]time.Time{}}
	var group errgroup.Group
	group.Go(func() error { return readStream(ctx, client, &read, &from, n) })
	inserted = pace(b, ctx, pool, &committed, perSecond, n)
	testkit.NoError(b, group.Wait())
	for id, at := range committed.at {
		there, ok := read.at[id]
		if !ok {
			b.Fatalf("event %d did not arrive", id)
		}
		arrived = append(arrived, max(0, milliseconds(there.Sub(at)))) // it may be there before its insert returns
	}
	return arrived, inserted
}

// pace starts inserts at a given rate, whether earlier ones are done or not, and
// returns how many milliseconds each took.
func pace(b *testing.B, ctx context.Context, pool *pgxpool.Pool, committed *moments, perSecond, n int) []float64 {
	b.Helper()
	var group errgroup.Group
	took := make([]float64, n)
	due := time.Now()
	for i := range n {
		due = due.Add(time.Second / time.Duration(perSecond))
		pause(b, time.Until(due))
		group.Go(func() error {
			var id int64
			began := time.Now()
			err := pool.QueryRow(ctx, insertSQL).Scan(&id)
			now := time.Now()
			committed.set(id, now)
			took[i] = milliseconds(now.Sub(began))
			return err
		})
	}
	testkit.NoError(b, group.Wait())
	return took
}

const insertSQL = `
INSERT INTO outbox_events (topic, payload) SELECT 'orders', ` + payloadSQL + ` FROM (VALUES (1)) v (i) RETURNING id`

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
