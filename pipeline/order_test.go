package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/natssink"
)

func inOrder(c *pipeline.Config) { c.Ordered = true }

// keys are the keys of events by id, of those that were committed.
type keys struct {
	mu sync.Mutex
	of map[int64]string
}

func (k *keys) add(ids []int64, of []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, id := range ids {
		k.of[id] = of[i]
	}
}

func (k *keys) ids() []int64 { return slices.Sorted(maps.Keys(k.of)) }

// expectOrder checks that the events of every key arrived in the order of their ids.
func (k *keys) expectOrder(t testing.TB, arrived []int64) {
	t.Helper()
	last := map[string]int64{}
	for _, id := range arrived {
		key := k.of[id]
		if key == "" {
			continue
		}
		if id < last[key] {
			t.Errorf("event %d of %s came after event %d", id, key, last[key])
		}
		last[key] = id
	}
}

// someKeysOf are the keys of a transaction's events; applications have no key in
// common, so that of one key no two transactions overlap. "" stands for NULL.
func someKeysOf(application, transaction int) []string {
	of := make([]string, 1+transaction%17)
	for i := range of {
		if n := (transaction*5 + i*i) % 9; n > 0 {
			of[i] = fmt.Sprint("customer-", application, "-", n)
		}
	}
	return of
}

// insertKeyed inserts an event for each key, and commits or rolls back.
func (d *database) insertKeyed(ctx context.Context, topic string, of []string, commit bool) (ids []int64, err error) {
	tx, err := d.app.Begin(ctx)
	if err != nil {
		return nil, err
	}
	for _, key := range of {
		var id int64
		err := tx.QueryRow(ctx, "INSERT INTO outbox_events (topic, key, payload) VALUES ($1, nullif($2, ''), '{}') RETURNING id", topic, key).Scan(&id)
		if err != nil {
			return nil, errors.Join(err, tx.Rollback(ctx))
		}
		ids = append(ids, id)
	}
	if !commit {
		return nil, tx.Rollback(ctx)
	}
	return ids, tx.Commit(ctx)
}

func (f *file) insertKeyed(ctx context.Context, topic string, of []string, commit bool) (ids []int64, err error) {
	tx, err := f.app.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, key := range of {
		r, err := tx.ExecContext(ctx, "INSERT INTO outbox_events (topic, key, payload) VALUES (?, nullif(?, ''), '{}')", topic, key)
		if err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		id, err := r.LastInsertId()
		if err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		ids = append(ids, id)
	}
	if !commit {
		return nil, tx.Rollback()
	}
	return ids, tx.Commit()
}

// source is a buffer and its application.
type source struct {
	buffer  func(t testing.TB, owner string) buffer.Queue
	insert  func(ctx context.Context, topic string, of []string, commit bool) ([]int64, error)
	drained func(t testing.TB)
	dead    func(t testing.TB) []int64
}

func (d *database) source() source {
	return source{
		buffer: func(t testing.TB, owner string) buffer.Queue { return d.orderedBuffer(t, owner) },
		insert: d.insertKeyed, drained: d.expectDrained,
		dead: func(t testing.TB) []int64 { ids, _ := d.dead(t); return ids },
	}
}

func (f *file) source() source {
	return source{
		buffer: func(t testing.TB, owner string) buffer.Queue { return f.orderedBuffer(t, owner) },
		insert: f.insertKeyed, drained: f.expectDrained,
		dead: func(t testing.TB) (ids []int64) {
			t.Helper()
			rows, err := f.app.QueryContext(t.Context(), "SELECT event_id FROM outbox_dead_letters")
			testkit.NoError(t, err)
			defer rows.Close()
			for rows.Next() {
				var id int64
				testkit.NoError(t, rows.Scan(&id))
				ids = append(ids, id)
			}
			testkit.NoError(t, rows.Err())
			return ids
		},
	}
}

// orderedNATSAt is a sink to JetStream that keeps order.
func orderedNATSAt(t testing.TB, url string) destination {
	t.Helper()
	to := natsAt(t, url)
	s, err := natssink.New(natssink.Config{URL: url, Ordered: true})
	testkit.NoError(t, err)
	closeSink(t, s)
	to.Sink = s
	return to
}

