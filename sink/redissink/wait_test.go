package redissink_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/redissink"
)

// replicated is a master with a replica behind a line.
type replicated struct {
	master, replica *testserver.RedisServer
	line            *line
	cfg             redissink.Config // with WaitReplicas
}

// startReplicated returns servers whose replica has everything so far.
func startReplicated(t *testing.T, server func(testing.TB, ...string) *testserver.RedisServer, mode redissink.Mode) *replicated {
	t.Helper()
	r := &replicated{master: server(t, "--repl-diskless-sync-delay", "0")}
	r.line = newLine(t, r.master.Addr)
	host, port, _ := strings.Cut(r.line.addr, ":")
	r.replica = server(t, "--replicaof", host+" "+port)
	r.cfg = redissink.Config{
		URL: r.master.URL, Mode: mode, Stream: "orders",
		WaitReplicas: 1, WaitTimeout: 50 * time.Millisecond, DedupeWindow: window,
	}
	testkit.Eventually(t, func() error {
		up := client(t, r.replica).Info(t.Context(), "replication").Val()
		if !strings.Contains(up, "master_link_status:up") {
			return errors.New("the replica is not connected")
		}
		return nil
	})
	return r
}

// fresh is a sink whose connections have written nothing, as after a restart of the relay.
func (r *replicated) fresh(t *testing.T) *redissink.Sink { return opened(t, r.cfg) }

// expectUnreplicated fails the test unless the error is that of WAIT.
func expectUnreplicated(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, sink.ErrUnavailable) || !contains(err, "0 of 1 replicas") {
		t.Errorf("%s: got %v; want an outage because no replica has it", what, err)
	}
}

// The line to the replica is cut: nothing that the master knows counts as delivered, whichever
// connection asks. Redis 7.0 waits on every connection. Later versions and Valkey wait for what the
// connection wrote.
func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB, ...string) *testserver.RedisServer{
		"Redis": testserver.Redis, "Valkey": testserver.Valkey,
	} {
		for _, mode := range []redissink.Mode{redissink.Stream, redissink.Asynq, redissink.Sidekiq} {
			t.Run(fmt.Sprint(name, "/", mode), func(t *testing.T) {
				t.Parallel()
				r := startReplicated(t, server, mode)
				before := newBatch("orders", "orders")
				testkit.Eventually(t, func() error { return send(t, r.fresh(t), before) })
				r.line.cut()

				b := newBatch("orders", "orders", "orders")
				s := r.fresh(t)
				expectUnreplicated(t, "the first send", send(t, s, b))
				expectUnreplicated(t, "a retry", send(t, s, b))
				if mode != redissink.Sidekiq {
					r.expectKnownWaits(t, b)
				} else if n := client(t, r.master).LLen(t.Context(), "queue:default").Val(); n != 2 {
					t.Errorf("%d jobs are in the queue; want the 2 from before the cut", n)
				}
				r.loseMaster(t)
				r.cfg.WaitReplicas = 0
				mustSend(t, r.fresh(t), b)
				if got := r.arrived(t); got != 5 {
					t.Errorf("%d events are on the new master; want 5", got)
				}
			})
		}
	}
}

// expectKnownWaits sends and fences what is known to the master, each on a fresh connection.
func (r *replicated) expectKnownWaits(t *testing.T, b *buffer.Batch) {
	t.Helper()
	expectUnreplicated(t, "a known batch", send(t, r.fresh(t), b))
	expectUnreplicated(t, "a part of a known batch", send(t, r.fresh(t), part(b, 1)))
	unsent := newBatch("orders")
	for what, fenced := range map[string]*buffer.Batch{
		"fencing a known batch": b, "fencing a part of it": part(b, 1),
		"fencing an unsent batch": unsent, "fencing it again": unsent,
	} {
		delivered, err := r.fresh(t).Fence(t.Context(), fenced)
		expectUnreplicated(t, what, err)
		if delivered {
			t.Errorf("%s: delivered", what)
		}
	}
}

// loseMaster kills the master and promotes the replica.
func (r *replicated) loseMaster(t *testing.T) {
	t.Helper()
	testkit.NoError(t, r.master.Kill())
	testkit.NoError(t, client(t, r.replica).ReplicaOf(t.Context(), "NO", "ONE").Err())
	r.cfg.URL = r.replica.URL
}

// arrived counts the events on the new master.
func (r *replicated) arrived(t *testing.T) int64 {
	t.Helper()
	c := client(t, r.replica)
	n, err := map[redissink.Mode]func() *redis.IntCmd{
		redissink.Stream:  func() *redis.IntCmd { return c.XLen(t.Context(), "orders") },
		redissink.Asynq:   func() *redis.IntCmd { return c.LLen(t.Context(), "asynq:{default}:pending") },
		redissink.Sidekiq: func() *redis.IntCmd { return c.LLen(t.Context(), "queue:default") },
	}[r.cfg.Mode]().Result()
	testkit.NoError(t, err)
	return n
}

// What is known is written again: only a write is replicated, and only then can WAIT wait.
func TestMarkers_KnownIsWritten(t *testing.T) {
	t.Parallel()
	for mode, at := range markerModes {
		_, s, c := start(t, at.cfg)
		b := newBatch("a", "a")
		marker := fmt.Sprintf(at.markers, "a") + b.GroupID.String()
		expectWrite := func(what string, known func()) {
			t.Helper()
			testkit.NoError(t, c.PExpire(t.Context(), marker, window/2).Err())
			known()
			if left := c.PTTL(t.Context(), marker).Val(); left <= window/2 {
				t.Errorf("%s: %s wrote nothing: the marker expires in %v", mode, what, left)
			}
		}
		mustSend(t, s, b)
		expectWrite("a known batch", func() { mustSend(t, s, b) })
		expectWrite("a fence", func() {
			delivered, err := s.Fence(t.Context(), b)
			testkit.NoError(t, err)
			if !delivered {
				t.Errorf("%s: Fence reports an unsent batch", mode)
			}
		})
		expectWrite("a fence of a part", func() {
			_, err := s.Fence(t.Context(), part(b, 1))
			testkit.NoError(t, err)
		})
	}
}
