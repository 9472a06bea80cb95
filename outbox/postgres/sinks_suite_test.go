package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

func TestSinks(t *testing.T) {
	t.Parallel()
	buffertest.RunSinks(t, buffertest.SinksHarness{Open: func(t *testing.T) *buffertest.SinksFixture {
		p := newFillDB(t, buffer.ClaimAuto)
		open := func(t *testing.T, c postgres.Config) *postgres.Buffer {
			t.Helper()
			c.URL, c.Pipeline, c.Owner, c.Archive = p.url, "orders", "suite", "outbox_archive"
			b, err := postgres.Open(c)
			check(t, err)
			t.Cleanup(func() { check(t, b.Close()) })
			return b
		}
		return &buffertest.SinksFixture{
			Buffer: func(t *testing.T, claim buffer.ClaimMode, routes ...buffer.Route) buffertest.RoutedBuffer {
				return open(t, postgres.Config{Claim: claim, Sinks: routes, Unmatched: buffer.UnmatchedKeep})
			},
			Strict: func(t *testing.T, claim buffer.ClaimMode, routes ...buffer.Route) buffertest.RoutedBuffer {
				return open(t, postgres.Config{Claim: claim, Sinks: routes})
			},
			Single: func(t *testing.T, claim buffer.ClaimMode, ordered bool) buffer.Buffer {
				return open(t, postgres.Config{Claim: claim, Ordered: ordered})
			},
			Exec: func(t *testing.T, statement string) {
				_, err := p.pool.Exec(t.Context(), statement)
				check(t, err)
			},
			IDs: func(t *testing.T, statement string) []int64 { return query(t, p.pool, statement, pgx.RowTo[int64]) },
		}
	}})
}
