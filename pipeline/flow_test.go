package pipeline_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
)

// Some events wait already, others are inserted while the relay runs, and some transactions are rolled
// back. Exactly the committed events arrive, once.
func TestPipeline_DeliversExactlyOnce(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) destination{
		"redis": func(t *testing.T) destination { return redisAt(t, testserver.SharedRedis(t)) },
		"jetstream": func(t *testing.T) destination {
			url := testserver.NATS(t).URL
			addStream(t, url, "orders")
			return natsAt(t, url)
		},
		"http": func(t *testing.T) destination { return httpAt(t, newReceiver(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, to := newDatabase(t), open(t)
			wanted := d.insert(t, "orders", 3333)
			start(t, d.buffer(t, "relay"), to, nil)
			wanted = append(wanted, d.produce(t, "orders", 4, 60)...)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), wanted)
			testkit.Equal(t, "dead letters", queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters"), 0)
		})
	}
}

// produce lets applications side by side commit transactions of 1 to 40 events,
// and roll every third one back. It returns the ids that were committed.
func (d *database) produce(t *testing.T, topic string, applications, transactions int) (committed []int64) {
	t.Helper()
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	for app := range applications {
		all.Go(func() {
			for i := range transactions {
				ids, err := d.transaction(t.Context(), topic, 1+(i*7+app)%40, i%3 != 2)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed = append(committed, ids...)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return committed
}

// transaction inserts n events and commits, or rolls back and returns none.
func (d *database) transaction(ctx context.Context, topic string, n int, commit bool) (ids []int64, err error) {
	tx, err := d.app.Begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, insertSQL, topic, n)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if !commit {
		return nil, tx.Rollback(ctx)
	}
	return ids, tx.Commit(ctx)
}

func TestPipeline_SeveralProcesses(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{2, 3} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			t.Parallel()
			d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
			wanted := d.insert(t, "orders", 15_000)
			shares := make([]share, processes)
			for i := range shares {
				start(t, d.buffer(t, fmt.Sprint("relay-", i)), to, func(c *pipeline.Config) { c.Observer = &shares[i] })
			}
			wanted = append(wanted, d.produce(t, "orders", 2, 120)...)
			wanted = append(wanted, d.insert(t, "orders", 2000)...)
			d.expectDrained(t)
			expectOnce(t, to.arrived(t, "orders"), wanted)
			for i := range shares {
				if shares[i].events() == 0 {
					t.Errorf("process %d had no share", i)
				}
			}
		})
	}
}

// share counts what a process delivered.
type share struct {
	mu        sync.Mutex
	delivered int
}

func (s *share) Claimed(*buffer.Lease, time.Duration) {}
func (s *share) Sent(*buffer.Lease, time.Duration)    {}
func (s *share) Settled(b *buffer.Lease, outcomes []buffer.Outcome, _ bool, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range outcomes {
		switch {
		case o.Verdict != buffer.Delivered:
		case o.IDs == nil:
			s.delivered += len(b.Events)
		default:
			s.delivered += len(o.IDs)
		}
	}
}

func (s *share) events() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.delivered
}

// Two pipelines in one process; the sink of one is down, or answers nothing.
func TestSink_OutageHoldsUpNoOtherPipeline(t *testing.T) {
	t.Parallel()
	t.Run("down", func(t *testing.T) {
		t.Parallel()
		d, other := newDatabase(t), newDatabase(t)
		server := testserver.Redis(t)
		dead, alive := redisAt(t, server.URL), redisAt(t, testserver.SharedRedis(t))
		testkit.NoError(t, server.Stop())
		waiting, wanted := d.insert(t, "orders", 2000), other.insert(t, "orders", 2000)
		stuck := start(t, d.buffer(t, "relay"), dead, nil)
		start(t, other.buffer(t, "relay"), alive, nil).expectReady(t)
		other.expectDrained(t)
		expectOnce(t, alive.arrived(t, "orders"), wanted)
		stuck.expectNotReady(t)

		testkit.NoError(t, server.Start(t.Context()))
		d.expectDrained(t)
		expectOnce(t, dead.arrived(t, "orders"), waiting)
		stuck.expectReady(t)
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		d, other := newDatabase(t), newDatabase(t)
		mute, speaks := newReceiver(t), newReceiver(t)
		release := make(chan struct{})
		mute.answers(func([]int64) int { <-release; return http.StatusOK })
		dead, alive := httpAt(t, mute), httpAt(t, speaks)
		waiting, wanted := d.insert(t, "orders", 2000), other.insert(t, "orders", 2000)
		start(t, d.buffer(t, "relay"), dead, nil)
		start(t, other.buffer(t, "relay"), alive, nil)
		other.expectDrained(t)
		expectOnce(t, alive.arrived(t, "orders"), wanted)
		testserver.Eventually(t, func() error { // a batch a worker, and two ahead
			if n := queryValue[int](t, d, "SELECT coalesce(sum(events), 0) FROM outbox_batches"); n != 600 {
				return fmt.Errorf("%d events are claimed; want 600", n)
			}
			return nil
		})

		close(release)
		d.expectDrained(t)
		expectOnce(t, dead.arrived(t, "orders"), waiting)
	})
}
