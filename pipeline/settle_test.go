package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// turnstile holds up sends, one at a time, before or after the batch went to the
// sink.
type turnstile struct {
	sink.Sink
	after  bool
	waits  chan *buffer.Batch // a send that has come
	passes chan struct{}      // lets it through
}

func newTurnstile(s sink.Sink, after bool) *turnstile {
	return &turnstile{s, after, make(chan *buffer.Batch, 100), make(chan struct{}, 100)}
}

func (g *turnstile) Send(ctx context.Context, b *buffer.Batch) error {
	if !g.after {
		g.waits <- b
		<-g.passes
		// As a process that was stopped and continues, although it may have lost
		// its lease.
		return g.Sink.Send(context.WithoutCancel(ctx), b)
	}
	err := g.Sink.Send(ctx, b)
	g.waits <- b
	<-g.passes
	return err
}

// open lets everything through from now on.
func (g *turnstile) open() {
	for range cap(g.passes) {
		g.passes <- struct{}{}
	}
}

// oneBatch has one worker send batches of 10.
func oneBatch(c *pipeline.Config) { c.Workers, c.BatchSize = 1, 10 }

// expectLedger waits until the ledger is as wanted.
func (d *database) expectLedger(t testing.TB, want string) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if got := queryValue[string](t, d, "SELECT coalesce(string_agg(state || ' ' || events, ', '), '') FROM outbox_batches"); got != want {
			return fmt.Errorf("the ledger says %q, want %q", got, want)
		}
		return nil
	})
}

// An application has locked an event that was sent: the batch is marked, not sent
// again, and deleted when the lock is gone.
func TestSettle_RecordsDeliveryOfLockedRows(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	to := redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 10)
	g := newTurnstile(to, true)
	start(t, d.buffer(t, "relay"), g, oneBatch)

	testkit.Receive(t, "a send", g.waits)
	tx := d.begin(t)
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox_events WHERE id = ANY ($1) FOR UPDATE", ids[3:5])
	testkit.NoError(t, err)
	g.open()
	d.expectLedger(t, "delivered 10")
	// The events that are not locked are deleted already, and fresh events are delivered.
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_events"); n != 2 {
			return fmt.Errorf("%d events are left; want the two that are locked", n)
		}
		return nil
	})
	more := d.insert(t, "orders", 25)
	to.expectArrivals(t, "orders", 35)
	testserver.Eventually(t, func() error {
		if n := queryValue[int64](t, d, "SELECT max(lease_no) FROM outbox_batches"); n < 3 {
			return fmt.Errorf("%d leases; want several tries to delete", n)
		}
		return nil
	})
	testkit.NoError(t, tx.Commit(t.Context()))
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), append(ids, more...))
	if n := len(g.waits); n != 3 {
		t.Errorf("%d more sends; want 3 for the 25 fresh events", n)
	}
}

// A trigger keeps what the relay deletes: each event is sent once, readiness fails, and the events go when the trigger has gone.
func TestSettle_KeptEvents(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	d.exec(t, "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
	d.exec(t, "CREATE TRIGGER keep BEFORE DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION keep()")
	ids := d.insert(t, "orders", 25)
	p := start(t, d.buffer(t, "relay"), to, oneBatch)
	testserver.Eventually(t, func() error { // each batch is tried again
		tried := queryValue[int](t, d, "SELECT coalesce(sum(events), 0) FROM outbox_batches WHERE state = 'delivered' AND lease_no > 1")
		if tried != len(ids) {
			return fmt.Errorf("the delete of %d events was tried again; want %d", tried, len(ids))
		}
		return nil
	})
	if err := p.Ready(); err == nil || !strings.HasPrefix(err.Error(), "stalled: ") || !strings.Contains(err.Error(), "were not deleted") {
		t.Errorf("ready: %v; want stalled", err)
	}
	d.exec(t, "DROP TRIGGER keep ON outbox_events")
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	testserver.Eventually(t, p.Ready)
}

// Another relay has settled a batch that the database refused to settle: this one says so no longer than a few seconds.
func TestSettle_RefusedThenSettledByAnother(t *testing.T) {
	t.Parallel()
	for name, verb := range map[string]string{"delivered": "DELETE ON outbox_events", "dead": "INSERT ON outbox_dead_letters"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
			d.exec(t, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no space left'' USING ERRCODE = ''53100''; END'")
			d.exec(t, "CREATE TRIGGER refuse BEFORE "+verb+" FOR EACH ROW EXECUTE FUNCTION refuse()")
			d.insert(t, "orders", 110)
			p := start(t, d.buffer(t, "relay"), poison(to), oneBatch)
			to.expectArrivals(t, "orders", 109)
			expectClass(t, p, "database")
			testserver.Eventually(t, func() error { // this relay does not try them again
				d.exec(t, "UPDATE outbox_batches SET due_at = clock_timestamp() + interval '1 h' WHERE state <> 'leased'")
				if n := queryValue[int](t, d, "SELECT count(*)::int FROM outbox_batches WHERE due_at < clock_timestamp() + interval '50 min'"); n > 0 {
					return fmt.Errorf("%d batches do not wait", n)
				}
				return nil
			})
			d.exec(t, "DROP TRIGGER refuse ON "+verb[strings.LastIndex(verb, " ")+1:])
			d.exec(t, "WITH b AS (DELETE FROM outbox_batches RETURNING group_id) DELETE FROM outbox_events e USING b WHERE e.group_id = b.group_id")
			p.expectReady(t)
		})
	}
}

