package catalog_test

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/migrate"
)

func TestAddColumn(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, "constant", catalog.AddColumn("a.b", "c bigint DEFAULT 0 NOT NULL"), "ALTER TABLE a.b ADD COLUMN IF NOT EXISTS c bigint DEFAULT 0 NOT NULL")
	testkit.Equal(t, "volatile", catalog.AddColumn("a.b", "stamp_xid xid8 DEFAULT pg_current_xact_id()"),
		"ALTER TABLE a.b ADD COLUMN IF NOT EXISTS stamp_xid xid8; ALTER TABLE a.b ALTER stamp_xid SET DEFAULT pg_current_xact_id()")
	testkit.Equal(t, "another value at first", catalog.AddColumn("a.b", "routed int8multirange NOT NULL DEFAULT '{}'"),
		"ALTER TABLE a.b ADD COLUMN IF NOT EXISTS routed int8multirange NOT NULL DEFAULT '{[0,)}'; ALTER TABLE a.b ALTER routed SET DEFAULT '{}'")
}

func TestCanAdd(t *testing.T) {
	t.Parallel()
	for column, want := range map[string]bool{
		"a text": true, "a text NOT NULL DEFAULT ''": true, "a text CHECK (a <> '')": true, "a text NOT NULL": false, "a text PRIMARY KEY": false,
	} {
		testkit.Equal(t, column, catalog.CanAdd(column), want)
	}
}

// Columns with a value of their own in earlier rows are still written as the schema writes them.
func TestAddColumn_OfSchema(t *testing.T) {
	t.Parallel()
	tables, err := migrate.Definitions()
	testkit.NoError(t, err)
	for table, column := range map[string]string{"outbox_batches": "stamp_xid", "outbox_sinks": "routed"} {
		for _, c := range tables[table].Columns {
			if name, _, _ := strings.Cut(c, " "); name == column && !strings.Contains(catalog.AddColumn("t", c), "; ALTER TABLE t ALTER "+column+" SET DEFAULT ") {
				t.Errorf("%s.%s: %s", table, column, catalog.AddColumn("t", c))
			}
		}
	}
}
