package testserver

import (
	"bufio"
	"context"
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

	*process
}

// StartRedis starts a Redis server with further arguments of redis-server, which override the
// defaults. ctx limits the start only. The caller calls Close.
func StartRedis(ctx context.Context, args ...string) (*RedisServer, error) {
	return startRedis(ctx, redisProgram, nil, args...)
}

// StartValkey is StartRedis with Valkey, which behaves like Redis 7.2 and later. The installed Redis
// may be older.
func StartValkey(ctx context.Context, args ...string) (*RedisServer, error) {
	return startRedis(ctx, valkeyProgram, nil, args...)
}

const (
	redisProgram  = "redis-server"
	valkeyProgram = "valkey-server"
)

// startRedis starts the program with a configuration file if config is not nil. A sentinel
// needs one, and writes to it.
func startRedis(ctx context.Context, name string, config []string, args ...string) (_ *RedisServer, err error) {
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
	all = append(all, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir)
	all = append(all, args...)

	s := &RedisServer{Addr: "127.0.0.1:" + strconv.Itoa(port)}
	s.URL = "redis://" + s.Addr
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
func (s *RedisServer) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: s.Addr}) }
