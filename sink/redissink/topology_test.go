package redissink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

func TestCluster_ManyTopics(t *testing.T) {
	t.Parallel()
	addrs := testserver.RedisCluster(t)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	s := opened(t, redissink.Config{URL: "redis+cluster://" + strings.Join(addrs[:2], ",")})
	testkit.NoError(t, s.Check(t.Context()))
	var topics []string
	for i := range 300 {
		topics = append(topics, fmt.Sprint("topic", i%60))
	}
	b := newBatch(topics...)
	mustSend(t, s, b, b)
	mustSend(t, s, part(b, 0, 1, 2, 3))
	for i := range 60 {
		var want []string
		for j := i; j < len(topics); j += 60 {
			want = append(want, ids(b)[j])
		}
		expectStream(t, c, fmt.Sprint("topic", i), want...)
	}

	testkit.NoError(t, c.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() }))
	testkit.NoError(t, c.Set(t.Context(), "topic7", "a string", 0).Err())
	again := newBatch(topics[:60]...)
	expectParts(t, send(t, s, again), sink.ErrUnavailable, 7)

	waits := opened(t, redissink.Config{URL: "redis+cluster://" + addrs[0], WaitReplicas: 1, WaitTimeout: time.Millisecond})
	expectOutage(t, send(t, waits, again), "0 of 1 replicas")

	// A client of one node gets MOVED for streams of the others.
	node := opened(t, redissink.Config{URL: "redis://" + addrs[0]})
	var batch *sink.BatchError
	if err := send(t, node, newBatch(topics[:6]...)); !errors.As(err, &batch) || !errors.Is(batch.Events[0].Err, sink.ErrUnavailable) {
		t.Errorf("got %v, want an outage of some addresses", err)
	}

	list := opened(t, redissink.Config{URL: "redis+cluster://" + addrs[0], Mode: redissink.List, List: "l:{topic}"})
	mustSend(t, list, b)
	publish := opened(t, redissink.Config{URL: "redis+cluster://" + addrs[0], Mode: redissink.Publish})
	mustSend(t, publish, b)
}

func TestCluster_MasterKilled(t *testing.T) {
	t.Parallel()
	nodes, err := testserver.StartRedisCluster(t.Context())
	testkit.NoError(t, err)
	for _, n := range nodes {
		t.Cleanup(func() { testkit.NoError(t, n.Close()) })
	}
	s := opened(t, redissink.Config{URL: "redis+cluster://" + nodes[0].Addr})
	var topics []string
	for i := range 60 {
		topics = append(topics, fmt.Sprint("topic", i))
	}
	mustSend(t, s, newBatch(topics...))
	testkit.NoError(t, nodes[1].Kill())
	b := newBatch(topics...)
	err = send(t, s, b)
	var batch *sink.BatchError
	if !errors.As(err, &batch) || !errors.Is(batch.Events[0].Err, sink.ErrUnavailable) || len(batch.Events) > 40 {
		t.Fatalf("got %v, want an outage of the streams on that master", err)
	}
	var unavailable []int
	for _, e := range batch.Events {
		unavailable = append(unavailable, e.Index)
	}
	testkit.NoError(t, nodes[1].Start(t.Context()))
	p := part(b, unavailable...)
	testkit.Eventually(t, func() error { return send(t, s, p) })
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr}})
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	for i, topic := range topics {
		entries, err := c.XRange(t.Context(), topic, "-", "+").Result()
		testkit.NoError(t, err)
		if len(entries) != 2 || fmt.Sprint(entries[1].Values["id"]) != ids(b)[i] {
			t.Errorf("%s contains %v", topic, entries)
		}
	}
}

func TestSentinel_Failover(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisSentinel(t)
	s := opened(t, redissink.Config{URL: "redis+sentinel://" + strings.Join(servers.Addrs, ",") + "/" + servers.MasterName + "/1"})
	testkit.NoError(t, s.Check(t.Context()))
	replicated := redis.NewClient(&redis.Options{Addr: servers.Replica.Addr, DB: 1})
	t.Cleanup(func() { testkit.NoError(t, replicated.Close()) })

	before, after := newBatch("orders", "orders"), newBatch("orders")
	mustSend(t, s, before)
	testkit.Eventually(t, func() error {
		if n := replicated.XLen(t.Context(), "orders").Val(); n != 2 {
			return fmt.Errorf("the replica has %d entries", n)
		}
		return nil
	})
	testkit.NoError(t, servers.Master.Kill())
	expectOutage(t, send(t, s, after), "")
	testkit.Eventually(t, func() error {
		err := send(t, s, after)
		if err != nil && !errors.Is(err, sink.ErrUnavailable) {
			t.Fatalf("got %v, want an outage", err)
		}
		return err
	})
	mustSend(t, s, before, after)
	expectStream(t, replicated, "orders", append(ids(before), ids(after)...)...)
}
