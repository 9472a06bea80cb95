package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/sqlite"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// startRouted runs a process with several sinks. The end of the test stops it.
func startRouted(t testing.TB, b routedBuffer, sinks map[string]sink.Sink, routes ...buffer.Route) {
	t.Helper()
	startRoutedWith(t, b, sinks, func(*pipeline.Config) {}, routes...)
}

func startRoutedWith(t testing.TB, b routedBuffer, sinks map[string]sink.Sink, change func(*pipeline.Config), routes ...buffer.Route) {
	t.Helper()
	t.Cleanup(func() { testkit.NoError(t, b.Close()) })
	pipelines := map[string]*pipeline.Pipeline{}
	for _, r := range routes {
		p := start(t, b.Sink(r.Sink), sinks[r.Sink], func(c *pipeline.Config) {
			c.Routed, c.Ordered, c.Log = true, r.Ordered, c.Log.With("sink", r.Sink)
			change(c)
		})
		pipelines[r.Sink] = p.Pipeline
	}
	router, err := pipeline.NewRouter(b, pipelines, pipeline.Config{Name: "orders", Schedule: often(20 * time.Millisecond), BatchSize: 100, Log: logOf(t)})
	testkit.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-ended)
	})
}

// TestRouter: a Redis stream, JetStream and an API get what they match, once, by two processes. Each sink in turn fails
// meanwhile, and the API is away at first: the others do not wait for it.
func TestRouter(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	natsURL := testserver.NATS(t).URL
	for _, topic := range []string{"orders", "contacts"} {
		addStream(t, natsURL, topic)
	}
	toRedis, toNATS, api := redisAt(t, testserver.SharedRedis(t)), natsAt(t, natsURL), newReceiver(t)
	api.keys = map[string]bool{}
	toAPI := httpAt(t, api)
	var away atomic.Bool
	away.Store(true)
	api.answers(func([]int64) int {
		if away.Load() {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	routes := []buffer.Route{{Sink: "redis", BatchSize: 100}, {Sink: "nats", BatchSize: 40}, {Sink: "api", Match: []string{"contacts"}, BatchSize: 10}}
	for i := range 2 {
		b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: fmt.Sprint("relay-", i), Connections: 24, Sinks: routes})
		testkit.NoError(t, err)
		startRouted(t, b, map[string]sink.Sink{"redis": flakySink(toRedis), "nats": flakySink(toNATS), "api": toAPI}, routes...)
	}
	orders, contacts := d.insert(t, "orders", 2000), d.insert(t, "contacts", 500)
	orders = append(orders, d.produce(t, "orders", 3, 20)...)
	for _, to := range []destination{toRedis, toNATS} {
		to.expectArrivals(t, "orders", len(orders))
		to.expectArrivals(t, "contacts", len(contacts))
	}
	testkit.Equal(t, "events at the API while it is away", toAPI.count(t, "contacts"), 0)
	away.Store(false)
	d.expectDrained(t)
	for _, to := range []destination{toRedis, toNATS} {
		expectOnce(t, to.arrived(t, "orders"), orders)
		expectOnce(t, to.arrived(t, "contacts"), contacts)
	}
	expectOnce(t, toAPI.arrived(t, "contacts"), contacts)
	testkit.Equal(t, "orders at the API", toAPI.count(t, "orders"), 0)
	dead, _ := d.dead(t)
	testkit.Equal(t, "dead letters", len(dead), 0)
}

// TestRouter_SQLite: the same in a SQLite file, with an application that rolls back in between.
func TestRouter_SQLite(t *testing.T) {
	t.Parallel()
	f, natsURL := newFile(t), testserver.NATS(t).URL
	addStream(t, natsURL, "orders")
	toRedis, toNATS, api := redisAt(t, testserver.SharedRedis(t)), natsAt(t, natsURL), newReceiver(t)
	api.keys = map[string]bool{}
	toAPI := httpAt(t, api)
	var away atomic.Bool
	away.Store(true)
	api.answers(func([]int64) int {
		if away.Load() {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	f.transaction(t, 1000, true)
	routes := []buffer.Route{{Sink: "redis", BatchSize: 100}, {Sink: "nats", BatchSize: 40}, {Sink: "api", Match: []string{"orders"}, BatchSize: 10}}
	for i := range 2 {
		b, err := sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: fmt.Sprint("relay-", i), Sinks: routes})
		testkit.NoError(t, err)
		startRouted(t, b, map[string]sink.Sink{"redis": flakySink(toRedis), "nats": flakySink(toNATS), "api": toAPI}, routes...)
	}
	for i := range 20 {
		f.transaction(t, 1+i, i%3 != 2)
	}
	last := f.queryValue(t, "SELECT seq FROM sqlite_sequence WHERE name = 'outbox_events'")
	for _, to := range []destination{toRedis, toNATS} {
		to.expectArrivals(t, "orders", int(last))
	}
	testkit.Equal(t, "events at the API while it is away", toAPI.count(t, "orders"), 0)
	away.Store(false)
	f.expectDrained(t)
	for _, to := range []destination{toRedis, toNATS, toAPI} {
		expectOnce(t, to.arrived(t, "orders"), upTo(last))
	}
	testkit.Equal(t, "dead letters", f.queryValue(t, "SELECT count(*) FROM outbox_dead_letters"), 0)
}

// TestRouter_Order: two processes keep the order of keys at two sinks, one of which is away at first and does not hold back the other.
func TestRouter_Order(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		d := newDatabase(t)
		testRouterOrder(t, d.source(), 30, func(owner string, routes []buffer.Route) (routedBuffer, error) {
			return postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: owner, Connections: 24, Sinks: routes})
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		f := newFile(t)
		testRouterOrder(t, f.source(), 10, func(owner string, routes []buffer.Route) (routedBuffer, error) {
			return sqlite.Open(sqlite.Config{URL: f.url, Pipeline: "orders", Owner: owner, Sinks: routes})
		})
	})
}

