package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// expectLogged waits for a line of the log.
func expectLogged(t testing.TB, log *lockedBuffer, text string, n int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if log.count(text) < n {
			return errors.New("the log does not say " + text)
		}
		return nil
	})
}

// TestPause: a paused pipeline claims nothing and takes nothing over, in a process that ran before and in one that starts later. When it is resumed everything
// arrives, once.
func TestPause(t *testing.T) {
	t.Parallel()
	d, to, log := newDatabase(t), redisAt(t, testserver.SharedRedis(t)), &lockedBuffer{}
	b := d.buffer(t, "relay-0")
	running := &counts{Queue: b}
	start(t, running, to, func(c *pipeline.Config) { c.Log = logInto(t, log) })
	wanted := d.insert(t, "orders", 50)
	to.expectArrivals(t, "orders", len(wanted))
	d.expectDrained(t)
	changed, err := b.Pause(t.Context(), "", "alice", "")
	testkit.NoError(t, err)
	testkit.Equal(t, "it was not paused", changed, true)
	expectLogged(t, log, "paused: nothing is claimed or sent until relay resume", 1)

	wanted = append(wanted, d.insert(t, "orders", 150)...)
	lease, err := d.buffer(t, "killed").Claim(t.Context(), 10, 0) // a batch of an owner that is gone
	testkit.NoError(t, err)
	testkit.Equal(t, "events of the batch that is due", lease.Len(), 10)
	late := &lockedBuffer{}
	second := d.buffer(t, "relay-1")
	p := start(t, second, to, func(c *pipeline.Config) { c.Log = logInto(t, late) })
	expectLogged(t, late, "paused", 1)
	expectLogged(t, late, "pipeline runs", 1)
	running.expectCountsFor(t, 3*time.Second)
	testkit.Equal(t, "events that arrived", to.count(t, "orders"), 50)
	testkit.NoError(t, p.Ready())

	changed, err = second.Resume(t.Context(), "")
	testkit.NoError(t, err)
	testkit.Equal(t, "it was paused", changed, true)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), wanted)
	expectLogged(t, log, "resumed", 1)
}

// countingRouter is a buffer with several sinks that notes when the router counts.
type countingRouter struct {
	*postgres.Buffer
	counted counts
}

func (c *countingRouter) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	b, err := c.Buffer.CountBacklog(ctx, limit)
	c.counted.last.Store(time.Now().UnixNano())
	return b, err
}

// TestPause_Sink: a sink that is paused gets nothing, and costs the other one nothing. While the pipeline is paused nothing is routed.
func TestPause_Sink(t *testing.T) {
	t.Parallel()
	d, api := newDatabase(t), newReceiver(t)
	toRedis, toAPI := redisAt(t, testserver.SharedRedis(t)), httpAt(t, api)
	routes := []buffer.Route{{Sink: "redis", BatchSize: 100}, {Sink: "api", BatchSize: 10}}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 24, Sinks: routes})
	testkit.NoError(t, err)
	log, routed := &lockedBuffer{}, &countingRouter{Buffer: b}
	startRoutedWith(t, routed, map[string]sink.Sink{"redis": toRedis, "api": toAPI}, func(c *pipeline.Config) { c.Log = logInto(t, log) }, routes...)
	wanted := d.insert(t, "orders", 50)
	d.expectDrained(t)
	_, err = b.Pause(t.Context(), "api", "alice", "it moves")
	testkit.NoError(t, err)
	expectLogged(t, log, "paused", 1)
	wanted = append(wanted, d.insert(t, "orders", 500)...)
	toRedis.expectArrivals(t, "orders", len(wanted))
	testkit.Equal(t, "events at the API", toAPI.count(t, "orders"), 50)
	_, err = b.Resume(t.Context(), "api")
	testkit.NoError(t, err)
	d.expectDrained(t)
	for _, to := range []destination{toRedis, toAPI} {
		expectOnce(t, to.arrived(t, "orders"), wanted)
	}

	_, err = b.Pause(t.Context(), "", "alice", "")
	testkit.NoError(t, err)
	expectLogged(t, log, "paused", 3) // the API's was before
	wanted = append(wanted, d.insert(t, "orders", 20)...)
	routed.counted.expectCountsFor(t, 3*time.Second)
	testkit.Equal(t, "batches", queryValue[int](t, d, "SELECT count(*) FROM outbox_batches"), 0)
	_, err = b.Resume(t.Context(), "")
	testkit.NoError(t, err)
	d.expectDrained(t)
	expectOnce(t, toRedis.arrived(t, "orders"), wanted)
}