// TestOrder_IsKept: several processes, applications that commit and roll back, a flaky
// sink, events that are permanently rejected, and processes that are killed with a
// batch in flight, sent or not.
func TestOrder_IsKept(t *testing.T) {
	t.Parallel()
	t.Run("from PostgreSQL to a Redis stream", func(t *testing.T) {
		t.Parallel()
		testOrderIsKept(t, newDatabase(t).source(), redisAt(t, testserver.SharedRedis(t)), 100)
	})
	t.Run("from PostgreSQL to JetStream", func(t *testing.T) {
		t.Parallel()
		url := testserver.NATS(t).URL
		addStream(t, url, "orders")
		testOrderIsKept(t, newDatabase(t).source(), orderedNATSAt(t, url), 100)
	})
	t.Run("from SQLite to a Redis stream", func(t *testing.T) {
		t.Parallel()
		testOrderIsKept(t, newFile(t).source(), redisAt(t, testserver.SharedRedis(t)), 30)
	})
}

// poison refuses the ids that divide by 101 for good.
func poison(to sink.Sink) *sendHook {
	return &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		refused := &sink.BatchError{}
		for i := range b.Events {
			if b.Events[i].ID%101 == 0 {
				refused.Events = append(refused.Events, sink.EventError{Index: i, Err: sink.Permanent(errTest)})
			}
		}
		if refused.Events == nil {
			return next()
		}
		for i := range b.Events { // none of the others was sent either
			if b.Events[i].ID%101 != 0 {
				refused.Events = append(refused.Events, sink.EventError{Index: i, Err: sink.Unavailable(errTest)})
			}
		}
		return refused
	}}
}

// flakySinkInOrder is a sink that is unavailable for each batch at first, and rejects, until
// it comes again, the first event of each key whose id is a multiple of 13.
func flakySinkInOrder(to sink.Sink) *sendHook {
	var (
		mu   sync.Mutex
		seen = map[int64]int{}
		bad  = map[int64]bool{} // refused once
	)
	return &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		mu.Lock()
		seen[b.Events[0].ID]++
		times := seen[b.Events[0].ID]
		mu.Unlock()
		if times == 1 && b.Events[0].ID%3 == 0 {
			return sink.Unavailable(errTest)
		}
		first, refuse := map[string]int{}, map[int]bool{}
		for i := range b.Events {
			e := &b.Events[i]
			if e.Key == nil {
				continue
			}
			if _, known := first[*e.Key]; !known {
				first[*e.Key] = i
			}
			if mu.Lock(); e.ID%13 == 0 && !bad[e.ID] {
				bad[e.ID] = true
				refuse[first[*e.Key]] = true
			}
			mu.Unlock()
		}
		if len(refuse) == 0 {
			return next()
		}
		refused := &sink.BatchError{}
		for i := range b.Events {
			err := sink.Unavailable(errTest) // nor was another one sent
			if refuse[i] {
				err = errTest
			}
			refused.Events = append(refused.Events, sink.EventError{Index: i, Err: err})
		}
		return refused
	}}
}

func testOrderIsKept(t *testing.T, from source, to destination, transactions int) {
	const applications = 4
	k := &keys{of: map[int64]string{}}
	produce := func(application, first, end int) {
		for n := first; n < end; n++ {
			of := someKeysOf(application, n)
			ids, err := from.insert(t.Context(), "orders", of, n%7 != 3)
			if err != nil {
				t.Error(err)
				return
			}
			k.add(ids, of)
		}
	}
	dying := from.buffer(t, "dying")
	die := func(sent bool) bool {
		b, err := dying.Claim(t.Context(), 20, time.Second)
		if err != nil || b == nil {
			return false // the others were quicker, or the file is busy
		}
		if sent {
			err = poison(to).Send(t.Context(), &b.Batch)
		}
		return err == nil
	}
	for a := range applications {
		produce(a, 0, 10)
	}
	if !die(true) || !die(false) {
		t.Fatal("no relay was killed")
	}
	for i := range 3 {
		start(t, from.buffer(t, fmt.Sprint("relay-", i)), flakySinkInOrder(poison(to)), func(c *pipeline.Config) {
			inOrder(c)
			c.BatchSize = 50
		})
	}
	var producers sync.WaitGroup
	for a := range applications {
		producers.Go(func() { produce(a, 10, transactions) })
	}
	for n := range 10 {
		die(n%2 == 0)
	}
	producers.Wait()
	from.drained(t)
	arrived := to.arrived(t, "orders")
	bad := slices.DeleteFunc(k.ids(), func(id int64) bool { return id%101 != 0 })
	dead := from.dead(t)
	slices.Sort(dead)
	if !slices.Equal(dead, bad) || len(bad) == 0 {
		t.Errorf("buried %v, want %v", dead, bad)
	}
	expectOnce(t, arrived, without(k.ids(), bad...))
	k.expectOrder(t, arrived)
}