// testRouterOrder inserts so many transactions from each of three applications.
func testRouterOrder(t *testing.T, from source, transactions int, open func(owner string, routes []buffer.Route) (routedBuffer, error)) {
	t.Helper()
	toRedis, api := redisAt(t, testserver.SharedRedis(t)), newReceiver(t)
	api.keys = map[string]bool{}
	toAPI := httpAt(t, api)
	var away atomic.Bool
	away.Store(true)
	api.answers(func([]int64) int {
		if away.Load() {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	routes := []buffer.Route{{Sink: "redis", BatchSize: 20, Ordered: true}, {Sink: "api", BatchSize: 10, Ordered: true}}
	for i := range 2 {
		b, err := open(fmt.Sprint("relay-", i), routes)
		testkit.NoError(t, err)
		startRouted(t, b, map[string]sink.Sink{"redis": flakySink(toRedis), "api": toAPI}, routes...)
	}
	topic := "in-order-" + path.Base(t.Name())
	all := keys{of: map[int64]string{}}
	var group errgroup.Group
	for application := range 3 {
		group.Go(func() error {
			for transaction := range transactions {
				of := someKeysOf(application, transaction)
				ids, err := from.insert(t.Context(), topic, of, true)
				if err != nil {
					return err
				}
				all.add(ids, of)
			}
			return nil
		})
	}
	testkit.NoError(t, group.Wait())
	toRedis.expectArrivals(t, topic, len(all.ids()))
	testkit.Equal(t, "events at the API while it is away", toAPI.count(t, topic), 0)
	away.Store(false)
	from.drained(t)
	for _, to := range []destination{toRedis, toAPI} {
		expectOnce(t, to.arrived(t, topic), all.ids())
		all.expectOrder(t, to.arrived(t, topic))
	}
}

// TestRouter_Recovered: a sink that failed takes part in claims again, while the only other one is away. What it failed with is one
// event's address, or the whole sink until its only batch is gone.
func TestRouter_Recovered(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]func(*buffer.Batch) error{
		"address": func(b *buffer.Batch) error {
			all := &sink.BatchError{}
			for i := range b.Events {
				all.Events = append(all.Events, sink.EventError{Index: i, Err: sink.Unavailable(errTest)})
			}
			return all
		},
		"sink": func(*buffer.Batch) error { return sink.Unavailable(errTest) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			toRedis, api := redisAt(t, testserver.SharedRedis(t)), newReceiver(t)
			api.answers(func([]int64) int { return http.StatusServiceUnavailable })
			var fails atomic.Int64 // this many sends in a row
			flaky := &sendHook{toRedis, func(_ context.Context, b *buffer.Batch, next func() error) error {
				if fails.Add(-1) >= 0 {
					return failure(b)
				}
				return next()
			}}
			routes := []buffer.Route{{Sink: "redis", BatchSize: 100}, {Sink: "api", BatchSize: 100}}
			b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
			testkit.NoError(t, err)
			startRouted(t, b, map[string]sink.Sink{"redis": flaky, "api": httpAt(t, api)}, routes...)
			topic := "recovered-" + name
			for round := range 4 {
				fails.Store(3)
				d.insert(t, topic, 2)
				toRedis.expectArrivals(t, topic, 2*(round+1))
			}
			fails.Store(1 << 40)
			d.insert(t, topic, 2)
			testserver.Eventually(t, func() error {
				if left := int64(1)<<40 - fails.Load(); left < 4 {
					return fmt.Errorf("%d sends have failed", left)
				}
				return nil
			})
			d.exec(t, "DELETE FROM outbox_batches WHERE sink = 'redis'") // as a process does that can send them
			fails.Store(0)
			d.insert(t, topic+"-at-last", 2)
			toRedis.expectArrivals(t, topic+"-at-last", 2)
		})
	}
}

// TestRouter_Refusing: one sink is away, and the other refuses the only event that it got. The next events show that it accepts others, and nothing
// else would: they are claimed although the refused one waits.
func TestRouter_Refusing(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	toRedis, api := redisAt(t, testserver.SharedRedis(t)), newReceiver(t)
	api.answers(func(ids []int64) int { // a bad event, in whatever batch it is
		if slices.Contains(ids, 1) {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	})
	away := &sendHook{toRedis, func(context.Context, *buffer.Batch, func() error) error { return sink.Unavailable(errTest) }}
	routes := []buffer.Route{{Sink: "redis", BatchSize: 100}, {Sink: "api", BatchSize: 100}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	toAPI := httpAt(t, api)
	startRoutedWith(t, b, map[string]sink.Sink{"redis": away, "api": toAPI}, func(c *pipeline.Config) {
		c.Backoff = delivery.Backoff{Initial: 100 * time.Millisecond, Max: time.Hour, Multiplier: 20}
	}, routes...)
	d.insert(t, "orders", 1)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT coalesce(max(attempts), 0) FROM outbox_batches WHERE sink = 'api'"); n < 3 {
			return fmt.Errorf("the bad event has %d attempts", n)
		}
		return nil
	})
	d.insert(t, "orders", 5)
	toAPI.expectArrivals(t, "orders", 5)
	testserver.Eventually(t, func() error {
		if dead, _ := d.dead(t); len(dead) != 1 {
			return fmt.Errorf("%d dead letters; want the bad event", len(dead))
		}
		return nil
	})
}

