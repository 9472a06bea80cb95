package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing/fstest"
	"text/template"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

//go:embed schema/*.sql
var migrations embed.FS

// SchemaConfig says which tables Schema and Migrate make.
type SchemaConfig struct {
	// Table is the buffer table, "outbox_events" when empty.
	Table string
	// Bytes makes payload a column of opaque bytes and not of JSON.
	Bytes bool
	// Archive is the table for delivered events, which only Migrate makes; "" for none.
	Archive string
	// Custom is set for a custom table, which is neither made nor changed.
	Custom bool
}

func (c SchemaConfig) withDefaults() SchemaConfig {
	c.Table = cmp.Or(c.Table, defaultTable)
	return c
}

// Write-ahead logging lets readers and the one writer work at the same time. The file remembers it; it
// cannot be set inside a transaction.
const walSQL = `PRAGMA journal_mode = WAL`

// Schema returns the DDL for c, ready for the sqlite3 shell. It can be run again without harm and never
// drops anything.
func Schema(c SchemaConfig) (string, error) {
	rendered, err := render(c.withDefaults())
	if err != nil {
		return "", err
	}
	out := walSQL + ";\n"
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		for line := range strings.Lines(string(rendered[name].Data)) {
			if !strings.HasPrefix(line, "-- +goose") {
				out += line
			}
		}
	}
	return out, nil
}

// render fills the names into the migrations.
func render(c SchemaConfig) (fstest.MapFS, error) {
	if err := validTables(c.Table, c.Archive); err != nil {
		return nil, err
	}
	payload := "TEXT NOT NULL CHECK (typeof(payload) = 'text' AND json_valid(payload))"
	if c.Bytes {
		payload = "BLOB NOT NULL CHECK (typeof(payload) = 'blob')"
	}
	values := map[string]any{
		"Events":  db.Quote(c.Table),
		"Buffer":  db.Text(c.Table),
		"Payload": payload,
		"Custom":  c.Custom,
		"Delayed": delayedColumn, "DelayedIndex": db.Quote(delayedIndex(c.Table)),
	}
	templates, err := template.ParseFS(migrations, "schema/*.sql")
	if err != nil {
		return nil, err
	}
	rendered := fstest.MapFS{}
	for _, t := range templates.Templates() {
		var text strings.Builder
		if err := t.Execute(&text, values); err != nil {
			return nil, err
		}
		rendered[t.Name()] = &fstest.MapFile{Data: []byte(text.String())}
	}
	return rendered, nil
}

// Migrate creates the file and the tables or brings them up to date, and returns the names of the
// migrations that were applied. Several at once all succeed. Nothing is ever dropped, and a table of
// the relay's that was dropped by hand is made again.
func Migrate(ctx context.Context, url string, c SchemaConfig) (applied []string, err error) {
	c = c.withDefaults()
	file, err := db.File(url)
	if err != nil {
		return nil, err
	}
	rendered, err := render(c)
	if err != nil {
		return nil, err
	}
	conn, err := db.Open(file, "rwc")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	b := newBuffer(Config{Table: c.Table, Archive: c.Archive}, file)
	b.db = conn
	if err := writeAhead(ctx, conn); err != nil {
		return nil, b.unusable(err)
	}
	added, err := b.addColumns(ctx, c.Custom)
	if err != nil {
		return nil, fmt.Errorf("adding columns in %s: %w", file, err)
	}
	if err := b.refuseObsolete(ctx, len(rendered)); err != nil {
		return nil, err
	}
	exists, err := b.refuseNotEvents(ctx, c.Custom)
	if err != nil {
		return nil, err
	}
	store, err := database.NewStore(goose.DialectSQLite3, db.Quote(b.versionTable()))
	if err != nil {
		return nil, err
	}
	if applied, err = up(ctx, conn, rendered, goose.WithStore(once{store})); err != nil {
		return nil, fmt.Errorf("migrating %s: %w", file, err)
	}
	archived, err := b.makeArchive(ctx)
	if err != nil {
		return nil, fmt.Errorf("making the archive %s in %s: %w", c.Archive, file, err)
	}
	if len(applied) == 0 && !b.complete(ctx, c.Custom) {
		// The version says that everything is there, but it is not.
		if applied, err = up(ctx, conn, rendered, goose.WithStore(store), goose.WithDisableVersioning(true)); err != nil {
			return nil, fmt.Errorf("migrating %s again: %w", file, err)
		}
	}
	if !c.Custom {
		if err := b.addDelayedIndex(ctx); err != nil {
			return nil, fmt.Errorf("adding an index in %s: %w", file, err)
		}
	}
	applied = append(applied, added...)
	if archived {
		applied = append(applied, c.Archive)
	}
	if !exists && !c.Custom {
		applied = append(applied, "table "+db.Quote(c.Table))
	}
	return applied, nil
}

// The indexes of a column that is added.
const (
	seqIndexSQL = `
CREATE INDEX IF NOT EXISTS outbox_batches_seq ON outbox_batches (buffer, sink, seq, first_id) WHERE seq IS NOT NULL`

	lastSeqIndexSQL = `
CREATE INDEX IF NOT EXISTS outbox_batches_last_seq ON outbox_batches (buffer, seq) WHERE seq IS NOT NULL`
)

