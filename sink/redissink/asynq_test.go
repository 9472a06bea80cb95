package redissink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// recorder records what asynq's handler was called with.
type recorder struct {
	mu   sync.Mutex
	runs []string
}

func (n *recorder) add(call string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs = append(n.runs, call)
	return len(n.runs)
}

func (n *recorder) sorted() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(slices.Values(n.runs))
}

// serveAsynq runs asynq's own server until the test ends, for queues default and critical.
func serveAsynq(t *testing.T, addr string, handle func(context.Context, *asynq.Task) error) {
	t.Helper()
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: addr}, asynq.Config{
		Concurrency: 10, Queues: map[string]int{"default": 1, "critical": 1}, LogLevel: asynq.FatalLevel,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		DelayedTaskCheckInterval: 100 * time.Millisecond, TaskCheckInterval: 10 * time.Millisecond,
		ShutdownTimeout: time.Second,
	})
	testkit.NoError(t, server.Start(asynq.HandlerFunc(handle)))
	t.Cleanup(server.Shutdown)
}

// asynq's own server runs every event of every queue once, and retries those that fail. A
// resent event does not run again, although asynq deletes a task when it is done.
func TestAsynq_RunsEveryEventOnce(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{Mode: redissink.Asynq, Queue: "{key}"})
	const events, each = 10_000, 1000
	queues := []string{"critical", "default"}
	var want []string
	var batches []*buffer.Batch
	for range events / each {
		b := newBatch(times(each, "orders.created")...)
		for i := range b.Events {
			e := &b.Events[i]
			e.Key = &queues[i%2]
			e.Payload = fmt.Appendf(nil, "größe \xff %d", e.ID)
			want = append(want, "orders.created "+string(e.Payload))
		}
		b.Events[0].Headers = outbox.Headers(`{"traceparent": "00-1"}`)
		mustSend(t, s, b)
		batches = append(batches, b)
	}
	var all, failed, traced recorder
	serveAsynq(t, server.Addr, func(_ context.Context, task *asynq.Task) error {
		if task.Headers()["traceparent"] == "00-1" && failed.add("") <= 3 {
			return errors.New("not at first")
		}
		for name, value := range task.Headers() {
			traced.add(name + " " + value)
		}
		all.add(task.Type() + " " + string(task.Payload()))
		return nil
	})
	expectDone := func() {
		t.Helper()
		testkit.Eventually(t, func() error {
			if n := len(keys(t, c, "hash")); n > 0 { // asynq deletes tasks that are done
				return fmt.Errorf("%d tasks are not done", n)
			}
			return nil
		})
		got := all.sorted()
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%d events were run; want %d", len(got), len(want))
		}
	}
	expectDone()
	if got := traced.sorted(); len(got) != events/each || got[0] != "traceparent 00-1" {
		t.Errorf("headers were %q", got)
	}

	for _, b := range batches[:2] {
		mustSend(t, s, b, part(b, 0, 1, 2), part(b, 999))
	}
	other := newBatch("later")
	other.Events[0].Key = &queues[0]
	want = append(want, "later "+string(other.Events[0].Payload))
	mustSend(t, s, other)
	expectDone()
}

// A task that was added under the batch's group_id or an origin is not added again, although the
// markers have expired.
func TestAsynq_ExistingTask(t *testing.T) {
	t.Parallel()
	_, s, c := start(t, redissink.Config{Mode: redissink.Asynq})
	b := newBatch("a", "a", "a")
	first := part(b, 1)
	mustSend(t, s, first)
	forget := func() {
		t.Helper()
		testkit.NoError(t, c.Del(t.Context(), keys(t, c, "string")...).Err())
	}
	forget()
	mustSend(t, s, first)
	forget()
	mustSend(t, s, part(first, 0))
	forget()
	mustSend(t, s, batchOf(b.Events, []uuid.UUID{b.GroupID, first.GroupID}))
	var got []string
	for _, a := range asynqArrivals(t, c) {
		got = append(got, strings.TrimPrefix(a.ID, "test:"))
	}
	want := ids(b)
	if !slices.Equal(got, []string{want[1], want[0], want[2]}) {
		t.Errorf("got %v of %v", got, want)
	}
}

