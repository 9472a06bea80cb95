package sqlite_test

import (
	"database/sql"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

func TestSinks(t *testing.T) {
	t.Parallel()
	buffertest.RunSinks(t, buffertest.SinksHarness{Open: func(t *testing.T) *buffertest.SinksFixture {
		p := newSinksDB(t, buffer.ClaimAuto)
		open := func(t *testing.T, c sqlite.Config) *sqlite.Buffer {
			t.Helper()
			c.Owner, c.Archive = "suite", "outbox_archive"
			return openBuffer(t, p, c)
		}
		return &buffertest.SinksFixture{
			Buffer: func(t *testing.T, claim buffer.ClaimMode, routes ...buffer.Route) buffertest.RoutedBuffer {
				return open(t, sqlite.Config{Claim: claim, Sinks: routes, Unmatched: buffer.UnmatchedKeep})
			},
			Strict: func(t *testing.T, claim buffer.ClaimMode, routes ...buffer.Route) buffertest.RoutedBuffer {
				return open(t, sqlite.Config{Claim: claim, Sinks: routes})
			},
			Single: func(t *testing.T, claim buffer.ClaimMode, ordered bool) buffer.Buffer {
				return open(t, sqlite.Config{Claim: claim, Ordered: ordered})
			},
			Exec: func(t *testing.T, statement string) { exec(t, p.db, statement) },
			IDs: func(t *testing.T, statement string) []int64 {
				return query(t, p.db, statement, func(rows *sql.Rows) (id int64, err error) { return id, rows.Scan(&id) })
			},
		}
	}})
}
