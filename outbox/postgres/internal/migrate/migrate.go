package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/listen"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Migrate is postgres.Migrate.
func Migrate(ctx context.Context, url string, c Config) ([]string, error) {
	return migrate(ctx, url, c, lockTimeout)
}

func migrate(ctx context.Context, url string, c Config, timeout time.Duration) (applied []string, err error) {
	config, err := pg.ConnConfig(url)
	if err != nil {
		return nil, err
	}
	// A transaction-level lock, held by a connection of its own, also works through a
	// transaction pooler, where a session's lock would stay behind.
	guard, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, pg.ConnectError(config, err)
	}
	defer guard.Close(context.WithoutCancel(ctx))
	if c.notifies() {
		pooled, err := pg.ThroughPooler(ctx, guard)
		if err != nil {
			return nil, pg.ConnectError(config, err)
		}
		c.Notify = !pooled
	}
	// It must see what goose commits on connections of its own, whatever isolation level the database has by default.
	tx, err := guard.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, pg.ConnectError(config, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written, or all of it committed
	if c, err = c.resolve(ctx, tx); err != nil {
		return nil, pg.ConnectError(config, err)
	}
	if _, err := tx.Exec(ctx, guardSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, pg.ConnectError(config, err)
	}
	exists := false
	if _, name := c.eventsName(); name == "outbox_events" { // another role may have planted it
		err = refuseForeign(ctx, tx, c)
	}
	if err == nil { // before the owner of a table of the application
		exists, err = refuseNotEvents(ctx, tx, c)
	}
	if err == nil {
		err = refuseForeign(ctx, tx, c)
	}
	var lacks []lack
	if err == nil {
		lacks, err = refuseObsolete(ctx, tx, c)
	}
	switch {
	case err != nil:
	case exists:
		err = refuseOther(ctx, tx, c)
	case !c.Custom:
		err = refuseRenamed(ctx, tx, c)
	}
	var added []string
	if err == nil { // before migrations that name the columns
		added, err = addLacking(ctx, tx, config, c, lacks, exists && !c.Custom, timeout)
	}
	if err == nil {
		applied, err = up(ctx, tx, config, c, timeout)
	}
	if err == nil {
		applied, err = complete(ctx, tx, c, applied, timeout)
		applied = append(applied, added...)
	}
	if err == nil { // what was planted meanwhile
		err = refuseForeign(ctx, tx, c)
	}
	if err == nil && !exists && !c.Custom {
		err = makeFirstDelayedIndex(ctx, tx, c)
	}
	if err == nil && !exists && c.Stamped && !c.Custom {
		_, err = tx.Exec(ctx, "ALTER TABLE "+c.events()+" SET (fillfactor = 50)")
	}
	if err == nil && !exists {
		applied, err = nameTable(ctx, tx, c, applied)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	switch {
	case err == nil:
		return applied, nil
	case isLockConflict(err):
		err = nameLockHolders(ctx, tx, c, err)
	case pg.Code(err) == pg.CodeNoPrivilege:
		err = nameGrants(ctx, tx, c, err)
	}
	return nil, fmt.Errorf("migrating %s: %w", pg.Ident(pg.SplitTable(c.Table)), pg.ConnectError(config, err))
}

// nameTable appends to applied the relay's own table, which was made, with a hint if its name may be a mistake.
func nameTable(ctx context.Context, tx pgx.Tx, c Config, applied []string) ([]string, error) {
	if c.Custom {
		return applied, nil
	}
	var made string
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1)::text", c.events()).Scan(&made); err != nil {
		return nil, err
	}
	schema, table := c.eventsName()
	near, err := catalog.SimilarTx(ctx, tx, schema, table)
	if near != "" {
		made += " (table " + near + " exists; if you meant that one, correct source.table and drop the new one)"
	}
	return append(applied, "table "+made), err
}

// The guard may be idle as long as a migration has to wait.
const guardSQL = `
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL idle_in_transaction_session_timeout = 0;
SELECT pg_advisory_xact_lock(hashtext('relay migrate'))`

