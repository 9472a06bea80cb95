package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/pipeline"
)

// states are the ledger's rows by state.
func (d *database) states(t testing.TB) string {
	t.Helper()
	return queryValue[string](t, d, `
		SELECT coalesce(string_agg(n || ' ' || state, ', ' ORDER BY state), 'empty')
		FROM (SELECT state, count(*) AS n FROM outbox_batches GROUP BY state) s`)
}

// expectStates waits until the ledger's rows are in these states.
func (d *database) expectStates(t testing.TB, want string) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if got := d.states(t); got != want {
			return fmt.Errorf("the ledger holds %s; want %s", got, want)
		}
		return nil
	})
}

// A signal in the middle of a drain: what is in flight is sent and settled, the
// rest stays unclaimed for the next process.
func TestSignal_InMidDrain(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 10_000)
	var p *process
	ready := make(chan struct{})
	signal := func(n int64) {
		<-ready
		if n == 30 {
			p.cancel()
		}
	}
	p = start(t, d.buffer(t, "relay"), at(to, signal, nothing), nil)
	close(ready)
	testkit.Receive(t, "the end", p.ended)
	testkit.Equal(t, "Run's error", p.err, nil)
	testkit.Equal(t, "the ledger", d.states(t), "empty")
	sent := to.arrived(t, "orders")
	if len(sent) < 3000 || len(sent) > 3800 {
		t.Errorf("%d events were sent; want 30 batches of 100 and those in flight", len(sent))
	}
	testkit.Equal(t, "events that stayed", queryValue[int](t, d, "SELECT count(*) FROM outbox_events WHERE group_id IS NULL"), len(ids)-len(sent))

	start(t, d.buffer(t, "next"), to, nil)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// The time to stop is over and a sink answers nothing: its batches are handed
// back, and Run says so.
func TestStop_RunsOutOfTime(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 1000)
	sending := make(chan struct{}, 4)
	mute := &sendHook{to, func(ctx context.Context, _ *buffer.Batch, _ func() error) error {
		sending <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	p := start(t, d.buffer(t, "relay"), mute, nil)
	for range 4 {
		testkit.Receive(t, "four sends", sending)
	}
	d.expectStates(t, "6 leased") // two are claimed ahead
	p.cancel()
	select {
	case <-p.ended:
		t.Fatal("the first signal cut a send off")
	case <-time.After(200 * time.Millisecond):
	}
	p.halt()
	expectStopError(t, p, "was put back")
	testkit.Equal(t, "the ledger", d.states(t), "6 waiting")
	testkit.Equal(t, "attempts", queryValue[int](t, d, "SELECT max(attempts) FROM outbox_batches"), 0)

	start(t, d.buffer(t, "next"), to, nil)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// expectStopError waits for the end and clears the error, so that the test's end does not
// report it.
func expectStopError(t *testing.T, p *process, want string) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(testkit.PollTimeout):
		t.Fatal("Run did not return")
	}
	if p.err == nil || !strings.Contains(p.err.Error(), want) {
		t.Errorf("Run returned %v, want that a batch %s", p.err, want)
	}
	p.err = nil
}

// The database is unreachable when the drain timeout ends. Batches that were sent cannot be
// settled, and Run returns that error. The next process sends them again, under the same
// group_id.
func TestStop_WithoutADatabase(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{Durable: true})
	d, to := databaseAt(t, server.URL), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 1000)
	sent := make(chan error, 1)
	stop := func(n int64) {
		if n == 3 {
			sent <- server.Stop()
		}
	}
	p := start(t, d.buffer(t, "relay"), at(to, nothing, stop), func(c *pipeline.Config) {
		c.Lease = 2 * time.Second
		c.Workers = 1
	})
	testkit.NoError(t, testkit.Receive(t, "the stop of the database", sent))
	p.cancel()
	select {
	case <-p.ended:
		t.Fatal("the sent batch was not settled")
	case <-time.After(200 * time.Millisecond):
	}
	p.halt()
	expectStopError(t, p, "was not settled")
	testkit.NoError(t, server.Start(t.Context()))
	d.app.Reset()
	// The delivery of one may have been recorded while the server stopped.
	if states := d.states(t); !strings.Contains(states, " leased") || strings.Contains(states, "waiting") {
		t.Errorf("the ledger holds %s; want leased batches, and none that waits", states)
	}

	start(t, d.buffer(t, "next"), to, nil)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
}

// A signal before there is anything to do, and one while a server is waited for.
func TestSignal_IdlePipeline(t *testing.T) {
	t.Parallel()
	d, to := newDatabase(t), redisAt(t, testserver.SharedRedis(t))
	idle := start(t, d.buffer(t, "relay"), to, nil)
	idle.expectReady(t)
	idle.stop(t)
	waits := start(t, bufferAt(t, testserver.Postgres(t), "relay"), to, nil) // not migrated
	waits.expectNotReady(t)
	waits.stop(t)
	if ids := to.arrived(t, "orders"); !slices.Equal(ids, nil) {
		t.Errorf("%v arrived", ids)
	}
}