// TestPause_Probe: while a sink holds a bad event, a batch is claimed for it from time to time, but not while it is paused.
func TestPause_Probe(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	refused := make(chan struct{}, 1000)
	refusing := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		if b.Events[0].Topic == "bad" {
			refused <- struct{}{}
			return errTest
		}
		return next()
	}}
	route := buffer.Route{Sink: "redis", BatchSize: 100}
	b, err := postgres.Open(postgres.Config{URL: d.url, Pipeline: "orders", Owner: "relay", Connections: 12, Sinks: []buffer.Route{route}})
	testkit.NoError(t, err)
	log, routed := &lockedBuffer{}, &countingRouter{Buffer: b}
	startRoutedWith(t, routed, map[string]sink.Sink{"redis": refusing}, func(c *pipeline.Config) { c.Log, c.MaxAttempts = logInto(t, log), 1000 }, route)
	d.insert(t, "bad", 1)
	<-refused
	_, err = b.Pause(t.Context(), "redis", "alice", "")
	testkit.NoError(t, err)
	expectLogged(t, log, "paused: nothing is claimed or sent", 1)
	wanted := d.insert(t, "orders", 20)
	routed.counted.expectCountsFor(t, 6*time.Second) // a probe is due at once, and after 5 s
	testkit.Equal(t, "events that arrived", to.count(t, "orders"), 0)
	_, err = b.Resume(t.Context(), "redis")
	testkit.NoError(t, err)
	to.expectArrivals(t, "orders", len(wanted))
}

// A paused pipeline is ready, and what waited during the pause is not stalled when it ends.
func TestPause_Ready(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{backlog: buffer.Backlog{Unclaimed: 1, Due: 1, Waiting: 1}}
		p := s.start(t, func(c *pipeline.Config) { c.Schedule = cron.Every(time.Second) })
		after(2 * time.Minute)
		expectReadiness(t, p, "while nothing is delivered", "stalled")
		s.set(func(s *fakeBuffer) { s.backlog.Paused, s.batch = true, three() })
		after(2 * time.Second)
		expectReadiness(t, p, "when it is paused", "")
		s.set(func(s *fakeBuffer) { s.settles = 0 })
		after(10 * time.Minute)
		s.set(func(s *fakeBuffer) { testkit.Equal(t, "batches that were sent", s.settles, 0) })
		expectReadiness(t, p, "after a long pause", "")
		s.set(func(s *fakeBuffer) { s.backlog.Paused = false })
		after(2 * time.Second)
		expectReadiness(t, p, "when it is resumed", "")
		s.set(func(s *fakeBuffer) {
			if s.settles == 0 {
				t.Error("nothing was sent after the pause")
			}
		})
	})
}

// uncounted is a paused buffer whose backlog cannot be counted.
type uncounted struct{ *fakeBuffer }

func (uncounted) Paused(context.Context) (bool, error) { return true, nil }

func (uncounted) CountBacklog(context.Context, int) (buffer.Backlog, error) {
	return buffer.Backlog{}, errTest
}

// A relay that starts knows of the pause before it claims, also if it polls and no count succeeds.
func TestPause_Start(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fakeBuffer{batch: three()}
		start(t, uncounted{s}, s, func(c *pipeline.Config) { c.Poll = true })
		after(10 * time.Second)
		s.set(func(s *fakeBuffer) { testkit.Equal(t, "batches that were sent", s.settles, 0) })
	})
}
