package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

const (
	// Each transaction of the application inserts this many events with its number as their key.
	eventsPerCommit = 100
	// maxBacklog bounds what waits while the maximum rate is measured.
	maxBacklog = 20_000
	producers  = 4
)

// BenchmarkSteady drains to a Redis stream while events arrive. It first measures the maximum rate at which each contender keeps
// up with four connections that commit as fast as they can. Then the same connections commit, on schedule, 50 and 90 % of the
// lower maximum, and it reports CPU time per event of everybody and the time from commit to a consumer's XREAD. "inserts" is the
// same load with nobody to drain it. Each contender is a process of its own, and a consumer reads the stream.
func BenchmarkSteady(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	relay.migrate(b, settings{})
	contenders := []struct {
		name, table string
		run         func(b *testing.B, url string) (pid int, stop func())
	}{
		{"loop2", loopTable, db.loopProcess},
		{"relay run", eventsTable, func(b *testing.B, url string) (int, func()) {
			return relay.run(b, settings{sink: url, address: "stream: " + orders})
		}},
		{"inserts", eventsTable, nil},
	}
	lasting := scaledTime(30 * time.Second)
	for b.Loop() {
		t := table{head: []string{"", "events/s", "PostgreSQL µs", "own µs", "Redis µs", "all µs", "p50 ms", "p99 ms"}}
		lowest := 0.0
		for _, c := range contenders {
			if c.run == nil {
				continue
			}
			s := db.newSteady(b, c.table, c.run)
			most := s.load(b, scaledTime(10*time.Second), 0)
			s.stop()
			t.add(c.name+", maximum", most.row()...)
			if lowest == 0 || most.rate < lowest {
				lowest = most.rate
			}
		}
		for _, share := range []float64{.5, .9} {
			for _, c := range contenders {
				s := db.newSteady(b, c.table, c.run)
				load := s.load(b, lasting, share*lowest)
				s.stop()
				name := fmt.Sprintf("%s, %.0f %%", c.name, 100*share)
				t.add(name, load.row()...)
				if c.run != nil {
					name = strings.NewReplacer(" ", "-", ",", "", "%", "pct").Replace(name)
					b.ReportMetric(load.p99, name+"-ms-p99")
					b.ReportMetric(load.postgres, name+"-pg-µs/event")
				}
			}
		}
		b.Logf("%v each\n%s", lasting, t)
	}
	b.ReportMetric(0, "ns/op")
}

// loopDrains and loopDatabase are environment variables: the URLs of the sink and the database. They make the test binary two
// workers of the loop.
const (
	loopDrains   = "RELAY_BENCH_LOOP"
	loopDatabase = "RELAY_BENCH_LOOP_DATABASE"
)

// serveLoop drains until its input is closed, which happens however its parent ends.
func serveLoop(sink, database string) error {
	options, err := redis.ParseURL(sink)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	client := redis.NewClient(options)
	defer client.Close()
	return runLoop(ctx, database, 2, batchSize, func() (push, error) { return xadds(client), nil }, func(int) {}, func(time.Duration) {})
}

func (db *database) loopProcess(b *testing.B, url string) (pid int, stop func()) {
	b.Helper()
	self, err := os.Executable()
	testkit.NoError(b, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), loopDrains+"="+url, loopDatabase+"="+db.url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testkit.NoError(b, err)
	testkit.NoError(b, cmd.Start())
	return cmd.Process.Pid, sync.OnceFunc(func() {
		testkit.NoError(b, in.Close())
		testkit.NoError(b, cmd.Wait())
	})
}

// steady is a contender under load.
type steady struct {
	db       *database
	table    string
	redisPID int
	pid      int // of the contender; 0 for none
	client   *redis.Client
	pool     *pgxpool.Pool
	stop     func()
}

func (db *database) newSteady(b *testing.B, table string, run func(*testing.B, string) (int, func())) *steady {
	b.Helper()
	db.truncate(b, table)
	server := testserver.Redis(b, "--appendonly", "no")
	s := &steady{db: db, table: table, client: redis.NewClient(&redis.Options{Addr: server.Addr})}
	s.redisPID = redisPID(b, s.client)
	config, err := pgxpool.ParseConfig(db.url)
	testkit.NoError(b, err)
	config.MinConns, config.MaxConns = producers, producers
	s.pool, err = pgxpool.NewWithConfig(b.Context(), config)
	testkit.NoError(b, err)
	stop := func() {}
	if run != nil {
		s.pid, stop = run(b, server.URL)
	}
	s.stop = func() {
		stop()
		s.pool.Close()
		testkit.NoError(b, s.client.Close())
		testkit.NoError(b, server.Stop())
	}
	pause(b, idleFor)
	return s
}