// hesitant retries an event, once, of a batch whose others it accepts.
func hesitant(to sink.Sink) *sendHook {
	var once sync.Once
	return &sendHook{to, func(ctx context.Context, b *buffer.Batch, next func() error) (err error) {
		first := false
		once.Do(func() { first = true })
		if !first {
			return next()
		}
		last := len(b.Events) - 1
		part := *b
		part.GroupID, part.Events = buffer.NewGroupID(), b.Events[:last] // Redis remembers a group_id as a whole
		if err := to.Send(ctx, &part); err != nil {
			return err
		}
		return &sink.BatchError{Events: []sink.EventError{{Index: last, Err: errTest}}}
	}}
}

// A foreign key keeps an event that was delivered. The others of its batch, and later events of its key, do not wait for it; readiness
// fails; nothing is sent twice, also by the next process.
func TestSettle_Refused(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	oneAtATime := func(c *pipeline.Config) {
		oneBatch(c)
		inOrder(c)
	}
	of := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	ids, err := d.insertKeyed(t.Context(), "orders", of, true)
	testkit.NoError(t, err)
	d.exec(t, "CREATE TABLE audit (id bigint REFERENCES outbox_events)")
	d.exec(t, "INSERT INTO audit VALUES ($1)", ids[3])
	p := start(t, d.orderedBuffer(t, "relay"), hesitant(to), oneAtATime)
	to.expectArrivals(t, "orders", 10)
	more, err := d.insertKeyed(t.Context(), "orders", of, true)
	testkit.NoError(t, err)
	to.expectArrivals(t, "orders", 20)
	stalls := func(p *process) {
		t.Helper()
		testserver.Eventually(t, func() error {
			if err := p.Ready(); err == nil || !strings.HasPrefix(err.Error(), "stalled: ") || !strings.Contains(err.Error(), "refuses to settle") {
				return fmt.Errorf("ready: %w; want stalled", err)
			}
			return nil
		})
	}
	stalls(p)
	p.stop(t)
	p = start(t, d.orderedBuffer(t, "another"), to, oneAtATime)
	stalls(p)
	d.exec(t, "DROP TABLE audit")
	d.exec(t, "UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp() + interval '1 s')")
	d.expectDrained(t)
	all := append(ids, more...)
	arrived := to.arrived(t, "orders")
	expectOnce(t, arrived, all)
	k := &keys{of: map[int64]string{}}
	k.add(ids, of)
	k.add(more, of)
	k.expectOrder(t, arrived)
	testserver.Eventually(t, p.Ready)
}

// A trigger refuses a dead letter: its event stays, is not sent again for it, and becomes a dead letter when the trigger has gone.
func TestSettle_RefusedDeadLetter(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	d.exec(t, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''full''; END'")
	d.exec(t, "CREATE TRIGGER refuse BEFORE INSERT ON outbox_dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()")
	var refusals atomic.Int32
	ids := d.insert(t, "orders", 110)
	p := start(t, d.buffer(t, "relay"), &sendHook{poison(to), func(_ context.Context, b *buffer.Batch, next func() error) error {
		if slices.Contains(b.IDs(), 101) {
			refusals.Add(1)
		}
		return next()
	}}, oneBatch)
	to.expectArrivals(t, "orders", 109)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT coalesce(max(lease_no), 0)::int FROM outbox_batches"); n < 3 {
			return fmt.Errorf("%d leases; want several tries", n)
		}
		return nil
	})
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "refuses to settle") {
		t.Errorf("ready: %v; want stalled", err)
	}
	testkit.Equal(t, "sends of the refused event", refusals.Load(), 1)
	d.exec(t, "DROP TRIGGER refuse ON outbox_dead_letters")
	d.exec(t, "UPDATE outbox_batches SET due_at = least(due_at, clock_timestamp() + interval '1 s')")
	d.expectDrained(t)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", fmt.Sprint(dead), fmt.Sprint(ids[100:101]))
	expectOnce(t, to.arrived(t, "orders"), slices.Concat(ids[:100], ids[101:]))
	testserver.Eventually(t, p.Ready)
}

