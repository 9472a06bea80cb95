package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing/fstest"
	"text/template"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed schema/*.sql
var migrations embed.FS

// SchemaConfig says which tables Schema and Migrate make.
type SchemaConfig struct {
	// Table is the buffer table, "outbox_events" when empty.
	Table string
	// Bytes makes payload a column of opaque bytes and not of JSON.
	Bytes bool
	// Archive is the table for delivered events, which only Migrate makes; "" for
	// none. Its name is read as Table is.
	Archive string
	// Own: the buffer table is the user's own; it is not made, and not touched.
	Own bool
}

func (c SchemaConfig) withDefaults() SchemaConfig {
	if c.Table == "" {
		c.Table = defaultTable
	}
	return c
}

// Write-ahead logging lets readers and the one writer work at the same time.
// The file remembers it; inside a transaction it cannot be set.
const walSQL = `PRAGMA journal_mode = WAL`

// Schema returns the DDL for c, ready for the sqlite3 shell. It can be run again
// without harm and never drops anything. Tables that an earlier release made need
// Migrate: SQL alone cannot tell whether a column is there.
func Schema(c SchemaConfig) (string, error) {
	rendered, err := render(c.withDefaults())
	if err != nil {
		return "", err
	}
	names, err := fs.Glob(rendered, "*.sql")
	if err != nil {
		return "", err
	}
	out := walSQL + ";\n"
	for _, name := range names {
		text, err := fs.ReadFile(rendered, name)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "-- +goose") {
				out += line
			}
		}
	}
	return out, nil
}

// render fills the names into the migrations.
func render(c SchemaConfig) (fs.FS, error) {
	if err := validTables(c.Table, c.Archive); err != nil {
		return nil, err
	}
	payload := "TEXT NOT NULL CHECK (typeof(payload) = 'text' AND json_valid(payload))"
	if c.Bytes {
		payload = "BLOB NOT NULL CHECK (typeof(payload) = 'blob')"
	}
	values := map[string]any{
		"Events":  quote(c.Table),
		"Buffer":  "'" + strings.ReplaceAll(c.Table, "'", "''") + "'",
		"Payload": payload,
		"Own":     c.Own,
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

// Migrate creates the file and the tables or brings them up to date, and returns
// the names of the migrations that were applied, none when there was nothing to
// do. Several at once all succeed. Nothing is ever dropped, and a table of the
// relay's that somebody dropped is made anew.
func Migrate(ctx context.Context, url string, c SchemaConfig) (applied []string, err error) {
	c = c.withDefaults()
	file, err := fileOf(url)
	if err != nil {
		return nil, err
	}
	rendered, err := render(c)
	if err != nil {
		return nil, err
	}
	db, err := open(file, "rwc")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	b := &Buffer{config: Config{Table: c.Table, Archive: c.Archive}, file: file, db: db, names: names(c.Table, c.Archive)}
	if err := writeAhead(ctx, db); err != nil {
		return nil, b.unusable(err)
	}
	store, err := database.NewStore(goose.DialectSQLite3, quote(c.Table+"_migrations"))
	if err != nil {
		return nil, err
	}
	if applied, err = up(ctx, db, rendered, goose.WithStore(once{store})); err != nil {
		return nil, fmt.Errorf("migrating %s: %w", file, err)
	}
	made, err := b.makeArchive(ctx)
	if err != nil {
		return nil, fmt.Errorf("making the archive %s in %s: %w", c.Archive, file, err)
	}
	if len(applied) == 0 && (!b.complete(ctx, c.Own) || b.lacksRates(ctx)) {
		// The version says that everything is there, and it is not.
		if applied, err = up(ctx, db, rendered, goose.WithStore(store), goose.WithDisableVersioning(true)); err != nil {
			return nil, fmt.Errorf("migrating %s again: %w", file, err)
		}
	}
	if made {
		applied = append(applied, c.Archive)
	}
	return applied, nil
}

// writeAhead switches to write-ahead logging. Where another process does the same to
// a new file, SQLite says at once that the file is locked, without the wait of
// busy_timeout: who waits there could wait for each other
// (https://sqlite.org/c3ref/busy_handler.html).
func writeAhead(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := db.ExecContext(ctx, walSQL)
		if code(err) != sqlite3.SQLITE_BUSY {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

// busyTimeout is how long a connection waits for another process's lock.
const busyTimeout = 5 * time.Second

// up applies what is to be applied, and begins again when another process came
// first.
func up(ctx context.Context, db *sql.DB, migrations fs.FS, options ...goose.ProviderOption) (applied []string, err error) {
	for {
		provider, err := goose.NewProvider(goose.DialectCustom, db, migrations, append(options,
			goose.WithDisableGlobalRegistry(true), goose.WithGoMigrations(addColumns()...))...)
		if err != nil {
			return nil, err
		}
		results, err := provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, nameOf(r.Source))
		}
		if !errors.Is(err, errAppliedBefore) {
			return applied, err
		}
	}
}

func nameOf(s *goose.Source) string {
	if s.Type == goose.TypeGo {
		return addColumnsNames[s.Version]
	}
	return path.Base(s.Path)
}

// once lets a migration be applied by one process only. It is asked inside the
// migration's transaction, which no other writer can be in, and its error takes
// back what the migration did.
type once struct{ database.Store }

var errAppliedBefore = errors.New("migration was applied by another process")

func (o once) Insert(ctx context.Context, db database.DBTxConn, r database.InsertRequest) error {
	switch _, err := o.GetMigration(ctx, db, r.Version); {
	case err == nil:
		return errAppliedBefore
	case !errors.Is(err, database.ErrVersionNotFound):
		return err
	}
	return o.Store.Insert(ctx, db, r)
}
