package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// SidekiqServer is a Sidekiq that takes its jobs from a Redis server.
type SidekiqServer struct {
	*process
}

// SidekiqReleases are the commands of the releases of Sidekiq that are installed: that of the system, and
// those that sidekiq.sh installs on Debian.
func SidekiqReleases() (commands []string) {
	for _, name := range []string{"sidekiq", "sidekiq7", "sidekiq8"} {
		if _, err := program(name); err == nil {
			commands = append(commands, name)
		}
	}
	return commands
}

// StartSidekiq starts a release of Sidekiq, one of SidekiqReleases, for queues of a Redis server, the first of which has priority.
// workers is Ruby code with the classes that it runs. ctx limits the start only. The caller
// calls Close, before the Redis server's.
func StartSidekiq(ctx context.Context, command string, redis *RedisServer, workers string, queues ...string) (_ *SidekiqServer, err error) {
	path, err := program(command)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "relay-sidekiq-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	file := filepath.Join(dir, "workers.rb")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(sidekiqConfig, redis.URL)+workers), 0o600); err != nil {
		return nil, err
	}
	args := []string{"-r", file, "-e", "production", "-c", "10", "-t", "1"}
	for _, queue := range queues {
		args = append(args, "-q", queue)
	}
	s := &SidekiqServer{&process{
		name: command, path: path, args: args, dir: dir,
		stop: syscall.SIGTERM, death: syscall.SIGKILL,
	}}
	s.ready = func(ctx context.Context) error {
		c := redis.client()
		n, err := c.SCard(ctx, "processes").Result()
		if err == nil && n == 0 {
			err = errors.New("Sidekiq has not registered yet")
		}
		return errors.Join(err, c.Close())
	}
	return s, s.Start(ctx)
}

// sidekiqConfig makes Sidekiq poll its retries every second, with the setting of new and of
// old versions.
var sidekiqConfig = strings.TrimSpace(`
require "sidekiq"
Sidekiq.configure_server do |config|
  config.redis = {url: "%s"}
  (config.respond_to?(:options) ? config.options : config)[:poll_interval_average] = 1
end
`) + "\n"
