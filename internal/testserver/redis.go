package testserver

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// RedisServer is a Redis or Valkey server with an append-only file, so that its data survives Stop and
// Kill.
type RedisServer struct {
	Addr string // host:port
	URL  string // redis://host:port, always without a password

	tls *tls.Config // nil: none
	*process
}

// StartRedis starts a Redis server with further arguments of redis-server, which override the
// defaults. ctx limits the start only. The caller calls Close.
func StartRedis(ctx context.Context, args ...string) (*RedisServer, error) {
	return RedisOptions{}.start(ctx, nil, args...)
}

// StartValkey is StartRedis with Valkey, which behaves like Redis 7.2 and later. The installed Redis
// may be older.
func StartValkey(ctx context.Context, args ...string) (*RedisServer, error) {
	return RedisOptions{Program: "valkey-server"}.start(ctx, nil, args...)
}

// RedisOptions are options of servers that belong together.
type RedisOptions struct {
	// Program is redis-server if it is empty.
	Program string
	// TLS, if it is not nil, is how servers and clients speak with each other: not at all without it.
	TLS *RedisTLS
}

// RedisTLS has the files that servers, and clients, need, in PEM. The certificate is for 127.0.0.1.
type RedisTLS struct{ CA, Cert, Key string }

func (t *RedisTLS) args(port string) []string {
	if t == nil {
		return []string{"--port", port}
	}
	return []string{
		"--port", "0", "--tls-port", port, "--tls-ca-cert-file", t.CA, "--tls-cert-file", t.Cert, "--tls-key-file", t.Key,
		"--tls-replication", "yes", "--tls-cluster", "yes",
	}
}

func (t *RedisTLS) client() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	authority, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, nil
}

// start starts a server with a configuration file if config is not nil. A sentinel needs one, and writes
// to it.
func (o RedisOptions) start(ctx context.Context, config []string, args ...string) (_ *RedisServer, err error) {
	name := cmp.Or(o.Program, "redis-server")
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "relay-redis-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	var all []string
	if config != nil {
		file := dir + "/redis.conf"
		if err := os.WriteFile(file, []byte(strings.Join(config, "\n")+"\n"), 0o600); err != nil {
			return nil, err
		}
		all = append(all, file)
	} else {
		// Without fsync each write reaches the file before its reply and survives a killed
		// server. (An fsync each second would delay writes.)
		all = append(all, "--save", "", "--appendonly", "yes", "--appendfsync", "no")
	}
	all = append(all, o.TLS.args(strconv.Itoa(port))...)
	all = append(all, "--bind", "127.0.0.1", "--dir", dir)
	all = append(all, args...)

	s := &RedisServer{Addr: "127.0.0.1:" + strconv.Itoa(port)}
	s.URL = "redis://" + s.Addr
	if s.tls, err = o.TLS.client(); err != nil {
		return nil, err
	}
	s.process = &process{
		name: name, path: path, args: all, dir: dir,
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
		ready: s.ping,
	}
	return s, s.Start(ctx)
}

// ping accepts any reply, also a missing password, except that the data is still being
// loaded.
func (s *RedisServer) ping(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
	if err != nil {
		return err
	}
	if s.tls != nil {
		config := s.tls.Clone()
		config.ServerName = "127.0.0.1"
		conn = tls.Client(conn, config)
	}
	deadline, _ := ctx.Deadline()
	err = conn.SetDeadline(deadline)
	if err == nil {
		_, err = conn.Write([]byte("PING\r\n"))
	}
	if err == nil {
		var answer string
		answer, err = bufio.NewReader(conn).ReadString('\n')
		if strings.HasPrefix(answer, "-LOADING ") {
			err = errors.New(answer)
		}
	}
	return errors.Join(err, conn.Close())
}

// client returns a client of this server.
func (s *RedisServer) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, TLSConfig: s.tls})
}