// TestRouter_PassesABurst: a burst of bad events for one of two sinks stands before good ones. Its workers get many bad batches at once, so the search has not
// come to an event alone when the pause begins.
func TestRouter_PassesABurst(t *testing.T) {
	t.Parallel()
	const bad, batch = 20_000, 100
	d, api := newDatabase(t), newReceiver(t)
	toRedis, toAPI := redisAt(t, testserver.SharedRedis(t)), httpAt(t, api)
	first := d.insert(t, "orders", 1)[0]
	api.answers(func(ids []int64) int {
		<-time.After(50 * time.Millisecond) // so that all workers have sent a batch before one is halved
		if slices.ContainsFunc(ids, func(id int64) bool { return id > first && id <= first+bad }) {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	routes := []buffer.Route{{Sink: "redis", BatchSize: batch}, {Sink: "api", BatchSize: batch}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	startRoutedWith(t, b, map[string]sink.Sink{"redis": toRedis, "api": toAPI}, func(c *pipeline.Config) { c.BatchSize, c.Workers = batch, 8 }, routes...)
	toAPI.expectArrivals(t, "orders", 1)
	d.insert(t, "orders", bad)
	for n := 2; n <= 5; n++ { // one after the other
		d.insert(t, "orders", 1)
		testserver.Eventually(t, func() error {
			if arrived := len(toAPI.arrived(t, "orders")); arrived < n {
				return fmt.Errorf("%d of %d good events have arrived", arrived, n)
			}
			return nil
		})
	}
}

// TestRouter_SearchedWhileSomeWait: an address is away, so batches wait for it, and two batches in a row had a bad event. They were searched one by one; fresh
// events are claimed nevertheless, or none could end that.
func TestRouter_SearchedWhileSomeWait(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	away, orders := "away-"+path.Base(d.url), "orders-"+path.Base(d.url)
	var bad sync.Map
	refuses := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		for i := range b.Events {
			if b.Events[i].Topic == away {
				return sink.Unavailable(errTest)
			}
			if _, ok := bad.Load(b.Events[i].ID); ok {
				return sink.Permanent(errTest)
			}
		}
		return next()
	}}
	routes := []buffer.Route{{Sink: "only", BatchSize: 100}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	startRoutedWith(t, b, map[string]sink.Sink{"only": refuses}, func(*pipeline.Config) {}, routes...)
	first := d.insert(t, away, 1)[0]
	testserver.Eventually(t, func() error {
		if queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE state = 'waiting'") == 0 {
			return errors.New("no batch waits for the address")
		}
		return nil
	})
	for n := 1; n <= 4; n++ {
		bad.Store(first+int64(2*n), true)
		d.insert(t, orders, 2)
		testserver.Eventually(t, func() error {
			if dead, _ := d.dead(t); len(dead) < n || to.count(t, orders) < n {
				return fmt.Errorf("%d of %d bad events are buried", len(dead), n)
			}
			return nil
		})
	}
}

// TestRouter_AddressesTimeOut: more addresses hang than there are workers, so one of them is always to be tried again. The events of the others do not wait for that.
func TestRouter_AddressesTimeOut(t *testing.T) {
	t.Parallel()
	const addresses, events = 8, 5
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	name := path.Base(d.url)
	var hung atomic.Int64
	hangs := &sendHook{to, func(ctx context.Context, b *buffer.Batch, next func() error) error {
		if !strings.HasPrefix(b.Events[0].Topic, "away") {
			return next()
		}
		hung.Add(1)
		<-ctx.Done()
		return sink.Unavailable(context.Cause(ctx))
	}}
	routes := []buffer.Route{{Sink: "only", BatchSize: 1}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	startRoutedWith(t, b, map[string]sink.Sink{"only": hangs}, func(c *pipeline.Config) { c.SendTimeout = 2 * time.Second }, routes...)
	for i := range addresses {
		d.insert(t, fmt.Sprintf("away%d-%s", i, name), 1)
	}
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE outages >= 2"); n < addresses {
			return fmt.Errorf("%d of %d addresses have timed out twice", n, addresses)
		}
		return nil
	})
	before := hung.Load()
	for n := 1; n <= events; n++ { // one after the other
		d.insert(t, name, 1)
		to.expectArrivals(t, name, n)
	}
	if n := hung.Load() - before; n > 4*events {
		t.Errorf("%d sends have timed out while %d events were delivered; expected each to wait for a round of the workers at most", n, events)
	}
}

