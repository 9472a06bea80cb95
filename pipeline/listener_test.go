package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// recordedListener counts what a listener returned.
type recordedListener struct {
	*postgres.Listener
	commits, lapses atomic.Int64
	listening       atomic.Bool
}

func (r *recordedListener) Drain() (int, bool) {
	commits, listening := r.Listener.Drain()
	r.commits.Add(int64(commits))
	if r.listening.Swap(listening) && !listening {
		r.lapses.Add(1)
	}
	return commits, listening
}

func (r *recordedListener) expectListening(t *testing.T) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if !r.listening.Load() {
			return errors.New("it does not listen")
		}
		return nil
	})
}

// countingBuffer counts the counts of fresh events, and the claims.
type countingBuffer struct {
	*postgres.Buffer
	counts, claims atomic.Int64
}

func (c *countingBuffer) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	if limit > 0 {
		c.counts.Add(1)
	}
	return c.Buffer.CountBacklog(ctx, limit)
}

func (c *countingBuffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	c.claims.Add(1)
	return c.Buffer.Claim(ctx, limit, lease)
}

// installTrigger installs the trigger.
func installTrigger(t *testing.T, d *database) {
	t.Helper()
	_, err := postgres.Migrate(t.Context(), d.url, postgres.SchemaConfig{Notify: true})
	testkit.NoError(t, err)
}

// wakeable starts a relay whose schedule is an hour away.
func wakeable(t *testing.T, to sink.Sink, log *slog.Logger, c postgres.Config) (*countingBuffer, *recordedListener) {
	t.Helper()
	c.Pipeline, c.Connections = "orders", 12
	b, err := postgres.Open(c)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	counted, listener := &countingBuffer{Buffer: b}, &recordedListener{Listener: b.Listener(log)}
	start(t, counted, to, func(p *pipeline.Config) {
		p.Schedule, p.Poll, p.Listener, p.Ordered = often(time.Hour), true, listener, c.Ordered
	})
	return counted, listener
}

// With an hour until the next distribution, and no count of fresh events, only notifications can have
// sent them.
func TestListener_CommitsNotifyTheRelay(t *testing.T) {
	t.Parallel()
	for _, order := range []bool{false, true} {
		t.Run(fmt.Sprintf("order by key: %t", order), func(t *testing.T) {
			t.Parallel()
			d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
			installTrigger(t, d)
			counted, listener := wakeable(t, to, logOf(t), postgres.Config{URL: d.url, Ordered: order})
			listener.expectListening(t)
			began, counts := time.Now(), counted.counts.Load()
			d.exec(t, "INSERT INTO outbox_events (topic, key, payload) VALUES ('plain', 'k', '{}')")
			to.expectArrivals(t, "plain", 1)

			tx := d.begin(t)
			for range 5 {
				testkit.NoError(t, pgoutbox.Insert(t.Context(), tx, outbox.Event{Topic: "go", Key: new("k"), Payload: []byte("{}")}))
				insertBy(t, tx, "sql", 10)
			}
			d.exec(t, "INSERT INTO outbox_events (topic, key, payload) VALUES ('plain', 'k', '{}')")
			to.expectArrivals(t, "plain", 2)
			testkit.Equal(t, "events of a transaction that is open", len(to.arrived(t, "sql")), 0)
			testkit.NoError(t, tx.Commit(t.Context()))
			to.expectArrivals(t, "go", 5)
			to.expectArrivals(t, "sql", 50)
			d.insert(t, "large", 1000) // ten batches, and ten keys
			to.expectArrivals(t, "large", 1000)
			d.expectDrained(t)
			// One count may have been under way; while commits notify, there is one a minute.
			limit := 1 + int64(time.Since(began)/time.Minute)
			if n := counted.counts.Load() - counts; n > limit && listener.lapses.Load() == 0 {
				t.Errorf("fresh events were counted %d times; want at most %d", n, limit)
			}
		})
	}
}

// Many transactions commit at once, until the listener is paused and resumed, with several relays,
// one of which loses its connection.
func TestListener_StormOfCommits(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	installTrigger(t, d)
	_, first := wakeable(t, to, logOf(t), postgres.Config{URL: d.url})
	first.expectListening(t)
	wakeable(t, to, logOf(t), postgres.Config{URL: d.url})
	var (
		mu     sync.Mutex
		wanted []int64
		apps   sync.WaitGroup
	)
	for app := range 4 {
		apps.Go(func() {
			for n := range 300 {
				ids, err := d.transaction(t.Context(), "orders", 1, true)
				if err != nil {
					t.Errorf("inserting: %v", err)
					return
				}
				mu.Lock()
				wanted = append(wanted, ids...)
				mu.Unlock()
				if app == 0 && n%100 == 50 {
					_, err = d.app.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
						WHERE datname = current_database() AND pid <> pg_backend_pid() AND (query LIKE 'LISTEN%' OR query LIKE '%pg_try_advisory_lock%')`)
					if err != nil {
						t.Errorf("ending sessions: %v", err)
					}
				}
			}
		})
	}
	apps.Wait()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), wanted)
}

// Without the trigger, and through a pooler, the relay polls, and polls end when no event is found.
func TestListener_PollsWithoutNotifications(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"no trigger": false, "through a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
			url, log := d.url, &lockedBuffer{}
			if pooled {
				installTrigger(t, d)
				url = testserver.PgBouncer(t, d.url)
			}
			counted, listener := wakeable(t, to, slog.New(slog.NewTextHandler(log, nil)), postgres.Config{URL: url, Wake: buffer.WakeNotify})
			testserver.Eventually(t, func() error {
				if log.count("level=WARN") != 1 {
					return errors.New("no warning that the relay does not listen")
				}
				return nil
			})
			for n := range 5 {
				d.insert(t, "orders", 1)
				to.expectArrivals(t, "orders", n+1)
			}
			// Idle: a count every second, and no claim after 13 polls.
			claims := counted.claims.Load()
			counts := counted.counts.Load()
			testserver.Eventually(t, func() error {
				if n := counted.counts.Load(); n < counts+5 {
					return fmt.Errorf("%d counts", n-counts)
				}
				return nil
			})
			if n := counted.claims.Load() - claims; n > 14 {
				t.Errorf("%d claims without an event", n)
			}
			testkit.Equal(t, "it listens", listener.listening.Load(), false)
			testkit.Equal(t, "notifications", listener.commits.Load(), 0)
		})
	}
}
