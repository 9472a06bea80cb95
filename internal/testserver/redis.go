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

// RedisServer is a Redis server of one's own. It writes an append-only file, so
// its data outlives Stop and Kill.
type RedisServer struct {
	Addr string // host:port
	URL  string // redis://host:port, without a password also where the arguments set one

	*process
}

// StartRedis starts a Redis server with further arguments of redis-server; later
// ones overrule earlier ones and the defaults. ctx is for the start only. Close it
// in the end.
func StartRedis(ctx context.Context, args ...string) (*RedisServer, error) {
	return startRedis(ctx, nil, args...)
}

// startRedis starts redis-server with a configuration file, where there is one:
// a sentinel has to have one, and writes it.
func startRedis(ctx context.Context, config []string, args ...string) (_ *RedisServer, err error) {
	path, err := program("redis-server")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
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
		// Left to the system, each write reaches the file before it is answered,
		// and outlives a killed server. (Every second's fsync would hold writes back.)
		all = append(all, "--save", "", "--appendonly", "yes", "--appendfsync", "no")
	}
	all = append(all, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir)
	all = append(all, args...)

	s := &RedisServer{Addr: "127.0.0.1:" + strconv.Itoa(port)}
	s.URL = "redis://" + s.Addr
	s.process = &process{
		name: "redis-server", path: path, args: all, dir: dir,
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
		answers: s.ping,
	}
	return s, s.Start(ctx)
}

// ping takes any answer for one, also a refusal for want of a password, but not
// that the data is still being loaded.
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

// client talks to the server itself.
func (s *RedisServer) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: s.Addr}) }
