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
	// ioTimeout bounds one read or write. It is for a connection that hangs
	// where the context has no deadline; Send's has an earlier one.
	ioTimeout   = 30 * time.Second
	dialTimeout = 5 * time.Second // TLS included
	keepAlive   = 15 * time.Second
	writeBuffer = 128 << 10
)

// servers are the Redis servers of a URL: one, the master that sentinels name, or
// a cluster. A *redis.ClusterClient is such.
type servers interface {
	// MasterForKey returns the server that holds a key.
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	// ForEachMaster calls f for every master, side by side.
	ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
	// ReloadState asks soon which master holds what: an answer, or none, said
	// that it may have changed.
	ReloadState(ctx context.Context)
	Close() error
}

// one is a single server, or the master sentinels name.
type one struct{ *redis.Client }

func (s one) MasterForKey(context.Context, string) (*redis.Client, error) { return s.Client, nil }

func (s one) ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	return f(ctx, s.Client)
}

func (s one) ReloadState(context.Context) {}

// connect makes the clients; they connect when they are first used. Retry lives
// above the sinks, so every retry of go-redis' own is off. RESP 2, no identity and
// no notifications: nothing is asked of a server that is not needed.
func (a address) connect() servers {
	opts := &redis.UniversalOptions{
		Addrs: a.hosts, Username: a.user, Password: a.password, DB: a.db, MasterName: a.master,
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1,
		ContextTimeoutEnabled: true, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout,
		Dialer:           a.dial,
		PipelinePoolSize: -1, WriteBufferSize: writeBuffer, // there are only pipelines
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// A server that wants a password we do not have cuts a long request off
		// before it says so; to a short one it says so.
		OnConnect: func(ctx context.Context, c *redis.Conn) error { return c.Ping(ctx).Err() },
	}
	switch a.topology {
	case cluster:
		return redis.NewClusterClient(opts.Cluster())
	case sentinel:
		return one{redis.NewFailoverClient(opts.Failover())}
	}
	return one{redis.NewClient(opts.Simple())}
}

// dial is in place of go-redis' own, which knows no context where it speaks TLS.
func (a address) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	if a.topology == tlsAlone { // the server's name is the host's
		return (&tls.Dialer{NetDialer: &d, Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext(ctx, network, addr)
	}
	return d.DialContext(ctx, network, addr)
}

// Client returns the client of the server that holds a key.
func (s *Sink) Client(ctx context.Context, key string) (*redis.Client, error) {
	return s.servers.MasterForKey(ctx, key)
}
