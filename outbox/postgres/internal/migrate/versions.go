package migrate

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// versions is goose's version table. It is in the ledger's schema, because a role that owns its
// schema may not be allowed to create tables in the search path's first.
type versions struct{ database.Store }

func newVersions(c Config) (versions, error) {
	store, err := database.NewStore(goose.DialectPostgres, c.versionTable())
	return versions{store}, err
}

// TableExists replaces goose's own, which takes quotes for a part of the name and looks only in
// the search path's first schema.
func (v versions) TableExists(ctx context.Context, db database.DBTxConn) (exists bool, err error) {
	err = db.QueryRowContext(ctx, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", v.Tablename()).Scan(&exists)
	return exists, err
}

var notPlain = regexp.MustCompile(`[^a-z0-9_]+`)

// versionTable is the quoted name of the version table, made of the buffer's. Two buffers may
// share a ledger, so a name that has a schema or needs quotes gets a hash.
func (c Config) versionTable() string {
	table := c.Table
	schema, name := pg.SplitTable(table)
	if strings.HasPrefix(table, `"`) || strings.Contains(table, `."`) { // the same table with or without quotes
		table = strings.TrimPrefix(schema+"."+name, ".")
	}
	plain := notPlain.ReplaceAllString(strings.ToLower(name), "_")
	if table != "" && plain != table {
		sum := fnv.New32a()
		sum.Write([]byte(table)) // a hash never fails
		plain = fmt.Sprintf("%.40s_%08x", plain, sum.Sum32())
	}
	return pg.Ident(c.ledgerSchema(), plain+"_migrations")
}

// Unreleased versions of the relay made tables with other column names. Such tables are refused, not converted. Those that only lack columns are: see columns.go.

// latestVersion is the number of the last migration.
const latestVersion = 1

// obsoleteColumns are the old and the present names, by table.
var obsoleteColumns = map[string][2]string{
	"outbox_batches":      {"starts", "unfinished_leases"},
	"outbox_dead_letters": {"told_at", "notified_at"},
}

// AddObsolete reports whether a table of the relay's was made by an unreleased version, and adds the finding.
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
	batches, dead := c.ledger("outbox_batches"), c.ledger("outbox_dead_letters")
	return fmt.Sprintf("when %s and %s are empty (the relay that made them drains them): DROP TABLE IF EXISTS %s, %s, %s; then run relay migrate -c relay.yaml", batches, dead, batches, dead, c.versionTable())
}

const obsoleteSQL = `
SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'outbox_ring'),
       EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'outbox_truncated'),
       to_regclass($2) IS NOT NULL`

// refuseObsolete returns a buffer.ErrNotReady if an unreleased version made a table or the trigger, if a table lacks a column that cannot be added, or if the
// version table records a migration that does not exist. Otherwise it returns which columns the tables lack.
func refuseObsolete(ctx context.Context, tx pgx.Tx, c Config) ([]lack, error) {
	var (
		missing                 catalog.Findings
		ring, trigger, recorded bool
		events, versions        = c.events(), c.versionTable()
		names                   = slices.Sorted(maps.Keys(obsoleteColumns))
		quoted                  []string
	)
	if err := tx.QueryRow(ctx, obsoleteSQL, events, versions).Scan(&ring, &trigger, &recorded); err != nil {
		return nil, err
	}
	for _, name := range names {
		quoted = append(quoted, c.ledger(name))
	}
	has, err := existing(ctx, tx, quoted)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		c.AddObsolete(&missing, name, quoted[i], has[i])
	}
	obsolete := len(missing) > 0
	lacks, err := lacking(ctx, tx, c)
	if err != nil {
		return nil, err
	}
	for _, t := range lacks {
		of := t.table == "outbox_events" && !trigger && !recorded // no relay made it
		for _, column := range t.columns {
			if !obsolete && (of || !catalog.CanAdd(column)) {
				name, _, _ := strings.Cut(column, " ")
				missing.Add("table "+t.quoted+" has no column "+name+", and migrate does not add it", catalog.AddColumn(t.quoted, column))
			}
		}
	}
	if ring {
		missing.Add(fmt.Sprintf("table %s has trigger outbox_ring, which only an unreleased version of the relay made; expected %s", events, listen.TriggerName),
			"DROP TRIGGER outbox_ring ON "+events)
	}
	if len(missing) > 0 || !recorded {
		return lacks, missing.Err()
	}
	var version int64
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versions).Scan(&version); err != nil {
		return nil, err
	}
	if version > latestVersion {
		missing.Add(fmt.Sprintf("table %s records version %d; expected %d", versions, version, latestVersion),
			"run relay migrate of the newer relay; if an unreleased version made the tables, "+c.dropObsolete())
	}
	return lacks, missing.Err()
}
