package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
)

// line is a slow line, which all connections share: so many bytes a second from the server.
type line struct {
	rate int

	mu   sync.Mutex
	free time.Time
}

// carry takes as long as the piece takes.
func (l *line) carry(up bool, piece []byte) int {
	if up {
		return -1
	}
	l.mu.Lock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(len(piece)) * time.Second / time.Duration(l.rate))
	wait := time.Until(l.free)
	l.mu.Unlock()
	<-time.After(wait)
	return -1
}

const insertLargeSQL = `
INSERT INTO outbox_events (topic, payload)
SELECT 'orders', json_build_object('n', n, 'text', repeat('x', $2::int)) FROM generate_series(1, $1::int) n`

// More than the deadline of a claim takes to carry arrives.
func TestRead_SlowLine(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const events = 300
			d := newDatabase(t)
			d.exec(t, insertLargeSQL, events, 300_000)
			slow := &line{rate: 4 << 20}
			_, through := newWire(t, d.url, func(int64) func(bool, []byte) int { return slow.carry })
			b, err := postgres.Open(postgres.Config{URL: through, Pipeline: "orders", Owner: "relay", Connections: 12, Claim: mode})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			var once arrivals
			start(t, b, once.sink(redisAt(t, testserver.SharedRedis(t))), func(c *pipeline.Config) { c.BatchSize = 1000 })
			d.expectDrained(t)
			once.expect(t, events)
		})
	}
}

// arrivals are the events that were sent, each with how often.
type arrivals struct {
	mu    sync.Mutex
	times map[int64]int
	bytes int // of the largest batch
}

// sink sends nothing.
func (a *arrivals) sink(to destination) *sendHook {
	a.times = map[int64]int{}
	return &sendHook{to, func(_ context.Context, b *buffer.Batch, _ func() error) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, id := range b.IDs() {
			a.times[id]++
		}
		if len(b.Events) > 1 {
			a.bytes = max(a.bytes, b.Bytes())
		}
		return nil
	}}
}

func (a *arrivals) expect(t *testing.T, events int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	testkit.Equal(t, "events that arrived", len(a.times), events)
	for id, times := range a.times {
		if times != 1 {
			t.Errorf("event %d arrived %d times", id, times)
		}
	}
	if a.bytes > buffer.MaxBytes {
		t.Errorf("a batch had %d bytes; want %d at most", a.bytes, buffer.MaxBytes)
	}
}

// A batch whose reading is cut off is leased all the same, and divided when that happens again: what breaks a
// connection while it is read must not be read for ever.
func TestRead_CutOff(t *testing.T) {
	t.Parallel()
	for _, mode := range []buffer.ClaimMode{buffer.ClaimRange, buffer.ClaimStamp} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const events = 10
			d := newDatabase(t)
			d.exec(t, insertLargeSQL, events, 100_000)
			// Each connection breaks after 300 kB: three events can be read, and ten cannot.
			w, through := newWire(t, d.url, func(int64) func(bool, []byte) int { return cutAfter(false, 300_000) })
			b, err := postgres.Open(postgres.Config{URL: through, Pipeline: "orders", Owner: "relay", Connections: 12, Claim: mode})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			var once arrivals
			start(t, b, once.sink(redisAt(t, testserver.SharedRedis(t))), nil)
			d.expectDrained(t)
			once.expect(t, events)
			if w.cuts.Load() == 0 {
				t.Error("no connection was cut")
			}
		})
	}
}

