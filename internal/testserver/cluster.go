package testserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

var clusterArgs = []string{
	"--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
	"--repl-diskless-sync-delay", "0", // replicas of tests need not wait for others
}

// StartRedisCluster starts a Redis cluster of three masters and returns them when each reports
// that the cluster is ok. The caller calls Close of each.
func StartRedisCluster(ctx context.Context) ([]*RedisServer, error) {
	return RedisOptions{}.StartCluster(ctx)
}

// StartCluster is [StartRedisCluster] with options.
func (o RedisOptions) StartCluster(ctx context.Context) (_ []*RedisServer, err error) {
	var nodes []*RedisServer
	defer func() {
		if err != nil {
			for _, n := range nodes {
				err = errors.Join(err, n.Close())
			}
		}
	}()
	for range clusterMasters {
		n, err := o.start(ctx, nil, clusterArgs...)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	for i, n := range nodes {
		if err := n.join(ctx, i, nodes[0]); err != nil {
			return nil, fmt.Errorf("forming a Redis cluster: %w", err)
		}
	}
	for _, n := range nodes {
		err := n.await(ctx, "cluster_state:ok", func(c *redis.Client) (string, error) { return c.ClusterInfo(ctx).Result() })
		if err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// StartReplicatedRedisCluster is StartRedisCluster with a replica for each master. The masters come first.
func StartReplicatedRedisCluster(ctx context.Context) (_ []*RedisServer, err error) {
	nodes, err := StartRedisCluster(ctx)
	defer func() {
		if err != nil {
			for _, n := range nodes {
				err = errors.Join(err, n.Close())
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	masters := nodes
	for _, master := range masters {
		replica, err := StartRedis(ctx, clusterArgs...)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, replica)
		if err := replica.replicate(ctx, master); err != nil {
			return nil, fmt.Errorf("adding a replica to a Redis cluster: %w", err)
		}
	}
	// Before all know all, a failover may find no majority.
	for _, n := range nodes {
		for _, expected := range []string{"cluster_known_nodes:" + strconv.Itoa(len(nodes)), "cluster_slots_ok:" + strconv.Itoa(clusterSlots), "cluster_state:ok"} {
			err := n.await(ctx, expected, func(c *redis.Client) (string, error) { return c.ClusterInfo(ctx).Result() })
			if err != nil {
				return nil, err
			}
		}
	}
	return nodes, nil
}

// replicate makes the node a replica of master, and returns when it has its data.
func (s *RedisServer) replicate(ctx context.Context, master *RedisServer) error {
	of := master.client()
	id, err := of.Do(ctx, "CLUSTER", "MYID").Text()
	if err = errors.Join(err, of.Close()); err != nil {
		return err
	}
	c := s.client()
	defer c.Close()
	host, port, _ := strings.Cut(master.Addr, ":")
	if err := c.ClusterMeet(ctx, host, port).Err(); err != nil {
		return err
	}
	err = s.await(ctx, "OK", func(c *redis.Client) (string, error) { return c.ClusterReplicate(ctx, id).Result() })
	if err != nil {
		return err
	}
	return s.await(ctx, "master_link_status:up", func(c *redis.Client) (string, error) { return c.Info(ctx, "replication").Result() })
}

// join assigns the i-th node its slots and introduces it to the first.
func (s *RedisServer) join(ctx context.Context, i int, first *RedisServer) error {
	c := s.client()
	host, port, _ := strings.Cut(first.Addr, ":")
	return errors.Join(
		c.ClusterAddSlotsRange(ctx, i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1).Err(),
		c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)).Err(),
		c.ClusterMeet(ctx, host, port).Err(),
		c.Close())
}

// await polls query until its result contains expected.
func (s *RedisServer) await(ctx context.Context, expected string, query func(*redis.Client) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := s.client()
	err := until(ctx, nil, func(context.Context) error {
		got, err := query(c)
		if err == nil && !strings.Contains(got, expected) {
			err = fmt.Errorf("%s returns %q; expected %q", s.Addr, got, expected)
		}
		return err
	})
	return errors.Join(err, c.Close())
}