// Claims that keep order hold a lock and commit in the middle of a round trip: a
// transaction pooler lets them.
func TestOrder_TransactionPooler(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	url := testserver.PgBouncer(t, d.url)
	log := &lockedBuffer{}
	for i := range 2 {
		start(t, (&database{url: url}).orderedBuffer(t, fmt.Sprint("relay-", i)), to, func(c *pipeline.Config) {
			inOrder(c)
			c.Log = logInto(t, log)
		})
	}
	k := &keys{of: map[int64]string{}}
	for n := range 150 {
		of := someKeysOf(0, n)
		ids, err := d.insertKeyed(t.Context(), "orders", of, true)
		testkit.NoError(t, err)
		k.add(ids, of)
	}
	d.expectDrained(t)
	arrived := to.arrived(t, "orders")
	expectOnce(t, arrived, k.ids())
	k.expectOrder(t, arrived)
	testkit.Equal(t, "claims that failed", log.count("claiming a batch failed"), 0)
}

// An event that is refused again and again holds up its own key, and no other, whether
// those were in its batch, came with it or later.
func TestOrder_RefusedEventHoldsUpItsKeyOnly(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]source{"postgres": newDatabase(t).source(), "sqlite": newFile(t).source()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := redisAt(t, testserver.SharedRedis(t))
			insert := func(of ...string) []int64 {
				t.Helper()
				ids, err := from.insert(t.Context(), name, of, true)
				testkit.NoError(t, err)
				return ids
			}
			first := insert("a", "b", "a", "", "b", "c")
			lets := make(chan struct{})
			refusing := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
				select {
				case <-lets:
					return next()
				default:
				}
				refused := &sink.BatchError{}
				for i := range b.Events {
					if b.Events[i].ID == first[0] {
						refused.Events = append(refused.Events, sink.EventError{Index: i, Err: errTest})
					}
				}
				if refused.Events == nil {
					return next()
				}
				for i := range b.Events { // nor was another one sent
					if b.Events[i].ID != first[0] {
						refused.Events = append(refused.Events, sink.EventError{Index: i, Err: sink.Unavailable(errTest)})
					}
				}
				return refused
			}}
			start(t, from.buffer(t, "relay"), refusing, func(c *pipeline.Config) {
				inOrder(c)
				c.MaxAttempts = 1 << 30
			})
			to.expectArrivals(t, name, 4)
			var others []int64
			for range 20 {
				others = append(others, insert("a", "b", "", "d")...)
			}
			to.expectArrivals(t, name, 4+60)
			arrived := to.arrived(t, name)
			for i, id := range slices.Concat(first, others) {
				isA := i == 0 || i == 2 || i >= len(first) && (i-len(first))%4 == 0
				if slices.Contains(arrived, id) == isA {
					t.Errorf("event %d: arrived %t", id, !isA)
				}
			}
			close(lets)
			from.drained(t)
			all := slices.Concat(first, others)
			expectOnce(t, to.arrived(t, name), all)
			if n := len(from.dead(t)); n > 0 {
				t.Errorf("%d events were buried", n)
			}
		})
	}
}

// A poison event among hundreds of its key: halves go one after the other, and the
// events behind it arrive in order.
func TestOrder_PoisonEvent(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]source{"postgres": newDatabase(t).source(), "sqlite": newFile(t).source()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			to := httpAt(t, r)
			k := &keys{of: map[int64]string{}}
			of := slices.Repeat([]string{"hot", "hot", "hot", "warm"}, 75)
			ids, err := from.insert(t.Context(), "orders", of, true)
			testkit.NoError(t, err)
			k.add(ids, of)
			bad := ids[101]
			r.answers(func(ids []int64) int {
				if slices.Contains(ids, bad) {
					return http.StatusBadRequest
				}
				return http.StatusOK
			})
			start(t, from.buffer(t, "relay"), to, inOrder)
			from.drained(t)
			arrived := to.arrived(t, "orders")
			expectOnce(t, arrived, without(ids, bad))
			k.expectOrder(t, arrived)
			if dead := from.dead(t); !slices.Equal(dead, []int64{bad}) {
				t.Errorf("buried %v, want %d", dead, bad)
			}
		})
	}
}