// TestRouter_AddressIsBackForAMoment: an address with many waiting batches takes one of them, so that all are due, and then hangs. The events of another address do not
// wait until each of these has timed out.
func TestRouter_AddressIsBackForAMoment(t *testing.T) {
	t.Parallel()
	const waiting, workers, events = 60, 4, 20
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	name := path.Base(d.url)
	away := "away-" + name
	var (
		takes atomic.Int64 // so many events, from now on
		hangs atomic.Bool
		hung  atomic.Int64
	)
	moody := &sendHook{to, func(ctx context.Context, b *buffer.Batch, next func() error) error {
		switch {
		case b.Events[0].Topic != away || takes.Add(-1) >= 0:
			return next()
		case !hangs.Load():
			return &sink.BatchError{Events: []sink.EventError{{Err: sink.Unavailable(errTest)}}}
		}
		hung.Add(1)
		<-ctx.Done()
		return sink.Unavailable(context.Cause(ctx))
	}}
	routes := []buffer.Route{{Sink: "only", BatchSize: 1}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	startRoutedWith(t, b, map[string]sink.Sink{"only": moody}, func(c *pipeline.Config) { c.SendTimeout, c.Workers = time.Second, workers }, routes...)
	d.insert(t, away, waiting)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE outages > 0"); n < waiting {
			return fmt.Errorf("%d of %d batches wait for the address", n, waiting)
		}
		return nil
	})
	hangs.Store(true)
	takes.Store(1)
	testserver.Eventually(t, func() error {
		if hung.Load() < workers {
			return errors.New("the address has not taken an event and hung since")
		}
		return nil
	})
	d.insert(t, name, events)
	to.expectArrivals(t, name, events)
	if n := hung.Load(); n > 5*workers {
		t.Errorf("%d sends to the other address have timed out before; expected a few rounds of the workers", n)
	}
}