// New events with ids that were used before are other events: asynq runs all of them. Resent, they
// are not added again.
func TestAsynq_ReusedID(t *testing.T) {
	t.Parallel()
	server, s, c := start(t, redissink.Config{Mode: redissink.Asynq})
	var want []string
	again := func(events []outbox.Event) *buffer.Batch {
		b := batchOf(slices.Clone(events), nil)
		for i := range b.Events {
			b.Events[i].Payload = fmt.Append(nil, b.GroupID, i)
			want = append(want, string(b.Events[i].Payload))
		}
		return b
	}
	events := newBatch(times(10, "a")...).Events
	first, second, third := again(events), again(events), again(events)
	third.Pipeline = strings.Repeat("p", 200) // the length of its tasks' ids takes two bytes
	fourth := again(events)
	fourth.Pipeline = third.Pipeline
	for _, b := range []*buffer.Batch{first, second, third, fourth} {
		mustSend(t, s, b)
		testkit.NoError(t, c.Del(t.Context(), keys(t, c, "string")...).Err()) // the markers
		mustSend(t, s, b, part(b, 3, 4))
	}
	if n := len(keys(t, c, "hash")); n != len(want) {
		t.Errorf("%d tasks were added; want %d", n, len(want))
	}

	var all recorder
	serveAsynq(t, server.Addr, func(_ context.Context, task *asynq.Task) error {
		all.add(string(task.Payload()))
		return nil
	})
	testkit.Eventually(t, func() error {
		if n := len(keys(t, c, "hash")); n > 0 { // asynq deletes tasks that are done
			return fmt.Errorf("%d tasks are not done", n)
		}
		return nil
	})
	slices.Sort(want)
	if got := all.sorted(); !slices.Equal(got, want) {
		t.Errorf("%d events were run; want %d", len(got), len(want))
	}
}

// In a cluster a queue and the set of queues may be on different servers.
func TestCluster_Queues(t *testing.T) {
	t.Parallel()
	addrs := testserver.RedisCluster(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	var topics []string
	for i := range 60 {
		topics = append(topics, fmt.Sprint("topic", i%30))
	}
	b := newBatch(topics...)
	for mode, queue := range map[redissink.Mode][2]string{
		redissink.Sidekiq: {"queues", "queue:%s"}, redissink.Asynq: {"asynq:queues", "asynq:{%s}:pending"},
	} {
		s := opened(t, redissink.Config{URL: "redis+cluster://" + addrs[0], Mode: mode, Queue: "{topic}"})
		testkit.NoError(t, s.Check(t.Context()))
		mustSend(t, s, b)
		if mode == redissink.Asynq {
			mustSend(t, s, b)
		}
		if n := c.SCard(t.Context(), queue[0]).Val(); n != 30 {
			t.Errorf("%s: %d queues are registered; want 30", mode, n)
		}
		for _, topic := range topics {
			if n := c.LLen(t.Context(), fmt.Sprintf(queue[1], topic)).Val(); n != 2 {
				t.Errorf("%s: %d events in queue %s; want 2", mode, n, topic)
			}
		}
		waits := opened(t, redissink.Config{URL: "redis+cluster://" + addrs[0], Mode: mode, WaitReplicas: 1, WaitTimeout: time.Millisecond})
		expectOutage(t, send(t, waits, b), "0 of 1 replicas")
		if n := c.LLen(t.Context(), fmt.Sprintf(queue[1], "default")).Val(); n != 0 {
			t.Errorf("%s: %d events were pushed despite too few replicas", mode, n)
		}
	}
	asynqSink := opened(t, redissink.Config{URL: "redis+cluster://" + addrs[0], Mode: redissink.Asynq, Queue: "{topic}"})
	if delivered, err := asynqSink.Fence(t.Context(), b); !delivered || err != nil {
		t.Errorf("Fence: %v, %v", delivered, err)
	}
	var batchErr *sink.BatchError
	testkit.NoError(t, c.Set(t.Context(), "asynq:{topic7}:pending", "a string", 0).Err())
	if err := send(t, asynqSink, newBatch(topics[:30]...)); !errors.As(err, &batchErr) || len(batchErr.Events) != 1 || batchErr.Events[0].Index != 7 {
		t.Errorf("got %v; want an outage of one queue", err)
	}
}
