//go:build unix

package chaos

import (
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// redisClusterFailover: masters of a Redis cluster are killed while events are sent, and
// their replicas take over. With wait_replicas an event is delivered only when a replica
// has it, so a failover loses and repeats nothing.
func (x *trial) redisClusterFailover() {
	nodes := testserver.ReplicatedRedisCluster(x)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	streams := []string{"orders", "payments", "refunds", "shipments", "returns", "invoices"}
	to := x.redis(addrs, streams...)
	from := x.postgres(testserver.Postgres(x))
	yaml := pipeline(from, `{url: "redis+cluster://`+strings.Join(addrs, ",")+`", stream: "{topic}", wait_replicas: 1}`)
	relays := []*relay{x.start("one", yaml), x.start("two", yaml)}
	for i := range x.rounds(1) {
		master := x.master(nodes, i)
		from.during(400, to.count, func() {
			testkit.NoError(x, master.Kill())
			x.again(relays[i%2])
		}, streams...)
		x.failedOver(nodes, master)
		// Without its replica the new master acknowledges nothing.
		testkit.NoError(x, master.Start(x.Context()))
		from.drained()
	}
	x.end(relays...)
	from.account(to.arrived(), false)
}

// info returns INFO replication of a node, "" if it does not answer.
func (x *trial) info(n *testserver.RedisServer) string {
	c := redis.NewClient(&redis.Options{Addr: n.Addr, MaxRetries: -1})
	defer c.Close()
	return c.Info(x.Context(), "replication").Val()
}

// master returns the i-th master that has a replica.
func (x *trial) master(nodes []*testserver.RedisServer, i int) (master *testserver.RedisServer) {
	x.Helper()
	testkit.Eventually(x, func() error {
		var masters []*testserver.RedisServer
		for _, n := range nodes {
			if info := x.info(n); strings.Contains(info, "role:master") && strings.Contains(info, "state=online") {
				masters = append(masters, n)
			}
		}
		if len(masters) != len(nodes)/2 {
			return fmt.Errorf("%d masters have a replica; expected %d", len(masters), len(nodes)/2)
		}
		master = masters[i%len(masters)]
		return nil
	})
	return master
}

// failedOver waits until every other node is a master or a replica of one, and there are
// as many masters as before.
func (x *trial) failedOver(nodes []*testserver.RedisServer, killed *testserver.RedisServer) {
	x.Helper()
	testkit.Eventually(x, func() error {
		masters := 0
		for _, n := range nodes {
			if n != killed && strings.Contains(x.info(n), "role:master") {
				masters++
			}
		}
		if masters != len(nodes)/2 {
			return fmt.Errorf("%d masters; expected %d after the failover", masters, len(nodes)/2)
		}
		return nil
	})
}
