package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Unreleased versions made tables with other column names, by five migrations instead of
// one. Such tables are refused, not converted.

// unreleasedColumns are old columns and the present ones, by table.
var unreleasedColumns = map[string]struct{ old, present string }{
	"outbox_batches":      {"starts", "unfinished_leases"},
	"outbox_dead_letters": {"told_at", "notified_at"},
}

// unreleasedTable returns the finding about a table of an unreleased version; false if the
// table is none.
func unreleasedTable(c SchemaConfig, quoted, name string, columns []string) (buffer.Finding, bool) {
	column := unreleasedColumns[name]
	if column.old == "" || !slices.Contains(columns, column.old) {
		return buffer.Finding{}, false
	}
	return buffer.Finding{
		Level: buffer.LevelError, Subject: "tables",
		Text: fmt.Sprintf("table %s has the column %s of an unreleased version; expected %s", quoted, column.old, column.present),
		Fix:  c.dropUnreleased(),
	}, true
}

func (c SchemaConfig) dropUnreleased() string {
	names := c.names()
	return fmt.Sprintf("when %s and %s are empty: DROP TABLE %s, %s, %s, then run relay migrate -c relay.yaml",
		names["Batches"], names["DeadLetters"], names["Batches"], names["DeadLetters"], pg.Ident(c.own(), versionTable(c.Table)))
}

const columnsOfSQL = `
SELECT array(SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped)`

// refuseUnreleased returns an outbox.ErrNotReady if a table is of an unreleased version, or
// the version table has more versions than there are.
func refuseUnreleased(ctx context.Context, tx pgx.Tx, c SchemaConfig) error {
	names := c.names()
	var refused catalog.Findings
	for name, quoted := range map[string]string{"outbox_batches": names["Batches"], "outbox_dead_letters": names["DeadLetters"]} {
		var columns []string
		if err := tx.QueryRow(ctx, columnsOfSQL, quoted).Scan(&columns); err != nil {
			return err
		}
		if f, ok := unreleasedTable(c, quoted, name, columns); ok {
			refused = append(refused, f)
		}
	}
	if len(refused) > 0 {
		return refused.Err()
	}
	versions := pg.Ident(c.own(), versionTable(c.Table))
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", versions).Scan(&exists); err != nil || !exists {
		return err
	}
	var version int64
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versions).Scan(&version); err != nil {
		return err
	}
	if version > latestVersion {
		refused.Add(fmt.Sprintf("table %s records version %d; expected %d", versions, version, latestVersion),
			"run relay migrate of the newer relay; if the tables are of an unreleased version, "+c.dropUnreleased())
	}
	return refused.Err()
}

// latestVersion is the number of the last migration.
const latestVersion = 1
