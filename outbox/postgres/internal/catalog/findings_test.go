package catalog_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
)

func TestAddColumn(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, "constant", catalog.AddColumn("a.b", "c bigint DEFAULT 0 NOT NULL"), "ALTER TABLE a.b ADD COLUMN c bigint DEFAULT 0 NOT NULL")
	testkit.Equal(t, "volatile", catalog.AddColumn("a.b", "c xid8 DEFAULT pg_current_xact_id()"), "ALTER TABLE a.b ADD COLUMN c xid8; ALTER TABLE a.b ALTER c SET DEFAULT pg_current_xact_id()")
}