// TestRouter_FullOfBad: one sink is away, and the other refuses as many batches as may wait, again and again. It gets the events behind them, one batch from
// time to time. The sink that is away gets them later.
func TestRouter_FullOfBad(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	toRedis, toOther := redisAt(t, testserver.SharedRedis(t)), redisAt(t, testserver.SharedRedis(t))
	var away atomic.Bool
	away.Store(true)
	flaky := &sendHook{toRedis, func(_ context.Context, _ *buffer.Batch, next func() error) error {
		if away.Load() {
			return sink.Unavailable(errTest)
		}
		return next()
	}}
	bad, good := "bad-"+path.Base(d.url), "good-"+path.Base(d.url)
	refuses := &sendHook{toOther, func(_ context.Context, b *buffer.Batch, next func() error) error {
		refused := &sink.BatchError{}
		for i := range b.Events {
			if b.Events[i].Topic == bad {
				refused.Events = append(refused.Events, sink.EventError{Index: i, Err: errTest})
			}
		}
		if len(refused.Events) > 0 {
			return refused
		}
		return next()
	}}
	const most = 3
	routes := []buffer.Route{{Sink: "away", Match: []string{bad, good}, BatchSize: 1}, {Sink: "refuses", Match: []string{bad, good}, BatchSize: 1}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	startRoutedWith(t, b, map[string]sink.Sink{"away": flaky, "refuses": refuses}, func(c *pipeline.Config) {
		c.MaxWaiting, c.MaxAttempts = most, 1<<20
		c.Backoff = delivery.Backoff{Initial: 20 * time.Millisecond, Max: time.Hour, Multiplier: 1 << 20} // the second wait is that of the test
	}, routes...)
	d.insert(t, bad, most)
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE sink = 'refuses' AND state = 'waiting' AND attempts >= 2"); n < most {
			return fmt.Errorf("%d batches were refused again and again", n)
		}
		return nil
	})
	for n := range 2 { // the second at the next probe
		d.insert(t, good, 1)
		toOther.expectArrivals(t, good, n+1)
	}
	testkit.Equal(t, "events at the sink that is away", toRedis.count(t, bad), 0)
	away.Store(false)
	testserver.Eventually(t, func() error {
		if n := toRedis.count(t, bad); n < most {
			return fmt.Errorf("%d of the events that the other sink refuses have arrived", n)
		}
		return nil
	})
}
