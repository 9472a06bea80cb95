package sqlite_test

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestMigrate_RestoresRatesTable: migrate creates a dropped table again although its version is
// recorded.
func TestMigrate_RestoresRatesTable(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "DROP TABLE outbox_rates")
	needs, err := sqlite.Open(sqlite.Config{URL: p.url, Pipeline: "orders", SharedRate: true})
	testkit.NoError(t, err)
	expectNotReady(t, needs.Check(t.Context()), `table "outbox_rates" does not exist: relay migrate`)
	testkit.NoError(t, needs.Close())
	testkit.NoError(t, f.Buffer.Check(t.Context())) // which needs none
	_, err = sqlite.Migrate(t.Context(), p.url, sqlite.SchemaConfig{})
	testkit.NoError(t, err)
	b, err := sqlite.Open(sqlite.Config{URL: p.url, Pipeline: "orders", SharedRate: true})
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, b.Close()) }()
	testkit.NoError(t, b.Check(t.Context()))
	_, err = f.Buffer.TakeToken(t.Context(), "orders", 10, time.Second)
	testkit.NoError(t, err)
}
