package bench

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// size is one size of what is drained.
type size struct {
	name    string
	events  int
	payload int // bytes
	batch   int
	topics  int // each is an address
}

// BenchmarkSizes drains with the command and the loop, round by round: payloads from 100 bytes to 100 kB, batches from 10 to
// 10,000 events, and one or 10,000 addresses. Besides the figures of a drain it reports the peak memory of the command.
func BenchmarkSizes(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	relay.migrate(b, settings{})
	for _, s := range []size{
		{name: "Payload/100B", events: 200_000, payload: 100},
		{name: "Payload/1kB", events: 100_000, payload: 1000},
		{name: "Payload/10kB", events: 20_000, payload: 10_000},
		{name: "Payload/100kB", events: 4000, payload: 100_000},
		{name: "Batch/10", events: 20_000, batch: 10},
		{name: "Batch/100", events: 100_000, batch: 100},
		{name: "Batch/1000", events: 200_000, batch: 1000},
		{name: "Batch/10000", events: 200_000, batch: 10_000},
	} {
		b.Run(s.name, func(b *testing.B) { relay.drainsOf(b, s, redisTopics(b)) })
	}
	for _, n := range []int{1, 10_000} {
		s := size{events: 100_000, topics: n}
		b.Run(fmt.Sprintf("Addresses/Redis/%d", n), func(b *testing.B) { relay.drainsOf(b, s, redisTopics(b)) })
		b.Run(fmt.Sprintf("Addresses/JetStream/%d", n), func(b *testing.B) { relay.drainsOf(b, s, jetStreamTopics(b)) })
	}
}

// drainsOf compares the loop with two workers and the command.
func (c command) drainsOf(b *testing.B, s size, to broker) {
	s.payload, s.batch, s.topics = cmp.Or(s.payload, 300), cmp.Or(s.batch, batchSize), max(1, s.topics)
	events, peak := scaled(s.events), 0.0
	fill := func(table string) func(*testing.B) {
		return func(b *testing.B) { c.db.insertSized(b, table, events, s) }
	}
	c.db.race(b, to, []contender{
		{name: "loop2", table: loopTable, fill: fill(loopTable), start: func(b *testing.B, to broker, events int) drain {
			count := newCountdown(events)
			stop := c.db.startLoopOf(b, 2, s.batch, to.loop, count.add, func(time.Duration) {})
			return drain{done: func() { count.await(b, 2*time.Minute) }, stop: stop}
		}},
		{name: "relay run", table: eventsTable, batched: true, fill: fill(eventsTable), start: func(b *testing.B, to broker, _ int) drain {
			pid, stop := c.run(b, settings{sink: to.url, address: to.address, batch: s.batch})
			return drain{pid: pid, stop: stop, done: func() {
				untilEach(b, 5*time.Millisecond, 2*time.Minute, func() bool { return c.db.settled(b, eventsTable) })
				peak = max(peak, peakMemory(b, pid))
			}}
		}},
	}, events, cold)
	b.ReportMetric(peak, "relay-run-MB")
}

// insertSized commits n events of a size. Their topics take turns.
func (db *database) insertSized(b *testing.B, table string, n int, s size) {
	b.Helper()
	payload := `{"pad": "` + strings.Repeat("x", s.payload-11) + `"}`
	_, err := db.pool.CopyFrom(b.Context(), pgx.Identifier{table}, []string{"topic", "payload"}, pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		return []any{fmt.Sprintf("%s.%d", orders, i%s.topics), payload}, nil
	}))
	testkit.NoError(b, err)
}

// redisTopics is a Redis with a stream for each topic.
func redisTopics(b *testing.B) broker {
	b.Helper()
	server := testserver.Redis(b, "--appendonly", "no")
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	b.Cleanup(func() { testkit.NoError(b, client.Close()) })
	return broker{
		pid: redisPID(b, client), url: server.URL, address: `stream: "{topic}"`,
		loop:  func() (push, error) { return xadds(client), nil },
		empty: func(b *testing.B, _ contender) { testkit.NoError(b, client.FlushAll(b.Context()).Err()) },
		count: func(b *testing.B) (n int) {
			streams, err := client.Keys(b.Context(), orders+".*").Result()
			testkit.NoError(b, err)
			for _, stream := range streams {
				length, err := client.XLen(b.Context(), stream).Result()
				testkit.NoError(b, err)
				n += int(length)
			}
			return n
		},
	}
}

// jetStreamTopics is a stream with a subject for each topic.
func jetStreamTopics(b *testing.B) broker {
	b.Helper()
	url, pid := startNATS(b)
	conn, err := nats.Connect(url)
	testkit.NoError(b, err)
	b.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	testkit.NoError(b, err)
	return broker{
		pid: pid, url: url, address: `subject: "{topic}"`,
		loop:  func() (push, error) { return publishes(b, url) },
		empty: func(b *testing.B, c contender) { newStream(b, js, orders+".*", c.batched) },
		count: func(b *testing.B) int { return inStream(b, js) },
	}
}
