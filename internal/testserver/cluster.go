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
		n, err := o.start(ctx, nil, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
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
