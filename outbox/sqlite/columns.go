package sqlite

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/pressly/goose/v3"
)

// added is the columns that the first release's tables have not. The tables are
// made with them, by a script that may be run again. Where they are there without,
// only Go can see that: SQLite has no ADD COLUMN IF NOT EXISTS.
var added = []struct{ table, column string }{
	{"outbox_batches", "address TEXT"},
	{"outbox_dead_letters", "hook_group_id TEXT"},
	{"outbox_batches", "lanes TEXT"},
	{"outbox_batches", "members TEXT"},
	{"outbox_batches", "newest_at TEXT"},
	{"outbox_dead_letters", "event_row TEXT"},
}

// isAdded tells whether migrate adds the column.
func isAdded(table, column string) bool {
	return slices.ContainsFunc(added, func(one struct{ table, column string }) bool {
		return one.table == table && one.column == column
	})
}

// The migrations between those that are written in SQL, by version.
var addColumnsNames = map[int64]string{2: "00002_columns", 4: "00004_lanes", 5: "00005_members", 6: "00006_own"}

// addColumns are the migrations that add what is missing, whichever of them it was
// added for. They may be applied again.
func addColumns() (all []*goose.Migration) {
	for version := range addColumnsNames {
		all = append(all, goose.NewGoMigration(version, &goose.GoFunc{RunTx: addMissing}, nil))
	}
	return all
}

func addMissing(ctx context.Context, tx *sql.Tx) error {
	for _, one := range added {
		name, _, _ := strings.Cut(one.column, " ")
		var there bool
		if err := tx.QueryRowContext(ctx, hasColumnSQL, one.table, name).Scan(&there); err != nil {
			return err
		}
		if there {
			continue
		}
		if _, err := tx.ExecContext(ctx, "ALTER TABLE "+quote(one.table)+" ADD COLUMN "+one.column); err != nil {
			return err
		}
	}
	return nil
}

const hasColumnSQL = `
SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2)`
