package redissink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

type topology string

const (
	single    topology = "redis"
	tlsSingle topology = "rediss"
	cluster   topology = "redis+cluster"
	sentinel  topology = "redis+sentinel"
)

// address is a parsed URL.
type address struct {
	topology       topology
	hosts          []string // host:port
	user, password string
	master         string // sentinel only
	db             int
}

// parseURL parses Config.URL. Its errors quote nothing of it, because any part may contain a password that is
// not encoded.
func parseURL(text string) (address, error) {
	scheme, rest, found := strings.Cut(text, "://")
	a := address{topology: topology(scheme)}
	switch a.topology {
	case single, tlsSingle, cluster, sentinel:
	default:
		found = false
	}
	if !found {
		return a, errors.New("url has an unknown scheme; expected redis://, rediss://, redis+cluster:// or redis+sentinel://")
	}
	// net/url parses one host, so it gets the first of several.
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, path := rest[:end], rest[end:]
	at := strings.LastIndexByte(authority, '@') + 1
	hosts := strings.Split(authority[at:], ",")
	u, err := url.Parse("redis://" + authority[:at] + hosts[0] + path)
	if err != nil {
		return a, errors.New("url is not a URL; percent-encode special characters in user and password")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return a, errors.New("url has parameters after ? or #; expected none")
	}
	a.user = u.User.Username()
	a.password, _ = u.User.Password()
	if a.hosts, err = a.topology.withPorts(hosts); err != nil {
		return a, err
	}
	return a, a.parsePath(strings.Trim(u.Path, "/"))
}

func (t topology) withPorts(hosts []string) ([]string, error) {
	if len(hosts) > 1 && (t == single || t == tlsSingle) {
		return nil, errors.New("url has several hosts; expected one, or the scheme redis+cluster:// or redis+sentinel://")
	}
	port := "6379"
	if t == sentinel {
		port = "26379"
	}
	full := make([]string, len(hosts))
	for i, host := range hosts {
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host {
			return nil, errors.New("url has an invalid host; expected host or host:port")
		}
		full[i] = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	}
	return full, nil
}

// parsePath parses "DB", or "MASTER/DB" for sentinel.
func (a *address) parsePath(path string) error {
	db := path
	if a.topology == sentinel {
		a.master, db, _ = strings.Cut(path, "/")
		if a.master == "" {
			return errors.New("url has no master name; expected redis+sentinel://host,host/MASTER")
		}
	}
	if db == "" {
		return nil
	}
	var err error
	if a.db, err = strconv.Atoi(db); err != nil || a.db < 0 {
		return errors.New("url has an invalid database; expected a number")
	}
	if a.topology == cluster && a.db != 0 {
		return errors.New("url names a database; expected none, because a Redis cluster has only database 0")
	}
	return nil
}

const (
	// ioTimeout bounds one read or write on a connection that hangs, for contexts without a deadline. Send's
	// deadline is earlier.
	ioTimeout   = 30 * time.Second
	dialTimeout = 5 * time.Second // TLS included
	keepAlive   = 15 * time.Second
	writeBuffer = 128 << 10
)

// servers are the Redis servers of a URL: a single server, the master that sentinels name, or a cluster.
// *redis.ClusterClient implements it.
type servers interface {
	// MasterForKey returns the server that holds a key.
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	// ForEachMaster calls f for every master, concurrently.
	ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
	// ReloadState has the cluster's slots loaded again, soon, because an error suggests that they have
	// changed.
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

// connect returns clients that connect when they are first used. Retries happen above the sinks, so go-redis
// must not retry. RESP 2, no identity and no notifications avoid requests that the sink does not need.
func (a address) connect() servers {
	opts := &redis.UniversalOptions{
		Addrs: a.hosts, Username: a.user, Password: a.password, DB: a.db, MasterName: a.master,
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1,
		ContextTimeoutEnabled: true, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout,
		Dialer:           a.dial,
		PipelinePoolSize: -1, WriteBufferSize: writeBuffer, // the sink uses only pipelines
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// A server that wants a password closes the connection in the middle of a long request. It answers a
		// short one with an error that says why.
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
