package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing/fstest"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

//go:embed schema/*.sql
var migrations embed.FS

// SchemaConfig says which tables Schema and Migrate make.
type SchemaConfig struct {
	// Table is the buffer table, "outbox_events" when empty; it may be
	// "schema.table".
	Table string
	// Schema is where ledger and dead letters live; the table's when empty.
	Schema string
	// Bytes makes payload a column of opaque bytes (bytea) and not of JSON.
	Bytes bool
	// Archive is the table for delivered events, which only Migrate makes; "" for
	// none. Its name is read as Table is.
	Archive string
	// Notify installs the trigger that notifies the relay of inserts, which only Migrate
	// makes. It is never dropped.
	Notify bool
	// Own: the buffer table is the user's own, which is not made and not touched; Schema
	// is made where it is named and not there.
	Own bool
}

// Schema returns the DDL for c, ready for psql. It can be run again without
// harm and never drops anything.
func Schema(c SchemaConfig) (string, error) {
	rendered, err := render(c, "")
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = fs.WalkDir(rendered, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(rendered, path)
		if err != nil {
			return err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		for line := range strings.Lines(up) {
			if !strings.HasPrefix(line, "-- +goose") {
				out.WriteString(line)
			}
		}
		return nil
	})
	return strings.TrimLeft(out.String(), "\n"), err
}

// own is the schema of the relay's own tables; "" is found by the search path.
func (c SchemaConfig) own() string {
	schema, _ := pg.SplitTable(c.Table)
	return cmp.Or(c.Schema, schema)
}

// names are what the migrations leave open.
func (c SchemaConfig) names() map[string]string {
	schema, table := pg.SplitTable(c.Table)
	own := c.own()
	payload, deadPayload, yes := "jsonb", "json", ""
	if c.Bytes {
		payload, deadPayload = "bytea", "bytea"
	}
	if c.Own {
		yes = "yes"
	}
	return map[string]string{
		"Events":      pg.Ident(schema, table),
		"Payload":     payload,
		"DeadPayload": deadPayload,
		"Batches":     pg.Ident(own, "outbox_batches"),
		"DeadLetters": pg.Ident(own, "outbox_dead_letters"),
		// An index is where its table is, and has no schema in CREATE INDEX.
		"BatchesDue":     pg.Ident("", "outbox_batches_due"),
		"BatchesLast":    pg.Ident("", "outbox_batches_last"),
		"DeadOpen":       pg.Ident("", "outbox_dead_letters_open"),
		"DeadUnnotified": pg.Ident("", "outbox_dead_letters_unnotified"),
		"DeadNotifying":  pg.Ident("", "outbox_dead_letters_notifying"),
		"Buffers":        pg.Ident(own, "outbox_buffers"),
		"Numbers":        pg.Ident(own, "outbox_numbers"),
		"Rates":          pg.Ident(own, "outbox_rates"),
		"Truncated":      pg.Ident(own, "outbox_truncated"),
		// Where the ledger is, for a trigger; nothing: where the buffer is.
		"LedgerSchema": pg.Literal(own),
		// Anything: the buffer is the user's.
		"Own": yes,
	}
}

// tables are the names of those that there must be.
func (c SchemaConfig) tables() []string {
	own := c.names()
	all := []string{own["Batches"], own["DeadLetters"], own["Buffers"], own["Numbers"], own["Rates"]}
	if c.Own {
		return all
	}
	return append(all, own["Events"])
}

// render fills the names into the migrations, each of which begins with first.
func render(c SchemaConfig, first string) (fs.FS, error) {
	names := c.names()
	out := fstest.MapFS{}
	entries, err := migrations.ReadDir("schema")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		t, err := template.ParseFS(migrations, "schema/"+entry.Name())
		if err != nil {
			return nil, err
		}
		var text strings.Builder
		if err := t.Execute(&text, names); err != nil {
			return nil, err
		}
		const begin = "-- +goose Up\n"
		out[entry.Name()] = &fstest.MapFile{Data: []byte(strings.Replace(text.String(), begin, begin+first, 1))}
	}
	return out, nil
}

// Migrate creates the tables or brings them up to date, and returns the names
// of the migrations that were applied, none when there was nothing to do. Two
// at once wait for each other. Nothing is ever dropped. Relays go on beside it: while
// another transaction holds a table that has to be changed, it tries for two minutes,
// a moment each time; then the error says who holds it. errors.Is finds
// buffer.ErrNotReady when the role may not do it, and the error names the GRANT.
func Migrate(ctx context.Context, url string, c SchemaConfig) ([]string, error) {
	return migrate(ctx, url, c, ddlPatience)
}

