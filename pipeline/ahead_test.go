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
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
	"github.com/outboxrelay/relay/sink"
)

// blocked is a sink whose first Send waits for a signal.
type blocked struct {
	*sendHook
	sending chan struct{} // signals that Send
	release func()        // lets it go
	most    atomic.Int64  // Sends at once
}

func block(s sink.Sink) *blocked {
	goOn := make(chan struct{})
	b := &blocked{sending: make(chan struct{}, 1), release: sync.OnceFunc(func() { close(goOn) })}
	var first sync.Once
	var now atomic.Int64
	b.sendHook = &sendHook{s, func(_ context.Context, _ *buffer.Batch, next func() error) error {
		n := now.Add(1)
		defer now.Add(-1)
		for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
		}
		first.Do(func() {
			b.sending <- struct{}{}
			<-goOn
		})
		return next()
	}}
	return b
}

// startBlocked starts a pipeline that can be stopped: a test that fails lets it go.
func startBlocked(t *testing.T, d *database, b *blocked, change func(*pipeline.Config)) *process {
	t.Helper()
	p := start(t, d.buffer(t, "relay"), b, change)
	t.Cleanup(b.release) // before the stop, which waits
	return p
}

// With one worker one batch is sent at a time, and exactly two more are
// claimed.
func TestClaimAhead(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 2000)
	b := block(to)
	startBlocked(t, d, b, func(c *pipeline.Config) { c.Workers = 1 })
	testkit.Receive(t, "a send", b.sending)
	d.expectStates(t, "3 leased")
	testkit.Equal(t, "events that were claimed", queryValue[int](t, d, "SELECT sum(events) FROM outbox_batches"), 300)
	b.release()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	testkit.Equal(t, "sends at once", b.most.Load(), 1)
}

// The lease of a batch that waits for a worker is renewed, at least twice, and the batch is never
// taken over.
func TestClaimAhead_KeepsTheLease(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 2000)
	b := block(to)
	startBlocked(t, d, b, func(c *pipeline.Config) { c.Workers, c.Lease = 1, 3*time.Second })
	testkit.Receive(t, "a send", b.sending)
	d.expectStates(t, "3 leased")
	d.exec(t, "CREATE TABLE seen AS SELECT group_id, due_at FROM outbox_batches")
	testserver.Eventually(t, func() error {
		if n := queryValue[int](t, d, `
			SELECT count(*) FROM outbox_batches b JOIN seen s USING (group_id)
			WHERE b.lease_no = 1 AND b.due_at > s.due_at + interval '3 seconds'`); n != 3 {
			return fmt.Errorf("%d of 3 batches were leased for longer than one lease", n)
		}
		return nil
	})
	b.release()
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// A signal while a send hangs: what waits behind it is handed back unsent, at once
// due for the next process, and that is no error.
func TestSignal_ReleasesBatchesThatWaitForASlot(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 1000)
	b := block(to)
	p := startBlocked(t, d, b, func(c *pipeline.Config) { c.Workers = 1 })
	testkit.Receive(t, "a send", b.sending)
	d.expectStates(t, "3 leased")
	p.cancel()
	d.expectStates(t, "1 leased, 2 waiting")
	testkit.Equal(t, "attempts and outages", queryValue[int](t, d, "SELECT max(attempts + outages) FROM outbox_batches"), 0)
	testkit.Equal(t, "not due", queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE state = 'waiting' AND due_at > clock_timestamp()"), 0)
	b.release()
	testkit.NoError(t, p.wait(t))
	testkit.Equal(t, "the ledger", d.states(t), "2 waiting")
	testkit.Equal(t, "events that were sent", len(to.arrived(t, "orders")), 100)

	start(t, d.buffer(t, "next"), to, nil)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// The sink asks to be left alone while batches wait for their turn: they are put back
// without being sent, and none comes sooner than it asked.
func TestClaimAhead_ObeysRetryAfter(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	d.insert(t, "orders", 1000)
	var sends atomic.Int64
	sending, goOn := make(chan struct{}, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	s := &sendHook{to, func(context.Context, *buffer.Batch, func() error) error {
		sends.Add(1)
		sending <- struct{}{}
		<-goOn
		return &sink.UnavailableError{Err: errors.New("429"), RetryAfter: time.Hour}
	}}
	start(t, d.buffer(t, "relay"), s, func(c *pipeline.Config) { c.Workers = 1 })
	t.Cleanup(release)
	testkit.Receive(t, "a send", sending)
	d.expectStates(t, "3 leased")
	release()
	d.expectStates(t, "3 waiting")
	testkit.Equal(t, "sends", sends.Load(), 1)
	testkit.Equal(t, "batches that are due within 50 minutes",
		queryValue[int](t, d, "SELECT count(*) FROM outbox_batches WHERE due_at < clock_timestamp() + interval '50 minutes'"), 0)
	testkit.Equal(t, "attempts", queryValue[int](t, d, "SELECT max(attempts) FROM outbox_batches"), 0)
}

// A send slot is released after every kind of result.
func TestSlots_ReleasedAfterEveryAnswer(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 2000)
	var sends atomic.Int64
	odd := errors.New("odd")
	s := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		switch n := sends.Add(1); {
		case n > 24:
			return next()
		case n%4 == 0:
			return odd // halved
		case n%4 == 1:
			return sink.Unavailable(odd)
		case n%4 == 2:
			return &sink.BatchError{Events: []sink.EventError{{Index: 0, Err: odd}}}
		default:
			half := len(b.Events) / 2
			if half == 0 {
				return next()
			}
			all := make([]sink.Group, 2)
			for i := range b.Events {
				g := &all[min(1, i/half)]
				g.Indexes = append(g.Indexes, i)
			}
			return &sink.SplitError{Groups: all}
		}
	}}
	start(t, d.buffer(t, "relay"), s, func(c *pipeline.Config) { c.Workers = 2 })
	d.expectDrained(t)
	if n := sends.Load(); n <= 24 {
		t.Errorf("%d sends", n)
	}
	if len(to.arrived(t, "orders")) > len(ids) {
		t.Error("more arrived than there was")
	}
}

// `auto`: both limits move, within their bounds, and nothing is lost by it.
func TestAutotune_InAPipeline(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 30_000)
	var (
		log      lockedBuffer
		now      atomic.Int64
		most     atomic.Int64
		mu       sync.Mutex
		sizes    = map[int]bool{}
		tooLarge = sink.Permanent(sink.TooLarge(errors.New("413")))
	)
	s := &sendHook{to, func(_ context.Context, b *buffer.Batch, next func() error) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		mu.Lock()
		sizes[len(b.Events)] = true
		mu.Unlock()
		if len(b.Events) > 400 {
			return tooLarge
		}
		return next()
	}}
	start(t, d.buffer(t, "relay"), s, func(c *pipeline.Config) {
		c.BatchSize, c.AutoBatchSize, c.Workers, c.AutoWorkers = 1000, true, 3, true
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	testkit.Equal(t, "dead letters", queryValue[int](t, d, "SELECT count(*) FROM outbox_dead_letters"), 0)
	if most.Load() > 3 {
		t.Errorf("%d sends at once, 3 is the bound", most.Load())
	}
	if !sizes[500] || !sizes[250] {
		t.Errorf("batches had %v events; want 500 and then 250", sizes)
	}
	if log.count(`msg="limits changed"`) == 0 {
		t.Error("no change was logged")
	}
}
