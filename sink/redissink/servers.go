package redissink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/outboxrelay/relay/sink"
)

type topology string

const (
	single   topology = ""
	cluster  topology = "cluster"
	sentinel topology = "sentinel"
)

// address is a parsed URL.
type address struct {
	topology       topology
	tls            bool
	hosts          []string // host:port
	user, password string
	master         string // sentinel only
	db             int
}

// parseURL parses Config.URL. Its errors quote nothing of it, because any part may contain a password that is
// not encoded.
func parseURL(text string) (address, error) {
	scheme, rest, found := strings.Cut(text, "://")
	protocol, kind, plus := strings.Cut(scheme, "+")
	a := address{topology: topology(kind), tls: protocol == "rediss"}
	known := protocol == "redis" || protocol == "rediss"
	switch a.topology {
	case single:
		known = known && !plus
	case cluster, sentinel:
	default:
		known = false
	}
	if !found || !known {
		return a, errors.New("url has an unknown scheme; expected redis://, redis+cluster:// or redis+sentinel://, or with TLS rediss://, rediss+cluster:// or rediss+sentinel://")
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
	if len(hosts) > 1 && t == single {
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
	// alertTimeout bounds the read from a connection that failed.
	alertTimeout = time.Second
	writeBuffer  = 128 << 10
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
func (c Config) connect(a address, dial dialer) servers {
	opts := &redis.UniversalOptions{
		Addrs: a.hosts, Username: a.user, Password: a.password, DB: a.db, MasterName: a.master, SentinelPassword: c.SentinelPassword,
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1,
		ContextTimeoutEnabled: true, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout,
		Dialer:           dial,
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

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialer returns what connects to every server, data servers and sentinels. It replaces go-redis' own dialer,
// which ignores the context with TLS. The certificate must be that of the host, unless TLS.ServerName is set.
func (c Config) dialer(a address) (dialer, error) {
	plain := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	if !a.tls && c.TLS == (sink.TLS{}) {
		return plain.DialContext, nil
	}
	config, err := c.TLS.Client()
	if err != nil {
		return nil, err
	}
	secure := &tls.Dialer{NetDialer: plain, Config: config}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := secure.DialContext(ctx, network, addr)
		if errors.Is(err, context.DeadlineExceeded) { // a server without TLS waits for the rest of a command
			return nil, fmt.Errorf("no TLS handshake with %s in time; expected a server that speaks TLS at that port", addr)
		}
		if err != nil {
			return nil, err
		}
		return alertConn{conn}, nil
	}, nil
}

// alertConn is a TLS connection that says why the server closed it. In TLS 1.3 a server rejects the client's
// certificate after the handshake, so the first write may fail before its alert is read.
type alertConn struct{ net.Conn }

func (c alertConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if failed, ok := errors.AsType[net.Error](err); !ok || failed.Timeout() {
		return n, err
	}
	if c.SetReadDeadline(time.Now().Add(alertTimeout)) == nil {
		if _, alert := c.Read(make([]byte, 1)); isAlert(alert) {
			err = alert
		}
	}
	return n, err
}

// isAlert reports whether the error is a TLS server's own; crypto/tls marks it so.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// Client returns the client of the server that holds a key.
func (s *Sink) Client(ctx context.Context, key string) (*redis.Client, error) {
	return s.servers.MasterForKey(ctx, key)
}
