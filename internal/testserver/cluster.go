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

// StartRedisCluster starts a Redis cluster of three masters and returns them when
// every one of them says that the cluster is ok. Close each in the end.
func StartRedisCluster(ctx context.Context) (_ []*RedisServer, err error) {
	var nodes []*RedisServer
	defer func() {
		if err != nil {
			for _, n := range nodes {
				err = errors.Join(err, n.Close())
			}
		}
	}()
	for range clusterMasters {
		n, err := StartRedis(ctx, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
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
		err := n.ask(ctx, "cluster_state:ok", func(c *redis.Client) (string, error) { return c.ClusterInfo(ctx).Result() })
		if err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// join gives the i-th node its share of the slots and lets it meet the first.
func (s *RedisServer) join(ctx context.Context, i int, first *RedisServer) error {
	c := s.client()
	host, port, _ := strings.Cut(first.Addr, ":")
	return errors.Join(
		c.ClusterAddSlotsRange(ctx, i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1).Err(),
		c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)).Err(),
		c.ClusterMeet(ctx, host, port).Err(),
		c.Close())
}

// ask asks until the answer contains what is expected.
func (s *RedisServer) ask(ctx context.Context, expected string, question func(*redis.Client) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := s.client()
	err := until(ctx, nil, func(context.Context) error {
		answer, err := question(c)
		if err == nil && !strings.Contains(answer, expected) {
			err = fmt.Errorf("%s says %q, %q was expected", s.Addr, answer, expected)
		}
		return err
	})
	return errors.Join(err, c.Close())
}
