// Package testserver starts throwaway servers for tests and for relay bench:
// PostgreSQL, PgBouncer, Redis and Sidekiq from the installed programs, NATS from its Go
// module in process. Each listens on a free port of 127.0.0.1 and keeps its data in a
// temporary directory that Close removes.
//
// Functions whose names start with Start return errors and do not import testing. The others
// take a testing.TB and are thin wrappers around them. A package whose tests use them has
//
//	func TestMain(m *testing.M) { testserver.Main(m) }
//
// Environment variables name servers to use for tests that need not stop them:
// RELAY_TEST_POSTGRES_URL (with a role that may create databases), RELAY_TEST_REDIS_URL and
// RELAY_TEST_NATS_URL (with JetStream).
//
// On Linux the servers end with the process that started them, even if it is killed.
package testserver
