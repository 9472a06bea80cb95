package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"github.com/pressly/goose/v3"
)

// added is the columns that the first release's tables have not. The tables are
// made with them, by a script that may be run again. Where they are there without,
// only Go can see that: SQLite has no ADD COLUMN IF NOT EXISTS.
var added = map[string]string{
	"outbox_batches":      "address TEXT",
	"outbox_dead_letters": "hook_group_id TEXT",
}

const addColumnsName = "00002_columns"

// addColumns is a migration between those that are written in SQL. It may be
// applied again.
func addColumns() *goose.Migration {
	return goose.NewGoMigration(2, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		for table, column := range added {
			name, _, _ := strings.Cut(column, " ")
			var there bool
			if err := tx.QueryRowContext(ctx, hasColumnSQL, table, name).Scan(&there); err != nil {
				return err
			}
			if there {
				continue
			}
			if _, err := tx.ExecContext(ctx, "ALTER TABLE "+quote(table)+" ADD COLUMN "+column); err != nil {
				return err
			}
		}
		return nil
	}}, nil)
}

const hasColumnSQL = `
SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2)`
