package redissink

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ioTimeout bounds one read or write. It is for a connection that hangs where the
// context has no deadline; Send's has an earlier one.
const ioTimeout = 30 * time.Second

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
// above the sinks, so every retry of go-redis' own is off. RESP 2 and no
// identity: nothing is asked of the server that is not needed.
func (a address) connect() servers {
	const (
		noRetries = -1
		oneDial   = 1
		protocol  = 2
	)
	switch a.topology {
	case cluster:
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: a.hosts, Username: a.user, Password: a.password,
			Protocol: protocol, DisableIdentity: true,
			MaxRedirects: noRetries, MaxRetries: noRetries, DialerRetries: oneDial,
			ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, ContextTimeoutEnabled: true,
			MaintNotificationsConfig: noNotifications(),
		})
	case sentinel:
		return one{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: a.master, SentinelAddrs: a.hosts,
			Username: a.user, Password: a.password, DB: a.db,
			Protocol: protocol, DisableIdentity: true,
			MaxRetries: noRetries, DialerRetries: oneDial,
			ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, ContextTimeoutEnabled: true,
		})}
	}
	opts := &redis.Options{
		Addr: a.hosts[0], Username: a.user, Password: a.password, DB: a.db,
		Protocol: protocol, DisableIdentity: true,
		MaxRetries: noRetries, DialerRetries: oneDial,
		ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: noNotifications(),
	}
	if a.topology == tlsAlone {
		opts.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} // the server's name is the host's
	}
	return one{redis.NewClient(opts)}
}

func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}
