package pipeline_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/pipeline"
)

// both is a URL of two servers, of which the one that takes writes is meant.
func both(t testing.TB, first, second *testserver.PostgresServer) string {
	t.Helper()
	u, err := url.Parse(first.URL)
	testkit.NoError(t, err)
	other, err := url.Parse(second.URL)
	testkit.NoError(t, err)
	u.Host += "," + other.Host
	u.RawQuery = "target_session_attrs=read-write"
	return u.String()
}

// The database's machine dies in the middle of a drain, and its standby, which has
// all that was committed synchronously, takes over: nothing is lost, nothing comes
// twice.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := testserver.OwnPostgres(t, testserver.PostgresOptions{Durable: true})
	standby := testserver.Standby(t, primary)
	u := both(t, primary, standby)
	d, to := databaseAt(t, u), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 20_000)
	p := start(t, bufferAt(t, u, "relay"), to, func(c *pipeline.Config) {
		c.BatchSize = 50
		c.Lease = 2 * time.Second
	})
	to.expectArrivals(t, "orders", 2000)
	testkit.NoError(t, primary.Kill())
	p.expectNotReady(t)
	testkit.NoError(t, standby.Promote(t.Context()))
	d.app.Reset()
	ids = append(ids, d.insert(t, "orders", 1000)...)
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	p.expectReady(t)
}

// A failover that leaves the old primary up and read-only: the relay's connections
// stay and are of no use. It connects anew until the server takes writes.
func TestDatabase_BecomesReadOnly(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	d, to := databaseAt(t, server.URL), redisAt(t, testserver.SharedRedis(t))
	ids := d.insert(t, "orders", 10_000)
	p := start(t, d.buffer(t, "relay"), to, func(c *pipeline.Config) {
		c.BatchSize = 50
		c.Lease = 2 * time.Second
	})
	to.expectArrivals(t, "orders", 1000)
	set := func(readOnly string) {
		d.exec(t, "ALTER SYSTEM SET default_transaction_read_only = "+readOnly)
		d.exec(t, "SELECT pg_reload_conf()")
	}
	set("on")
	p.expectNotReady(t)
	if queryValue[int](t, d, "SELECT count(*) FROM outbox_events") == 0 {
		t.Error("everything went out of a database that takes no writes")
	}
	set("off")
	d.expectDrained(t)
	expectOnce(t, to.arrived(t, "orders"), ids)
	p.expectReady(t)
}
