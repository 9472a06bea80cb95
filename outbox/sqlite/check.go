package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const columnsSQL = `
SELECT name FROM pragma_table_info(?1)`

const autoincrementSQL = `
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND sql LIKE '%autoincrement%')`

// columns of the relay's tables, with what ALTER TABLE would say of them.
var (
	eventColumns = []string{
		"id INTEGER", "topic TEXT", "key TEXT", "payload TEXT", "headers TEXT", "created_at TEXT", "group_id TEXT",
	}
	batchColumns = []string{
		"group_id TEXT", "buffer TEXT", "claim TEXT", "state TEXT", "lease_no INTEGER", "due_at TEXT", "owner TEXT",
		"unfinished_leases INTEGER", "attempts INTEGER", "outages INTEGER", "events INTEGER", "first_id INTEGER", "last_id INTEGER",
		"origins TEXT", "delivered TEXT", "oldest_at TEXT", "claimed_at TEXT", "error TEXT", "address TEXT", "lanes TEXT",
		"members TEXT", "newest_at TEXT",
	}
	deadColumns = []string{
		"pipeline TEXT", "event_id INTEGER", "topic TEXT", "key TEXT", "payload BLOB", "headers TEXT", "created_at TEXT",
		"group_id TEXT", "attempts INTEGER", "error TEXT", "died_at TEXT", "notified_at TEXT", "closed_at TEXT", "hook_group_id TEXT",
		"event_row TEXT",
	}
	rateColumns    = []string{"name TEXT", "next_at TEXT"}
	bufferColumns  = []string{"buffer TEXT", "claim TEXT"}
	archiveColumns = []string{
		"id INTEGER", "topic TEXT", "key TEXT", "payload BLOB", "headers TEXT", "created_at TEXT", "group_id TEXT", "archived_at TEXT",
	}
)

const migrateCommand = "relay migrate -c relay.yaml"

// Check is described by buffertest.Buffer. It lists all that is missing, not
// the first of it.
func (b *Buffer) Check(ctx context.Context) error {
	missing, err := b.missing(ctx)
	if err != nil {
		return b.unusable(err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s: %s", buffer.ErrNotReady, b.file, strings.Join(missing, "; "))
	}
	return nil
}

// touchSQL writes nothing, but only where something could be written.
const touchSQL = `
DELETE FROM outbox_batches WHERE FALSE`

func (b *Buffer) missing(ctx context.Context) (missing []string, err error) {
	err = b.transact(ctx, func(tx transaction) error {
		if missing, err = b.missingTables(ctx, tx, b.own != nil); err != nil {
			return err
		}
		if b.own != nil {
			lacks, err := b.missingOwn(ctx, tx)
			if err != nil {
				return err
			}
			missing = append(missing, lacks...)
		}
		if len(missing) > 0 {
			return nil
		}
		if _, err := tx.exec(ctx, touchSQL); err != nil {
			return err
		}
		if b.own != nil {
			_, err := b.mode(ctx, tx)
			return unlessInUse(err)
		}
		var autoincrement bool
		if err := tx.row(ctx, autoincrementSQL, b.config.Table).Scan(&autoincrement); err != nil {
			return err
		}
		if !autoincrement {
			missing = append(missing, fmt.Sprintf("table %s hands ids out again after a delete, and a sink would take the new event for a duplicate: make it anew with id INTEGER PRIMARY KEY AUTOINCREMENT", quote(b.config.Table)))
		}
		_, err := b.mode(ctx, tx)
		return unlessInUse(err)
	})
	return missing, err
}

// unlessInUse: until the mode can be changed what lives is sent; Claim says why nothing
// is claimed.
func unlessInUse(err error) error {
	if errors.Is(err, errModeInUse) {
		return nil
	}
	return err
}

// missingTables lists what is missing of the relay's tables; own: the buffer is not one
// of them.
func (b *Buffer) missingTables(ctx context.Context, tx transaction, own bool) (missing []string, err error) {
	type wanted struct {
		name    string
		columns []string
	}
	tables := []wanted{
		{"outbox_batches", batchColumns},
		{"outbox_dead_letters", deadColumns},
		{"outbox_buffers", bufferColumns},
	}
	if b.config.SharedRate {
		tables = append(tables, wanted{"outbox_rates", rateColumns})
	}
	if !own {
		tables = append([]wanted{{b.config.Table, eventColumns}}, tables...)
	}
	if b.config.Archive != "" {
		tables = append(tables, wanted{b.config.Archive, archiveColumns})
	}
	for _, table := range tables {
		lacks, err := tx.lacks(ctx, table.name, table.columns)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacks...)
	}
	return missing, nil
}

// complete tells whether there is all that migrate makes; own: the buffer is none of it.
func (b *Buffer) complete(ctx context.Context, own bool) bool {
	if !own {
		return b.Check(ctx) == nil
	}
	whole := false
	err := b.transact(ctx, func(tx transaction) error {
		missing, err := b.missingTables(ctx, tx, own)
		if err == nil && len(missing) == 0 {
			_, err = b.stored(ctx, tx)
			whole = err == nil
		}
		return err
	})
	return err == nil && whole
}

// lacks lists what a table has not.
func (t transaction) lacks(ctx context.Context, table string, columns []string) (lacks []string, err error) {
	rows, err := t.rows(ctx, columnsSQL, table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	has := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		has[name] = true
	}
	if len(has) == 0 {
		return []string{fmt.Sprintf("table %s does not exist: %s", quote(table), migrateCommand)}, rows.Err()
	}
	for _, column := range columns {
		name, _, _ := strings.Cut(column, " ")
		switch {
		case has[name]:
		case isAdded(table, column):
			lacks = append(lacks, fmt.Sprintf("table %s has no column %s: %s", quote(table), name, migrateCommand))
		default:
			lacks = append(lacks, fmt.Sprintf("table %s has no column %s, and migrate leaves a table that is there as it is: ALTER TABLE %s ADD COLUMN %s", quote(table), name, quote(table), column))
		}
	}
	return lacks, rows.Err()
}

// unusable says what is wrong with a file that cannot be opened or written.
func (b *Buffer) unusable(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_CANTOPEN:
		if folder := filepath.Dir(b.file); notThere(folder) {
			return fmt.Errorf("%w: the folder %s does not exist; look at source.url, or make it: mkdir -p '%s'", buffer.ErrNotReady, folder, folder)
		}
		if notThere(b.file) {
			return fmt.Errorf("%w: the file %s does not exist; look at source.url, or make it: %s", buffer.ErrNotReady, b.file, migrateCommand)
		}
		return fmt.Errorf("%w: the file %s cannot be opened; give the relay's user the right to read and write it and its folder: %w", buffer.ErrNotReady, b.file, err)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: the file %s is not a SQLite database; look at source.url", buffer.ErrNotReady, b.file)
	case sqlite3.SQLITE_READONLY:
		return fmt.Errorf("%w: the file %s is read-only; give the relay's user the right to write it and its folder", buffer.ErrNotReady, b.file)
	}
	return err
}

func notThere(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