func migrate(ctx context.Context, url string, c SchemaConfig, patience time.Duration) ([]string, error) {
	config, err := pg.ConnConfig(url)
	if err != nil {
		return nil, err
	}
	// A transaction-level lock, held by a connection of its own, also works
	// through a transaction pooler, where a session's lock would stay behind.
	guard, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, pg.ConnectError(config, err)
	}
	defer guard.Close(context.WithoutCancel(ctx))
	tx, err := guard.Begin(ctx)
	if err != nil {
		return nil, pg.ConnectError(config, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written, or all of it committed
	if _, err := tx.Exec(ctx, guardSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, pg.ConnectError(config, err)
	}

	if c, err = c.beside(ctx, tx); err != nil {
		return nil, pg.ConnectError(config, err)
	}
	var applied []string
	if err = refuseUnreleased(ctx, tx, c); err == nil {
		applied, err = up(ctx, config, c, patience)
	}
	if err == nil {
		applied, err = complete(ctx, tx, c, applied, patience)
	}
	err = held(ctx, tx, c, err)
	if err == nil {
		err = tx.Commit(ctx)
	}
	if pg.Code(err) == pg.CodeNoPrivilege {
		err = denied(ctx, tx, c, err)
	}
	if err != nil {
		return nil, fmt.Errorf("migrating %s: %w", pg.Ident(pg.SplitTable(c.Table)), pg.ConnectError(config, err))
	}
	return applied, nil
}

// The guard may be idle for as long as a migration has to wait.
const guardSQL = `
SET LOCAL idle_in_transaction_session_timeout = 0;
SELECT pg_advisory_xact_lock(hashtext('relay migrate'))`

// up applies what is to be applied, and returns the names.
func up(ctx context.Context, config *pgx.ConnConfig, c SchemaConfig, patience time.Duration) (applied []string, err error) {
	rendered, err := render(c, giveWaySQL)
	if err != nil {
		return nil, err
	}
	store, err := newVersions(c)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	if applied, err = makeSchema(ctx, db, c); err != nil {
		return nil, err
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, rendered, goose.WithStore(store), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, err
	}
	err = giveWay(ctx, patience, func() error {
		results, err := provider.Up(ctx)
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			results = partial.Applied
		}
		for _, r := range results {
			applied = append(applied, r.Source.Path)
		}
		return err
	})
	return applied, err
}

// complete makes what is missing although nothing was to be applied, and the archive
// and the trigger, which may be asked for only later than the others. It adds to applied.
func complete(ctx context.Context, tx pgx.Tx, c SchemaConfig, applied []string, patience time.Duration) ([]string, error) {
	var archived, notifies bool
	err := giveWay(ctx, patience, func() error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) { // a savepoint
			if _, err := tx.Exec(ctx, giveWaySQL); err != nil {
				return err
			}
			if len(applied) == 0 {
				if err := restore(ctx, tx, c); err != nil {
					return err
				}
			}
			if archived, err = makeArchive(ctx, tx, c); err == nil {
				notifies, err = installTrigger(ctx, tx, c)
			}
			return err
		})
	})
	if archived {
		applied = append(applied, "archive "+c.Archive)
	}
	if notifies {
		applied = append(applied, "trigger "+listen.TriggerName)
	}
	return applied, err
}

// installTrigger makes the trigger that notifies, unless it is there. A disabled one stays so.
func installTrigger(ctx context.Context, tx pgx.Tx, c SchemaConfig) (installed bool, err error) {
	if !c.Notify || c.Own {
		return false, nil
	}
	return listen.InstallTrigger(ctx, tx, c.names()["Events"], pg.Ident(c.own(), listen.TriggerName))
}

// deniedSQL lists the GRANTs that the role has to be given to create tables.
const deniedSQL = `
SELECT current_user::text, coalesce(string_agg(format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', nspname, current_user), '; ' ORDER BY nspname), '')
FROM pg_namespace
WHERE nspname IN (coalesce(nullif($1, ''), current_schema()), coalesce(nullif($2, ''), current_schema()), $3)
  AND NOT (has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE'))`

// denied says what a role needs that may not migrate. It ends tx.
func denied(ctx context.Context, tx pgx.Tx, c SchemaConfig, err error) error {
	schema, _ := pg.SplitTable(c.Table)
	if c.Own {
		schema = c.own()
	}
	var role, grants string
	conn := tx.Conn()
	if rollbackErr := tx.Rollback(ctx); rollbackErr != nil {
		return errors.Join(err, rollbackErr)
	}
	archive, _ := pg.SplitTable(c.Archive)
	if askErr := conn.QueryRow(ctx, deniedSQL, schema, c.own(), archive).Scan(&role, &grants); askErr != nil {
		return errors.Join(err, askErr)
	}
	if missing, askErr := schemaIsMissing(ctx, conn, c); askErr != nil {
		return errors.Join(err, askErr)
	} else if missing {
		grants = "CREATE SCHEMA " + pg.Quote(c.Schema) + " AUTHORIZATION " + pg.Quote(role)
	}
	if grants == "" {
		grants = "run relay migrate as the role that owns the tables"
	}
	return fmt.Errorf("%w: role %s may not do this: %s: %w", buffer.ErrNotReady, role, grants, err)
}

// restore makes a table again that was lost, whatever goose has noted: every
// statement of ours says IF NOT EXISTS.
func restore(ctx context.Context, tx pgx.Tx, c SchemaConfig) error {
	var complete, events bool
	names := c.names()
	err := tx.QueryRow(ctx, "SELECT bool_and(to_regclass(name) IS NOT NULL), to_regclass($2) IS NOT NULL FROM unnest($1::text[]) name",
		c.tables(), names["Events"]).Scan(&complete, &events)
	if err != nil || complete {
		return err
	}
	ddl, err := Schema(c)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, ddl, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("making lost tables again: %w", err)
	}
	if !events && !c.Own { // what batches live had is gone, and their ids will be those of others
		_, err = tx.Exec(ctx, fmt.Sprintf(forgetBatchesSQL, names["Batches"]), names["Events"])
	}
	return err
}

const forgetBatchesSQL = `
DELETE FROM %s WHERE buffer = (
  SELECT nspname || '.' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass($1))`
