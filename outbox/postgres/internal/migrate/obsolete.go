package migrate

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
)

// Unreleased versions of the relay made tables with other column names. Such tables are refused,
// not converted.

// latestVersion is the number of the last migration.
const latestVersion = 1

// obsoleteColumns are the old and the present names, by table.
var obsoleteColumns = map[string][2]string{
	"outbox_batches":      {"starts", "unfinished_leases"},
	"outbox_dead_letters": {"told_at", "notified_at"},
}

// AddObsolete reports whether a table of the relay's was made by an unreleased version, and adds
// the finding.
func (c Config) AddObsolete(missing *catalog.Findings, table, quoted string, columns []string) bool {
	column, ok := obsoleteColumns[table]
	if !ok || !slices.Contains(columns, column[0]) {
		return false
	}
	missing.Add(fmt.Sprintf("table %s has column %s, which only an unreleased version of the relay made; expected %s", quoted, column[0], column[1]),
		c.dropObsolete())
	return true
}

func (c Config) dropObsolete() string {
	names := c.names()
	return fmt.Sprintf("when %s and %s are empty: DROP TABLE %s, %s, %s, then run relay migrate -c relay.yaml",
		names["Batches"], names["DeadLetters"], names["Batches"], names["DeadLetters"], c.versionTable())
}

const (
	columnsSQL = `
SELECT array(SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped)`

	obsoleteTriggerSQL = `
SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'outbox_ring')`
)

// refuseObsolete returns a buffer.ErrNotReady if an unreleased version made a table or the
// trigger, or if the version table records a migration that does not exist.
func refuseObsolete(ctx context.Context, tx pgx.Tx, c Config) error {
	names := c.names()
	var missing catalog.Findings
	for _, t := range [][2]string{{"outbox_batches", names["Batches"]}, {"outbox_dead_letters", names["DeadLetters"]}} {
		var columns []string
		if err := tx.QueryRow(ctx, columnsSQL, t[1]).Scan(&columns); err != nil {
			return err
		}
		c.AddObsolete(&missing, t[0], t[1], columns)
	}
	var trigger, exists bool
	if err := tx.QueryRow(ctx, obsoleteTriggerSQL, names["Events"]).Scan(&trigger); err != nil {
		return err
	}
	if trigger {
		missing.Add(fmt.Sprintf("table %s has trigger outbox_ring, which only an unreleased version of the relay made; expected %s", names["Events"], listen.TriggerName),
			"DROP TRIGGER outbox_ring ON "+names["Events"])
	}
	if len(missing) > 0 {
		return missing.Err()
	}
	versions := c.versionTable()
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", versions).Scan(&exists); err != nil || !exists {
		return err
	}
	var version int64
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versions).Scan(&version); err != nil {
		return err
	}
	if version > latestVersion {
		missing.Add(fmt.Sprintf("table %s records version %d; expected %d", versions, version, latestVersion),
			"run relay migrate of the newer relay; if an unreleased version made the tables, "+c.dropObsolete())
	}
	return missing.Err()
}
