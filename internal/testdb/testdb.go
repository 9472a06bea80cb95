// Package testdb makes databases with the relay's tables for tests.
package testdb

import (
	"context"
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// Postgres returns the URL of a new database with the relay's tables, as
// [testserver.Postgres] does. Only the first one of a process is migrated; the others are
// copies of it.
func Postgres(t testing.TB, c postgres.SchemaConfig) string {
	t.Helper()
	return testserver.PostgresFrom(t, fmt.Sprintf("%+v", c), func(ctx context.Context, url string) error {
		_, err := postgres.Migrate(ctx, url, c)
		return err
	})
}
