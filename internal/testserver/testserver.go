package testserver

import (
	"context"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/outboxrelay/relay/internal/testkit"
)

// Postgres returns the URL of a new, empty database in a PostgreSQL server that the tests of
// a process share. The role is a superuser. The database is dropped when the test ends; the
// test must leave no prepared transactions in it.
func Postgres(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "")
}

// PostgresFrom is Postgres with a copy of a template database. The first call in a process
// with that name creates the template, and fills it with prepare. prepare must close its
// connections.
func PostgresFrom(t testing.TB, name string, prepare func(ctx context.Context, url string) error) string {
	t.Helper()
	return newDatabase(t, must(shared.template(name, prepare))(t))
}

func newDatabase(t testing.TB, template string) string {
	t.Helper()
	serverURL := must(shared.postgres())(t)
	databaseURL := must(createDatabase(t.Context(), serverURL, template))(t)
	t.Cleanup(func() { check(t, dropDatabase(context.WithoutCancel(t.Context()), serverURL, databaseURL)) })
	return databaseURL
}

// OwnPostgres starts a PostgreSQL server for one test, which may stop it.
func OwnPostgres(t testing.TB, opts PostgresOptions) *PostgresServer {
	t.Helper()
	s := must(StartPostgres(t.Context(), opts))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// PgBouncer starts PgBouncer in transaction mode for the database's server, and returns the
// database's URL through it.
func PgBouncer(t testing.TB, postgresURL string) string {
	t.Helper()
	s := must(StartPgBouncer(t.Context(), postgresURL))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s.URL
}

// Redis starts a Redis server for one test, which may stop it.
func Redis(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := must(StartRedis(t.Context(), args...))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// Valkey is Redis with Valkey; see [StartValkey].
func Valkey(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := must(StartValkey(t.Context(), args...))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// Start starts a server with options for one test; see [StartRedis].
func (o RedisOptions) Start(t testing.TB, args ...string) *RedisServer {
	t.Helper()
	s := must(o.start(t.Context(), nil, args...))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// SharedRedis returns the URL of an empty logical database in a Redis server that the tests
// of a process share. It is flushed when the test ends. Scripts and PUBLISH are common to all
// databases, so a test of those needs a server of its own.
func SharedRedis(t testing.TB) string {
	t.Helper()
	serverURL := must(shared.redis())(t)
	databaseURL, release, err := acquireRedisDatabase(t.Context(), serverURL)
	check(t, err)
	t.Cleanup(func() { check(t, release(context.WithoutCancel(t.Context()))) })
	return databaseURL
}

// RedisCluster starts a Redis cluster of three masters and returns their addresses.
func RedisCluster(t testing.TB) (addrs []string) {
	t.Helper()
	for _, node := range must(StartRedisCluster(t.Context()))(t) {
		t.Cleanup(func() { check(t, node.Close()) })
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// ReplicatedRedisCluster starts three masters with a replica each, for the test. The masters come first.
func ReplicatedRedisCluster(t testing.TB) []*RedisServer {
	t.Helper()
	nodes := must(StartReplicatedRedisCluster(t.Context()))(t)
	for _, n := range nodes {
		t.Cleanup(func() { check(t, n.Close()) })
	}
	return nodes
}

// RedisSentinel starts a Redis master, a replica and a sentinel; a test may kill
// the master.
func RedisSentinel(t testing.TB, args ...string) *SentinelServers {
	t.Helper()
	s := must(StartRedisSentinel(t.Context(), args...))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// Sidekiq starts a release of Sidekiq for one test; see [StartSidekiq].
func Sidekiq(t testing.TB, command string, redis *RedisServer, workers string, queues ...string) *SidekiqServer {
	t.Helper()
	s := must(StartSidekiq(t.Context(), command, redis, workers, queues...))(t)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// NATS starts a NATS server with JetStream for one test, which may stop it.
func NATS(t testing.TB, configure ...func(*server.Options)) *NATSServer {
	t.Helper()
	return startNATS(t, t.TempDir(), configure...)
}

// CoreNATS starts a NATS server without JetStream for one test.
func CoreNATS(t testing.TB, configure ...func(*server.Options)) *NATSServer {
	t.Helper()
	return startNATS(t, "", configure...)
}

func startNATS(t testing.TB, dir string, configure ...func(*server.Options)) *NATSServer {
	t.Helper()
	s := must(StartNATS(dir, configure...))(t)
	t.Cleanup(s.Stop)
	return s
}

// SharedNATS returns the URL of a NATS server with JetStream that the tests of a process
// share. Each test uses stream names and subjects of its own.
func SharedNATS(t testing.TB) string {
	t.Helper()
	return must(shared.nats())(t)
}

// Eventually is testkit.Eventually.
func Eventually(t testing.TB, condition func() error) {
	t.Helper()
	testkit.Eventually(t, condition)
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
