package sqlite_test

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestALostRatesTableIsMadeAgain by migrate, whose versions say that it is there.
func TestALostRatesTableIsMadeAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t, buffertest.Options{})
	f := p.fixture(t, "outbox_events", "orders")
	f.Exec(t, "DROP TABLE outbox_rates")
	_, err := sqlite.Migrate(t.Context(), p.url, sqlite.SchemaConfig{})
	check(t, err)
	_, err = f.Buffer.TakeToken(t.Context(), "orders", 10, time.Second)
	check(t, err)
}
