package postgres

import (
	"context"
	"database/sql"
	"errors"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"github.com/jackc/pgx/v5"
)

const schemaOfTableSQL = `
SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)`

// beside is c with the schema of the relay's own tables, which for a table of the user's
// own is that table's, when nothing else is named and the table is there. What makes
// tables goes by the search path's first schema, and what finds them by all of it.
func (c SchemaConfig) beside(ctx context.Context, tx pgx.Tx) (SchemaConfig, error) {
	if !c.Own || c.own() != "" {
		return c, nil
	}
	err := tx.QueryRow(ctx, schemaOfTableSQL, pg.Ident(pg.SplitTable(c.Table))).Scan(&c.Schema)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return c, err
}

const schemaExistsSQL = `
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`

// schemaIsMissing tells whether c names a schema, for the relay's tables beside one of
// the user's own, that is not there.
func schemaIsMissing(ctx context.Context, conn *pgx.Conn, c SchemaConfig) (bool, error) {
	if !c.Own || c.Schema == "" {
		return false, nil
	}
	var exists bool
	err := conn.QueryRow(ctx, schemaExistsSQL, c.Schema).Scan(&exists)
	return !exists, err
}

// makeSchema makes that schema. It looks first: IF NOT EXISTS asks for the right to
// make schemas even where there is nothing to be made.
func makeSchema(ctx context.Context, db *sql.DB, c SchemaConfig) (applied []string, err error) {
	if !c.Own || c.Schema == "" {
		return nil, nil
	}
	var exists bool
	if err := db.QueryRowContext(ctx, schemaExistsSQL, c.Schema).Scan(&exists); err != nil || exists {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+pg.Quote(c.Schema)); err != nil {
		return nil, err
	}
	return []string{"schema " + c.Schema}, nil
}