// loaded is what a load cost: CPU time in microseconds an event, and milliseconds.
type loaded struct{ rate, postgres, own, redis, p50, p99 float64 }

func (l loaded) row() []any {
	return []any{l.rate, l.postgres, l.own, l.redis, l.postgres + l.own + l.redis, l.p50, l.p99}
}

// arrivals are the times at which events arrived, with the numbers of their transactions.
type arrivals struct {
	commits []int64
	at      []time.Time
}

// load commits events for a time: perSecond on schedule, whether earlier ones have arrived or not; 0 for as many as the
// contender keeps up with. It returns when all have arrived.
func (s *steady) load(b *testing.B, lasting time.Duration, perSecond float64) (l loaded) {
	b.Helper()
	ctx, cancel := bounded(b, 2*lasting+2*time.Minute)
	defer cancel()
	var (
		commits, committed, read atomic.Int64
		times                    sync.Map // of commits, by number
		arrived                  arrivals
		inserting, consuming     errgroup.Group
		inserted                 = make(chan struct{})
	)
	insertSQL := fmt.Sprintf("INSERT INTO %s (topic, key, payload) SELECT 'orders', $1::text, %s FROM generate_series(1, %d) i", s.table, payloadSQL, eventsPerCommit)
	postgres, broker, began := familyTime(b, s.db.pid), cpuTime(b, s.redisPID), time.Now()
	own := cpuTime(b, s.pid)
	for range producers {
		inserting.Go(func() error {
			for {
				n := commits.Add(1)
				if perSecond > 0 {
					due := began.Add(time.Duration(float64(n) * eventsPerCommit / perSecond * float64(time.Second)))
					if due.Sub(began) > lasting {
						return nil
					}
					pause(b, time.Until(due))
				} else {
					for committed.Load()-read.Load() > maxBacklog && time.Since(began) < lasting {
						pause(b, time.Millisecond)
					}
					if time.Since(began) > lasting {
						return nil
					}
				}
				if _, err := s.pool.Exec(ctx, insertSQL, strconv.FormatInt(n, 10)); err != nil {
					return err
				}
				times.Store(n, time.Now())
				committed.Add(eventsPerCommit)
			}
		})
	}
	if s.pid != 0 {
		consuming.Go(func() error { return s.consume(ctx, inserted, &committed, &read, &arrived) })
	}
	testkit.NoError(b, inserting.Wait())
	close(inserted)
	testkit.NoError(b, consuming.Wait())
	took, events := time.Since(began), float64(committed.Load())
	if s.pid != 0 {
		untilEach(b, 2*time.Millisecond, time.Minute, func() bool { return s.db.settled(b, s.table) })
	}
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / events }
	l = loaded{
		rate:     events / took.Seconds(),
		postgres: each(familyTime(b, s.db.pid) - postgres), own: each(cpuTime(b, s.pid) - own), redis: each(cpuTime(b, s.redisPID) - broker),
	}
	latencies := make([]float64, len(arrived.at))
	for i, at := range arrived.at {
		commit, ok := times.Load(arrived.commits[i])
		if !ok {
			b.Fatalf("an event of transaction %d arrived, which did not commit", arrived.commits[i])
		}
		latencies[i] = max(0, milliseconds(at.Sub(commit.(time.Time)))) // it may be there before its insert returns
	}
	l.p50, l.p99 = quantile(latencies, .5), quantile(latencies, .99)
	return l
}

// consume reads the stream until it has what was committed.
func (s *steady) consume(ctx context.Context, inserted <-chan struct{}, committed, read *atomic.Int64, arrived *arrivals) error {
	for from := "0"; ; {
		streams, err := s.client.XRead(ctx, &redis.XReadArgs{Streams: []string{orders, from}, Count: 1000, Block: 100 * time.Millisecond}).Result()
		if err != nil && err != redis.Nil { //nolint:errorlint // it is never wrapped
			return err
		}
		now := time.Now()
		for _, stream := range streams {
			for _, entry := range stream.Messages {
				n, err := strconv.ParseInt(fmt.Sprint(entry.Values["key"]), 10, 64)
				if err != nil {
					return err
				}
				arrived.commits, arrived.at = append(arrived.commits, n), append(arrived.at, now)
				from = entry.ID
			}
		}
		read.Store(int64(len(arrived.at)))
		select {
		case <-inserted:
			if read.Load() >= committed.Load() {
				return nil
			}
		default:
		}
	}
}