// The database has no space for a dead letter. Its batch waits for that and is no suspect, the others go on, and readiness says why.
func TestSettle_DiskFull(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	d.exec(t, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no space left'' USING ERRCODE = ''53100''; END'")
	d.exec(t, "CREATE TRIGGER refuse BEFORE INSERT ON outbox_dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()")
	ids := d.insert(t, "orders", 110)
	p := start(t, d.buffer(t, "relay"), poison(to), func(c *pipeline.Config) {
		oneBatch(c)
		c.Lease = time.Second
	})
	to.expectArrivals(t, "orders", 109)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT coalesce(max(lease_no), 0)::int FROM outbox_batches"); n < 3 {
			return fmt.Errorf("%d leases; want several tries", n)
		}
		return nil
	})
	if reason := expectClass(t, p, "database"); !strings.Contains(reason, "the database takes no writes") || !strings.Contains(reason, "no space left") {
		t.Errorf("the reason is %s", reason)
	}
	if n := queryValue[int](t, d, "SELECT max(unfinished_leases)::int FROM outbox_batches"); n > 1 {
		t.Errorf("%d unfinished leases: it is a suspect", n)
	}
	testserver.Eventually(t, func() error { // also after many tries
		d.exec(t, "UPDATE outbox_batches SET lease_no = 20, due_at = least(due_at, clock_timestamp() + interval '1 s') WHERE state = 'waiting' AND lease_no < 20")
		if n := queryValue[int](t, d, "SELECT count(*)::int FROM outbox_batches WHERE state = 'waiting' AND lease_no > 20"); n == 0 {
			return errors.New("no batch was tried that often")
		}
		return nil
	})
	if n := queryValue[int](t, d, "SELECT count(*)::int FROM outbox_batches WHERE due_at > clock_timestamp() + interval '15 s'"); n > 0 {
		t.Error("a batch waits for longer than 15 s")
	}
	d.exec(t, "DROP TRIGGER refuse ON outbox_dead_letters")
	d.expectDrained(t)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", fmt.Sprint(dead), fmt.Sprint(ids[100:101]))
	expectOnce(t, to.arrived(t, "orders"), slices.Concat(ids[:100], ids[101:]))
	p.expectReady(t)
}

// The application and the relay each hold what the other wants. It is the relay
// that gives way, also when it tries again.
func TestDeadlock_ApplicationIsNeverTheVictim(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	g := newTurnstile(to, true)
	start(t, d.buffer(t, "relay"), g, oneBatch)
	var all []int64
	for range 3 {
		ids := d.insert(t, "orders", 10)
		all = append(all, ids...)
		testkit.Receive(t, "a send", g.waits)
		tx := d.begin(t)
		touch := func(id int64) {
			t.Helper()
			if _, err := tx.Exec(t.Context(), "UPDATE outbox_events SET headers = '{}' WHERE id = $1", id); err != nil {
				t.Fatalf("the application was the victim: %v", err)
			}
		}
		touch(ids[9])
		g.passes <- struct{}{}
		testserver.Eventually(t, func() error { // it has locked the others and waits
			if queryValue[int](t, d, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay' AND wait_event_type = 'Lock' AND datname = current_database()") == 0 {
				return errors.New("the relay waits for no lock")
			}
			return nil
		})
		touch(ids[0])
		touch(ids[5])
		testkit.NoError(t, tx.Commit(t.Context()))
		d.expectDrained(t)
	}
	expectOnce(t, to.arrived(t, "orders"), all)
	testkit.Equal(t, "sends", len(g.waits), 0)
	testkit.Equal(t, "deadlocks", queryValue[int](t, d, "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()"), 0)
}

// takeOver ends the batch's lease by force and takes it over as another process.
func takeOver(t *testing.T, d *database, by buffer.Queue, b *buffer.Batch) *buffer.Lease {
	t.Helper()
	var taken *buffer.Lease
	testserver.Eventually(t, func() error {
		d.exec(t, "UPDATE outbox_batches SET due_at = clock_timestamp() WHERE group_id = $1::uuid", b.GroupID.String())
		var err error
		if taken, err = testkit.TakeOver(t.Context(), by, time.Minute); err == nil && taken == nil {
			err = errors.New("its owner was quicker")
		}
		return err
	})
	return taken
}