// firstOfPathSQL runs with the session's own search path: see pg.SearchPath.
const firstOfPathSQL = `
SELECT coalesce(pg_catalog.current_schema(), '')::pg_catalog.text`

// resolve finds the schema of a table that is named without one: any of the search path's where the table exists, otherwise
// its first, where CREATE TABLE would make it. All statements after that run with another search path.
func (c Config) resolve(ctx context.Context, tx pgx.Tx) (Config, error) {
	schema, table := pg.SplitTable(c.Table)
	if err := c.refuseMissing(ctx, tx); err != nil || schema != "" {
		return c, err
	}
	var err error
	if c.onPath, err = catalog.SchemaOnPathTx(ctx, tx, table); err == nil && c.onPath == "" {
		err = tx.QueryRow(ctx, firstOfPathSQL).Scan(&c.onPath)
	}
	if err == nil && c.onPath == "" {
		err = notready.New("", []buffer.Finding{{
			Level: buffer.LevelError, Subject: "tables", Text: "no schema of the search path exists, in which table " + pg.Quote(table) + " could be",
			Fix: "name one in the configuration: source.table: public." + table,
		}})
	}
	return c, err
}

// refuseMissing returns a buffer.ErrNotReady if a schema is named, and does not exist. That of a custom table's ledger is made.
func (c Config) refuseMissing(ctx context.Context, tx pgx.Tx) error {
	var missing catalog.Findings
	table, _ := pg.SplitTable(c.Table)
	archive, _ := pg.SplitTable(c.Archive)
	for _, schema := range []string{table, c.Schema, archive} {
		var lacks bool
		if schema == "" || c.Custom && schema == c.Schema {
			continue
		}
		if err := tx.QueryRow(ctx, schemaMissingSQL, schema).Scan(&lacks); err != nil {
			return err
		}
		if lacks {
			missing.AddNoSchema(schema)
		}
	}
	return missing.Err()
}

const schemaMissingSQL = `
SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)`

// schemaMissing reports whether the schema that is named for a custom table's ledger must be
// made. CREATE SCHEMA IF NOT EXISTS needs a privilege even if the schema exists.
func (c Config) schemaMissing(ctx context.Context, conn *pgx.Conn) (missing bool, err error) {
	if c.Custom && c.Schema != "" {
		err = conn.QueryRow(ctx, schemaMissingSQL, c.Schema).Scan(&missing)
	}
	return missing, err
}

// up makes a missing schema, applies the migrations that are due, and returns their names.
func up(ctx context.Context, tx pgx.Tx, config *pgx.ConnConfig, c Config, timeout time.Duration) (applied []string, err error) {
	rendered, err := render(c, lockTimeoutSQL)
	if err != nil {
		return nil, err
	}
	store, err := newVersions(c)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	missing, err := c.schemaMissing(ctx, tx.Conn())
	if err != nil {
		return nil, err
	}
	if missing {
		if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+pg.Quote(c.Schema)); err != nil {
			return nil, err
		}
		applied = append(applied, "schema "+c.Schema)
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, rendered, goose.WithStore(store), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, err
	}
	err = retryOnLock(ctx, timeout, func() error {
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

// addLacking adds to the tables of an earlier version what they lack, and returns its names. events reports whether the buffer is the relay's own
// and exists.
func addLacking(ctx context.Context, tx pgx.Tx, config *pgx.ConnConfig, c Config, lacks []lack, events bool, timeout time.Duration) (added []string, err error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if added, err = addColumns(ctx, conn, lacks, timeout); err != nil || !events {
		return added, err
	}
	made, err := makeDelayedIndex(ctx, tx, conn, c)
	if err != nil {
		return nil, fmt.Errorf("making the index of delayed events: %w", err)
	}
	if made {
		added = append(added, "index "+c.delayedIndex())
	}
	return added, nil
}

// complete makes lost tables again if no migration was applied, lost indexes of the ledger, and the archive and the trigger,
// which may be configured later than the tables. It appends to applied.
func complete(ctx context.Context, tx pgx.Tx, c Config, applied []string, timeout time.Duration) ([]string, error) {
	var (
		archive, trigger bool
		indexes          []string
	)
	err := retryOnLock(ctx, timeout, func() error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) { // a savepoint
			if _, err := tx.Exec(ctx, lockTimeoutSQL); err != nil {
				return err
			}
			if len(applied) == 0 {
				if err := restore(ctx, tx, c); err != nil {
					return err
				}
			}
			if indexes, err = makeIndexes(ctx, tx, c); err != nil {
				return err
			}
			if archive, err = makeArchive(ctx, tx, c); err != nil || !c.notifies() {
				return err
			}
			trigger, err = listen.InstallTrigger(ctx, tx, c.events(), c.notifyFunction())
			return err
		})
	})
	for _, name := range indexes {
		applied = append(applied, "index "+name)
	}
	if archive {
		applied = append(applied, "archive "+c.Archive)
	}
	if trigger {
		applied = append(applied, "trigger "+listen.TriggerName)
	}
	return applied, err
}

