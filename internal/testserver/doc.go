// Package testserver starts throwaway servers for tests and for relay bench:
// PostgreSQL, PgBouncer and Redis from the installed programs, NATS from its Go
// module in process. Each listens on a free port of 127.0.0.1 and keeps its data
// in a temporary folder that goes away with it. Sidekiq, which listens to a Redis
// server, is started in the same way.
//
// Functions that start with Start return errors and know nothing of testing;
// the others take a testing.TB and are thin wrappers around them. A package
// whose tests use them says
//
//	func TestMain(m *testing.M) { testserver.Main(m) }
//
// Three environment variables name servers to use instead, where a test needs
// no control over them: RELAY_TEST_POSTGRES_URL (a role that may create
// databases), RELAY_TEST_REDIS_URL and RELAY_TEST_NATS_URL (with JetStream).
//
// On Linux the servers die with the process that started them, however it
// dies.
package testserver