const lacksColumnSQL = `
SELECT count(*) > 0 AND max(name IN (?2, 'starts', 'told_at')) = 0 FROM pragma_table_info(?1)`

// later are the columns that tables of an earlier version may lack: table, name and type.
var later = [][3]string{
	{"outbox_dead_letters", "closed_reason", "TEXT"},
	{"outbox_dead_letters", "sink", "TEXT NOT NULL DEFAULT 'default'"},
	{"outbox_batches", "sink", "TEXT NOT NULL DEFAULT 'default'"},
	{"outbox_batches", "claim_id", "TEXT"},
	{"outbox_buffers", "routed", "INTEGER NOT NULL DEFAULT 0"},
	{"outbox_buffers", "routes_no", "INTEGER NOT NULL DEFAULT 0"},
	{"outbox_sinks", "hook", "INTEGER NOT NULL DEFAULT 0"},
	{"outbox_batches", "routes_no", "INTEGER"},
	{"outbox_batches", "seq", "INTEGER"},
	{"outbox_sinks", "routed", "TEXT NOT NULL DEFAULT '[0]'"},
	{"outbox_sinks", "registered_at", "TEXT"},
	{"outbox_buffers", "paused_at", "TEXT"},
	{"outbox_buffers", "paused_by", "TEXT"},
	{"outbox_buffers", "paused_reason", "TEXT"},
	{"outbox_buffers", "retry_request", "TEXT"},
	{"outbox_buffers", "retry_at", "TEXT"},
	{"outbox_buffers", "archive", "TEXT"},
	{"outbox_relays", "answers", "TEXT NOT NULL DEFAULT ''"},
	{"outbox_relays", "answers_before", "TEXT NOT NULL DEFAULT ''"},
	{"outbox_relays", "answered_at", "TEXT"},
	{"outbox_relays", "probes", "INTEGER NOT NULL DEFAULT 1"},
	{"outbox_sinks", "paused_at", "TEXT"},
	{"outbox_sinks", "paused_by", "TEXT"},
	{"outbox_sinks", "paused_reason", "TEXT"},
	{"outbox_sinks", "match_before", "TEXT"},
	{"outbox_sinks", "match_at", "TEXT"},
	{"outbox_batches", "history", "TEXT"},
	{"outbox_dead_letters", "history", "TEXT"},
}

// added reports whether Migrate adds a column to a table that lacks it.
func (b *Buffer) added(table, column string) bool {
	return table == b.config.Archive && column == "routes_no" || table == b.config.Table && column == "available_at" ||
		slices.ContainsFunc(later, func(c [3]string) bool { return c[0] == table && c[1] == column })
}