// restore makes lost tables again, although goose has recorded their migrations: all statements say IF NOT EXISTS.
func restore(ctx context.Context, tx pgx.Tx, c Config) error {
	var complete, events bool
	err := tx.QueryRow(ctx, "SELECT bool_and(to_regclass(name) IS NOT NULL), to_regclass($2) IS NOT NULL FROM unnest($1::text[]) name",
		c.tables(), c.events()).Scan(&complete, &events)
	if err != nil || complete {
		return err
	}
	c.Notify = false // complete installs the trigger
	ddl, err := Schema(c)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, ddl, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("making lost tables again: %w", err)
	}
	if !events && !c.Custom { // the batches' events are lost, and new events will have their ids
		_, err = tx.Exec(ctx, fmt.Sprintf(forgetBatchesSQL, c.ledger("outbox_batches")), c.events())
	}
	return err
}

const forgetBatchesSQL = `
DELETE FROM %s WHERE buffer = (
  SELECT nspname || '.' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass($1))`

// grantsSQL lists the GRANTs that the role needs to create tables.
const grantsSQL = `
SELECT current_user::text, coalesce(string_agg(format('GRANT USAGE, CREATE ON SCHEMA %I TO %I', nspname, current_user), '; ' ORDER BY nspname), '')
FROM pg_namespace
WHERE nspname IN ($1, $2, $3)
  AND NOT (has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE'))`

// nameGrants adds to err which privileges the role lacks. It ends tx.
func nameGrants(ctx context.Context, tx pgx.Tx, c Config, err error) error {
	schema, _ := pg.SplitTable(c.Table)
	if c.Custom {
		schema = c.ledgerSchema()
	}
	var role, grants string
	conn := tx.Conn()
	if rollbackErr := tx.Rollback(ctx); rollbackErr != nil {
		return errors.Join(err, rollbackErr)
	}
	archive, _ := pg.SplitTable(c.Archive)
	ask, beginErr := conn.Begin(ctx)
	if beginErr != nil {
		return errors.Join(err, beginErr)
	}
	defer ask.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it only reads
	if _, pathErr := ask.Exec(ctx, "SET LOCAL search_path = "+pg.SearchPath); pathErr != nil {
		return errors.Join(err, pathErr)
	}
	if askErr := ask.QueryRow(ctx, grantsSQL, cmp.Or(schema, c.onPath), c.ledgerSchema(), archive).Scan(&role, &grants); askErr != nil {
		return errors.Join(err, askErr)
	}
	missing, askErr := c.schemaMissing(ctx, conn)
	switch {
	case askErr != nil:
		return errors.Join(err, askErr)
	case missing:
		grants = "CREATE SCHEMA " + pg.Quote(c.Schema) + " AUTHORIZATION " + pg.Quote(role)
	case grants == "":
		grants = "run relay migrate as the role that owns the tables"
	}
	return fmt.Errorf("%w: role %s lacks a privilege: %s: %w", buffer.ErrNotReady, role, grants, err)
}
