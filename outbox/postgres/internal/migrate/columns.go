package migrate

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The tables of an earlier version get the columns and indexes that they lack. What they lack is read from the tables, not from the recorded
// migrations: that is right also for tables that psql made, and a relay of the version before, whose migrate may run again, sees no
// version that it does not know.

// lack is a table of an earlier version, with the columns that it lacks, as ALTER TABLE ADD COLUMN takes them.
type lack struct {
	table, quoted string
	columns       []string
}

// tableColumnsSQL reads the columns of tables, in their order; of one that does not exist it returns no rows.
const tableColumnsSQL = `
SELECT t.n - 1, a.attname::text
FROM unnest($1::text[]) WITH ORDINALITY AS t(name, n) JOIN pg_attribute a ON a.attrelid = to_regclass(t.name)
WHERE a.attnum > 0 AND NOT a.attisdropped`

// existing returns the columns that each of the tables has, none of one that does not exist. The names are quoted.
func existing(ctx context.Context, tx pgx.Tx, tables []string) ([][]string, error) {
	has := make([][]string, len(tables))
	rows, err := tx.Query(ctx, tableColumnsSQL, tables)
	if err != nil {
		return nil, err
	}
	var (
		i    int
		name string
	)
	_, err = pgx.ForEachRow(rows, []any{&i, &name}, func() error {
		has[i] = append(has[i], name)
		return nil
	})
	return has, err
}

// lacking returns what the tables lack that exist.
func lacking(ctx context.Context, tx pgx.Tx, c Config) ([]lack, error) {
	definitions, err := Definitions()
	if err != nil {
		return nil, err
	}
	var all []lack
	for _, name := range ledgerTables {
		all = append(all, lack{name, c.ledger(name), slices.Clone(definitions[name].Columns)})
	}
	if !c.Custom {
		all = append(all, lack{"outbox_events", c.events(), slices.Clone(definitions["outbox_events"].Columns)})
	}
	if c.Archive != "" {
		all = append(all, lack{c.Archive, pg.Ident(archiveName(c.Archive, c.ledgerSchema())), archiveColumns("json")})
	}
	var names []string
	for _, t := range all {
		names = append(names, t.quoted)
	}
	has, err := existing(ctx, tx, names)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].columns = slices.DeleteFunc(all[i].columns, func(column string) bool {
			name, _, _ := strings.Cut(column, " ")
			return len(has[i]) == 0 || slices.Contains(has[i], name)
		})
	}
	return slices.DeleteFunc(all, func(t lack) bool {
		archive := c.Archive != "" && t.table == c.Archive
		return len(t.columns) == 0 || archive && !addsToArchive(t.columns[0]) // no archive: Check says so
	}), nil
}

// AddsToEvents reports whether Migrate adds a column to the relay's own buffer: one that the first version had not. A table without the others is the application's.
func AddsToEvents(column string) bool {
	name, _, _ := strings.Cut(column, " ")
	return !slices.Contains(buffer.FirstEventColumns(), name)
}

// ledgerTables are the relay's own tables but the buffer, by their names.
var ledgerTables = []string{"outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_sinks", "outbox_relays", "outbox_rates"}

// addColumns adds the columns that tables lack, and returns them as table.column. Each table is altered in a transaction of its own, so that no lock is held while
// another is waited for.
func addColumns(ctx context.Context, conn *pgx.Conn, tables []lack, timeout time.Duration) (added []string, err error) {
	for _, t := range tables {
		var ddl strings.Builder
		ddl.WriteString(lockTimeoutSQL)
		for _, column := range t.columns {
			ddl.WriteString(catalog.AddColumn(t.quoted, column) + ";\n")
		}
		err := retryOnLock(ctx, timeout, func() error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, ddl.String(), pgx.QueryExecModeSimpleProtocol)
				return err
			})
		})
		if err != nil {
			return nil, fmt.Errorf("adding columns to table %s: %w", t.quoted, err)
		}
		for _, column := range t.columns {
			name, _, _ := strings.Cut(column, " ")
			added = append(added, t.table+"."+name)
		}
	}
	return added, nil
}

// invalidIndexSQL reports whether an attempt to build an index concurrently has left it behind, and whether an index of another table has its name: a table that was renamed
// keeps the names of its indexes.
const invalidIndexSQL = `
SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid AND indrelid = $2::regclass),
       EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND indrelid <> $2::regclass)`

// makeDelayedIndex makes the index of delayed events of a buffer that exists and has none, and reports whether it did. The application inserts meanwhile, so the time is not
// limited. tx only reads, with a search path that is safe; CONCURRENTLY cannot be in a transaction.
func makeDelayedIndex(ctx context.Context, tx pgx.Tx, conn *pgx.Conn, c Config) (made bool, err error) {
	var found, invalid, taken bool
	if err := tx.QueryRow(ctx, catalog.DelayedIndexSQL, c.events(), "available_at").Scan(&found); err != nil || found {
		return false, err
	}
	schema, _ := c.eventsName()
	name := pg.Quote(schema) + "." + c.delayedIndex()
	if err := tx.QueryRow(ctx, invalidIndexSQL, name, c.events()).Scan(&invalid, &taken); err != nil {
		return false, err
	}
	// The portal of the last statement keeps its snapshot, for which CONCURRENTLY would wait; the next statement of the simple protocol closes it.
	if _, err := tx.Exec(ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		return false, err
	}
	if invalid {
		if _, err := conn.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+name); err != nil {
			return false, err
		}
	}
	called := " IF NOT EXISTS " + c.delayedIndex()
	if taken {
		called = ""
	}
	_, err = conn.Exec(ctx, "CREATE INDEX CONCURRENTLY"+called+" ON "+c.events()+" (available_at) WHERE available_at IS NOT NULL")
	return err == nil, err
}

// makeFirstDelayedIndex makes the index of delayed events of a buffer that was made just now, if an index of another table has its name.
func makeFirstDelayedIndex(ctx context.Context, tx pgx.Tx, c Config) error {
	var found bool
	if err := tx.QueryRow(ctx, catalog.DelayedIndexSQL, c.events(), "available_at").Scan(&found); err != nil || found {
		return err
	}
	_, err := tx.Exec(ctx, "CREATE INDEX ON "+c.events()+" (available_at) WHERE available_at IS NOT NULL")
	return err
}

var indexDDL = regexp.MustCompile(`(?m)^CREATE INDEX IF NOT EXISTS (outbox_\w+) ON [^;]*;`)

const missingIndexesSQL = `
SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS t(name, n) WHERE to_regclass($2 || name) IS NULL ORDER BY n`

// makeIndexes makes the indexes that the ledger's tables lack, and returns their names.
func makeIndexes(ctx context.Context, tx pgx.Tx, c Config) (made []string, err error) {
	c.Custom = true // the buffer has one of its own
	ddl, err := Schema(c)
	if err != nil {
		return nil, err
	}
	statements := map[string]string{}
	var names []string
	for _, index := range indexDDL.FindAllStringSubmatch(ddl, -1) {
		names, statements[index[1]] = append(names, index[1]), index[0]
	}
	rows, err := tx.Query(ctx, missingIndexesSQL, names, c.ledger(""))
	if err != nil {
		return nil, err
	}
	if made, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, err
	}
	for _, name := range made {
		if _, err := tx.Exec(ctx, statements[name], pgx.QueryExecModeSimpleProtocol); err != nil {
			return nil, fmt.Errorf("making index %s: %w", name, err)
		}
	}
	return made, nil
}