// A worker stands still while it sends, and another process takes its batch over.
// When it wakes up it sends, late; and it may change nothing.
func TestLease_LostWhileSending(t *testing.T) {
	t.Parallel()
	t.Run("the new owner is done", func(t *testing.T) {
		t.Parallel()
		d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
		ids := d.insert(t, "orders", 10)
		g := newTurnstile(to, false)
		start(t, d.buffer(t, "sleeper"), g, oneBatch)
		other := d.buffer(t, "other")
		taken := takeOver(t, d, other, testkit.Receive(t, "a send", g.waits))
		testkit.NoError(t, to.Send(t.Context(), &taken.Batch))
		testkit.NoError(t, other.Settle(t.Context(), taken, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		g.open()
		ids = append(ids, d.insert(t, "orders", 10)...) // it works on
		d.expectDrained(t)
		expectOnce(t, to.arrived(t, "orders"), ids)
	})
	t.Run("the new owner is at it", func(t *testing.T) {
		t.Parallel()
		d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
		ids := d.insert(t, "orders", 10)
		g := newTurnstile(to, false)
		start(t, d.buffer(t, "sleeper"), g, oneBatch)
		other := d.buffer(t, "other")
		taken := takeOver(t, d, other, testkit.Receive(t, "a send", g.waits))
		g.open()
		more := d.insert(t, "orders", 10)
		to.expectArrivals(t, "orders", 20) // by the sleeper
		d.expectLedger(t, "leased 10")
		testkit.Equal(t, "events", queryValue[int](t, d, "SELECT count(*) FROM outbox_events"), 10)
		testkit.NoError(t, to.Send(t.Context(), &taken.Batch))
		testkit.NoError(t, other.Settle(t.Context(), taken, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		d.expectDrained(t)
		expectOnce(t, to.arrived(t, "orders"), append(ids, more...))
	})
	t.Run("the new owner has split it", func(t *testing.T) {
		t.Parallel()
		d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
		ids := d.insert(t, "orders", 10)
		g := newTurnstile(to, false)
		start(t, d.buffer(t, "sleeper"), g, oneBatch)
		other := d.buffer(t, "other")
		batch := testkit.Receive(t, "a send", g.waits)
		taken := takeOver(t, d, other, batch)
		testkit.NoError(t, other.Settle(t.Context(), taken, []buffer.Outcome{
			{Verdict: buffer.Retry, IDs: ids[:5], GroupID: buffer.NewGroupID()},
			{Verdict: buffer.Retry, IDs: ids[5:], GroupID: buffer.NewGroupID()},
		}))
		for range 2 {
			half, err := testkit.TakeOver(t.Context(), other, time.Minute)
			testkit.NoError(t, err)
			testkit.NoError(t, to.Send(t.Context(), &half.Batch))
			testkit.NoError(t, other.Settle(t.Context(), half, []buffer.Outcome{{Verdict: buffer.Delivered}}))
		}
		g.open()
		ids = append(ids, d.insert(t, "orders", 10)...)
		d.expectDrained(t)
		expectOnce(t, to.arrived(t, "orders"), ids)
	})
}

// The lease cannot be renewed: the send is cut off when the lease is over, and the
// batch is left for a take-over.
func TestLease_EndsTheSendWithoutRenewal(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 10)
	sending, cut := make(chan *buffer.Batch, 1), make(chan error, 1)
	first := true
	g := &sendHook{to, func(ctx context.Context, b *buffer.Batch, next func() error) error {
		if first { // one worker
			first = false
			sending <- b
			<-ctx.Done()
			cut <- context.Cause(ctx)
			return ctx.Err()
		}
		return next()
	}}
	start(t, d.buffer(t, "relay"), g, func(c *pipeline.Config) {
		oneBatch(c)
		c.Lease = time.Second
	})
	testkit.Receive(t, "a send", sending)
	tx := d.begin(t)
	_, err := tx.Exec(t.Context(), "SELECT FROM outbox_batches FOR UPDATE")
	testkit.NoError(t, err)
	if err := testkit.Receive(t, "the end of the send", cut); !errors.Is(err, buffer.ErrLeaseLost) {
		t.Errorf("the send ended because of %v, want that the lease was lost", err)
	}
	testkit.Equal(t, "attempts and outages", queryValue[int](t, d, "SELECT attempts + outages FROM outbox_batches"), 0)
	testkit.NoError(t, tx.Commit(t.Context()))
	d.expectDrained(t) // taken over
	expectOnce(t, to.arrived(t, "orders"), ids)
}