// The same for a custom table, whose rows are read by its projection: the connection breaks, or one row is damaged.
func TestRead_CustomTable(t *testing.T) {
	t.Parallel()
	const project = "SELECT e.id, 't' AS topic, to_jsonb(e) AS payload FROM {events} e"
	for name, c := range map[string]struct {
		project string
		cut     int
		left    int64 // events that cannot be read
	}{
		"CutOff":  {project, 300_000, 0},
		"Damaged": {"SELECT e.id, 't' AS topic, CASE WHEN e.id = 5 THEN damaged() ELSE to_jsonb(e.id) END AS payload FROM {events} e", 1 << 40, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events = 10
			d := newDatabase(t)
			d.exec(t, `CREATE FUNCTION damaged() RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN
				RAISE 'missing chunk number 0 for toast value 5' USING ERRCODE = 'XX001'; END $$`)
			d.exec(t, "CREATE TABLE things (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text, group_id uuid)")
			d.exec(t, "INSERT INTO things (text) SELECT repeat('x', 100000) FROM generate_series(1, $1)", events)
			_, err := postgres.Migrate(t.Context(), d.url, postgres.SchemaConfig{Table: "things", Custom: true})
			testkit.NoError(t, err)
			_, through := newWire(t, d.url, func(int64) func(bool, []byte) int { return cutAfter(false, c.cut) })
			b, err := postgres.Open(postgres.Config{
				URL: through, Table: "things", Pipeline: "orders", Owner: "relay", Connections: 12, Custom: buffer.CustomTable{ID: "id", Project: c.project},
			})
			testkit.NoError(t, err)
			t.Cleanup(func() { testkit.NoError(t, b.Close()) })
			var once arrivals
			start(t, b, once.sink(redisAt(t, testserver.SharedRedis(t))), func(c *pipeline.Config) { c.Backoff.Max = time.Second })
			testserver.Eventually(t, func() error {
				if left := queryValue[int64](t, d, "SELECT count(*) FROM things"); left != c.left {
					return fmt.Errorf("%d rows are left; want %d", left, c.left)
				}
				return nil
			})
			once.expect(t, events-int(c.left))
			if c.left > 0 {
				testserver.Eventually(t, func() error {
					if why := queryValue[string](t, d, "SELECT coalesce(max(error), '') FROM outbox_batches"); !strings.Contains(why, "event 5 could not be read") {
						return fmt.Errorf("the ledger says %q", why)
					}
					return nil
				})
			}
		})
	}
}

// While a batch is being read its lease is committed, so that an owner that dies of it counts.
func TestRead_AfterTheLeaseIsCommitted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, insertLargeSQL, 1, 2_000_000)
	b := d.buffer(t, "first")
	l, err := b.Claim(t.Context(), 10, time.Minute)
	testkit.NoError(t, err)
	testkit.NoError(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID}}))
	reading := make(chan struct{})
	_, through := newWire(t, d.url, func(int64) func(bool, []byte) int {
		passed, told := 0, false
		return func(up bool, piece []byte) int {
			if passed += len(piece); up || passed < 1_000_000 {
				return -1
			}
			if !told {
				told = true
				close(reading)
			}
			return silence
		}
	})
	second := bufferAt(t, through, "second")
	ctx, cancel := context.WithCancel(t.Context())
	var took sync.WaitGroup
	took.Go(func() {
		if l, err := second.TakeOver(ctx, time.Minute, buffer.DueRetry); l != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("TakeOver returned %v, %v", l, err)
		}
	})
	testkit.Receive(t, "the reading", reading)
	got := queryValue[string](t, d, "SELECT concat_ws(' ', state, owner, lease_no, unfinished_leases) FROM outbox_batches")
	testkit.Equal(t, "the ledger row while the batch is read", got, "leased second 2 1")
	cancel()
	took.Wait()
}

// What is claimed follows the size of the events, so that batches are divided at the start only.
func TestRead_ClaimsFollowTheSize(t *testing.T) {
	t.Parallel()
	const events = 600
	d := newDatabase(t)
	d.exec(t, insertLargeSQL, events, 100_000)
	log := &lockedBuffer{}
	var once arrivals
	var claimed sizes
	start(t, d.buffer(t, "relay"), once.sink(redisAt(t, testserver.SharedRedis(t))), func(c *pipeline.Config) {
		c.BatchSize, c.Workers, c.Log, c.Observer = 200, 1, logInto(t, log), &claimed
	})
	d.expectDrained(t)
	once.expect(t, events)
	claimed.mu.Lock()
	defer claimed.mu.Unlock()
	if n := len(claimed.notRead); n == 0 || n > 3 { // as many as were in flight when nothing was known yet
		t.Errorf("%d batches were divided: %v", n, strings.Join(claimed.notRead, ", "))
	}
}

// sizes records the batches that were not read.
type sizes struct {
	share
	mu      sync.Mutex
	notRead []string
}

func (s *sizes) Settled(*buffer.Lease, []buffer.Outcome, bool, time.Duration) {}

func (s *sizes) Claimed(l *buffer.Lease, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.NotRead != nil {
		s.notRead = append(s.notRead, fmt.Sprint(l.Len(), " events: ", l.NotRead))
	}
}