// addColumns adds the columns that the tables of an earlier version lack. SQLite has no ADD COLUMN IF NOT
// EXISTS, so these are none of the numbered migrations, which can be applied again. An obsolete table is left alone. A relay that does not
// know the columns works as before.
func (b *Buffer) addColumns(ctx context.Context, custom bool) (added []string, err error) {
	err = b.begin(ctx, b.db, nil, func(tx transaction) error {
		add := slices.Clone(later)
		if b.config.Archive != "" {
			add = append(add, [3]string{b.config.Archive, "routes_no", "INTEGER"})
		}
		if !custom {
			if t, err := b.table(ctx, tx); err != nil || t.Lacks != nil { // then the application owns it
				return err
			}
			add = append(add, [3]string{b.config.Table, "available_at", delayedColumn})
		}
		for _, add := range add {
			var lacks bool
			if err := tx.row(ctx, lacksColumnSQL, add[0], add[1]).Scan(&lacks); err != nil {
				return err
			}
			if !lacks {
				continue
			}
			if _, err := tx.tx.ExecContext(ctx, "ALTER TABLE "+db.Quote(add[0])+" ADD COLUMN "+add[1]+" "+add[2]); err != nil {
				return err
			}
			added = append(added, add[0]+"."+add[1])
			var indexes []string
			switch add[1] {
			case "seq":
				indexes = []string{seqIndexSQL, lastSeqIndexSQL}
			case "available_at":
				indexes = []string{delayedIndexSQL}
			}
			for _, index := range indexes {
				if _, err := tx.exec(ctx, index); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return added, nil
}

func (b *Buffer) versionTable() string { return b.config.Table + "_migrations" }

// refuseObsolete returns an error if an unreleased version made a table, if a table lacks a column, or if the
// version table records a migration beyond the latest.
func (b *Buffer) refuseObsolete(ctx context.Context, latest int) error {
	return b.begin(ctx, b.db, readOnly, func(tx transaction) error {
		var missing []buffer.Finding
		for _, r := range []requirement{batchesTable, deadLettersTable, buffersTable} {
			var exists bool
			if err := tx.row(ctx, tableExistsSQL, r.table).Scan(&exists); err != nil {
				return err
			}
			if !exists {
				continue
			}
			lacks, err := b.lacks(ctx, tx, r)
			if err != nil {
				return err
			}
			missing = append(missing, lacks...)
		}
		var recorded bool
		if err := tx.row(ctx, tableExistsSQL, b.versionTable()).Scan(&recorded); err != nil || len(missing) > 0 || !recorded {
			return errors.Join(err, notReady(b, missing))
		}
		var version int
		table := db.Quote(b.versionTable())
		if err := tx.tx.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM "+table).Scan(&version); err != nil || version <= latest {
			return err
		}
		return notReady(b, []buffer.Finding{problem(fmt.Sprintf("table %s records version %d; expected %d", table, version, latest),
			"run relay migrate of the newer relay; if an unreleased version made the tables, "+b.dropObsolete())})
	})
}

// refuseNotEvents returns a buffer.ErrNotReady if a table exists that is to be the relay's own and lacks columns of it: the application
// owns it.
func (b *Buffer) refuseNotEvents(ctx context.Context, custom bool) (exists bool, err error) {
	err = b.begin(ctx, b.db, readOnly, func(tx transaction) error {
		if err := tx.row(ctx, tableExistsSQL, b.config.Table).Scan(&exists); err != nil || !exists || custom {
			return err
		}
		t, err := b.table(ctx, tx)
		if err != nil || t.Lacks == nil {
			return err
		}
		f := t.Finding()
		f.Fix += ". No table was changed"
		return notReady(b, []buffer.Finding{f})
	})
	return exists, err
}

// complete reports whether everything exists that the migrations make.
func (b *Buffer) complete(ctx context.Context, custom bool) bool {
	complete := false
	err := b.begin(ctx, b.db, readOnly, func(tx transaction) error {
		missing, err := b.missingTables(ctx, tx, true)
		if err != nil || len(missing) > 0 {
			return err
		}
		if missing, err = b.lacks(ctx, tx, versionsTable); err != nil || len(missing) > 0 {
			return err
		}
		if !custom {
			if missing, err = b.upkeep.missing(ctx, tx); err != nil || len(missing) > 0 {
				return err
			}
		}
		_, _, err = b.storedMode(ctx, tx)
		complete = err == nil
		return err
	})
	return err == nil && complete
}

const archiveTableSQL = `
CREATE TABLE IF NOT EXISTS outbox_archive (
    id          INTEGER NOT NULL,
    topic       TEXT NOT NULL,
    key         TEXT,
    payload     BLOB NOT NULL,
    headers     TEXT,
    created_at  TEXT NOT NULL,
    group_id    TEXT NOT NULL,
    archived_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    routes_no   INTEGER,
    PRIMARY KEY (id, group_id)
)`

// For relay replay.
const archiveIndexSQL = `
CREATE INDEX IF NOT EXISTS archived_at_index ON outbox_archive (archived_at)`

const tableExistsSQL = `
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE)`

// makeArchive makes the archive table if one is configured and does not exist. It may be configured long
// after the buffer was made, so it is not one of the numbered migrations.
func (b *Buffer) makeArchive(ctx context.Context) (made bool, err error) {
	if b.config.Archive == "" {
		return false, nil
	}
	err = b.begin(ctx, b.db, nil, func(tx transaction) error {
		var exists bool
		if err := tx.row(ctx, tableExistsSQL, b.config.Archive).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			made = true
			if _, err := tx.exec(ctx, archiveTableSQL); err != nil {
				return err
			}
		}
		_, err := tx.exec(ctx, archiveIndexSQL)
		return err
	})
	return made && err == nil, err
}

// writeAhead switches to write-ahead logging. If another process does the same to a new file, SQLite
// reports at once that the file is locked and does not wait for busy_timeout: two that wait there
// could wait for each other (https://sqlite.org/c3ref/busy_handler.html).
func writeAhead(ctx context.Context, conn *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, db.BusyTimeout)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := conn.ExecContext(ctx, walSQL)
		if db.Code(err) != sqlite3.SQLITE_BUSY {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

// up applies what is pending, and starts again if another process was faster.
func up(ctx context.Context, conn *sql.DB, migrations fs.FS, options ...goose.ProviderOption) (applied []string, err error) {
	for {
		provider, err := goose.NewProvider(goose.DialectCustom, conn, migrations, append(options, goose.WithDisableGlobalRegistry(true))...)
		if err != nil {
			return nil, err
		}
		results, err := provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, path.Base(r.Source.Path))
		}
		if !errors.Is(err, errAppliedBefore) {
			return applied, err
		}
	}
}

// once lets a migration be applied by one process only. It is called inside the migration's
// transaction, which no other writer can be in, and its error rolls the migration back.
type once struct{ database.Store }

var errAppliedBefore = errors.New("migration was applied by another process")

func (o once) Insert(ctx context.Context, conn database.DBTxConn, r database.InsertRequest) error {
	switch _, err := o.GetMigration(ctx, conn, r.Version); {
	case err == nil:
		return errAppliedBefore
	case !errors.Is(err, database.ErrVersionNotFound):
		return err
	}
	return o.Store.Insert(ctx, conn, r)
}
