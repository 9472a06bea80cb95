package redissink

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// ioTimeout bounds one read or write on a connection that hangs, for contexts without
	// a deadline. Send's deadline is earlier.
	ioTimeout   = 30 * time.Second
	dialTimeout = 5 * time.Second // TLS included
	keepAlive   = 15 * time.Second
	writeBuffer = 128 << 10
)

// servers are the Redis servers of a URL: a single server, the master that sentinels
// name, or a cluster. *redis.ClusterClient implements it.
type servers interface {
	// MasterForKey returns the server that holds a key.
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	// ForEachMaster calls f for every master, concurrently.
	ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
	// ReloadState has the cluster's slots loaded again, soon, because an error suggests
	// that they have changed.
	ReloadState(ctx context.Context)
	Close() error
}

// singleServer is a single server, or the master that sentinels name.
type singleServer struct{ *redis.Client }

func (s singleServer) MasterForKey(context.Context, string) (*redis.Client, error) {
	return s.Client, nil
}

func (s singleServer) ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	return f(ctx, s.Client)
}

func (s singleServer) ReloadState(context.Context) {}

// connect returns clients that connect when they are first used. Retries happen above the
// sinks, so go-redis must not retry. RESP 2, no identity and no notifications avoid
// requests that the sink does not need.
func (a address) connect() servers {
	opts := &redis.UniversalOptions{
		Addrs: a.hosts, Username: a.user, Password: a.password, DB: a.db, MasterName: a.master,
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1,
		ContextTimeoutEnabled: true, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout,
		Dialer:           a.dial,
		PipelinePoolSize: -1, WriteBufferSize: writeBuffer, // the sink uses only pipelines
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// A server that wants a password closes the connection in the middle of a long
		// request. It answers a short one with an error that says why.
		OnConnect: func(ctx context.Context, c *redis.Conn) error { return c.Ping(ctx).Err() },
	}
	switch a.topology {
	case cluster:
		return redis.NewClusterClient(opts.Cluster())
	case sentinel:
		return singleServer{redis.NewFailoverClient(opts.Failover())}
	}
	return singleServer{redis.NewClient(opts.Simple())}
}

// dial replaces go-redis' own dialer, which ignores the context with TLS.
func (a address) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	if a.topology == tlsSingle { // the certificate must be the host's
		return (&tls.Dialer{NetDialer: &d, Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext(ctx, network, addr)
	}
	return d.DialContext(ctx, network, addr)
}

// Client returns the client of the server that holds a key.
func (s *Sink) Client(ctx context.Context, key string) (*redis.Client, error) {
	return s.servers.MasterForKey(ctx, key)
}
