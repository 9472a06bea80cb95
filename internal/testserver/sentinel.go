package testserver

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// SentinelServers is a Redis master with one replica and a sentinel, which promotes the
// replica soon after the master has stopped.
type SentinelServers struct {
	MasterName string
	Addrs      []string // of the sentinels

	Master, Replica, Sentinel *RedisServer
}

// StartRedisSentinel starts the servers, with further arguments for master and replica, and
// returns when a failover is possible. The caller calls Close.
func StartRedisSentinel(ctx context.Context, args ...string) (*SentinelServers, error) {
	return RedisOptions{}.StartSentinel(ctx, args...)
}

// StartSentinel is [StartRedisSentinel] with options.
func (o RedisOptions) StartSentinel(ctx context.Context, args ...string) (_ *SentinelServers, err error) {
	s := &SentinelServers{MasterName: "relay-master"}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Master, err = o.start(ctx, nil, args...); err != nil {
		return nil, err
	}
	master := strings.Replace(s.Master.Addr, ":", " ", 1)
	replica := append([]string{"--replicaof", master, "--repl-diskless-sync-delay", "0"}, args...)
	if s.Replica, err = o.start(ctx, nil, replica...); err != nil {
		return nil, err
	}
	err = s.Replica.await(ctx, "master_link_status:up", func(c *redis.Client) (string, error) {
		return c.Info(ctx, "replication").Result()
	})
	if err != nil {
		return nil, err
	}
	// The sentinel is last, because it asks the master for its replicas at its start and then
	// only every ten seconds.
	s.Sentinel, err = o.start(ctx, []string{
		"sentinel monitor " + s.MasterName + " " + master + " 1",
		"sentinel down-after-milliseconds " + s.MasterName + " 500",
		"sentinel failover-timeout " + s.MasterName + " 5000",
	}, "--sentinel")
	if err != nil {
		return nil, err
	}
	s.Addrs = []string{s.Sentinel.Addr}
	return s, s.Sentinel.await(ctx, "status=ok,address="+s.Master.Addr+",slaves=1", func(c *redis.Client) (string, error) {
		return c.Info(ctx, "sentinel").Result()
	})
}

// Close stops the servers and removes their data.
func (s *SentinelServers) Close() error {
	var errs []error
	for _, server := range []*RedisServer{s.Sentinel, s.Replica, s.Master} {
		if server != nil {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(errs...)
}
