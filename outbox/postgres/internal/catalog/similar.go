package catalog

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The tables of schemas, but for those of the relay that are no buffers.
const similarSQL = `
SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname::text = ANY ($1::text[]) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname !~ '^outbox_(batches|dead_letters|buffers|rates|sinks|relays)$|_migrations$' LIMIT 10000`

const pathSQL = `
SELECT pg_catalog.current_schemas(false)::pg_catalog.text[]`

// Similar returns the name of a table that may be meant by a name that no table has; "" if there is none. schema is "" for those of the search path.
func Similar(ctx context.Context, db *pg.DB, schema, name string) (string, error) {
	schemas, names := []string{schema}, []string(nil)
	if schema == "" {
		schemas = nil
		err := db.RoundTrip(ctx, []pg.Step{db.OwnPathTx(db.StatementTimeout), {SQL: pathSQL, Row: func(v [][]byte) error {
			pg.ReadArray(v[0], func(s []byte) { schemas = append(schemas, string(s)) })
			return nil
		}}})
		if err != nil {
			return "", err
		}
	}
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: similarSQL, Args: []string{array(schemas)}, Row: func(v [][]byte) error {
		names = append(names, string(v[0]))
		return nil
	}}})
	return buffer.NearestTable(name, names), err
}

// SimilarTx is Similar in a transaction whose search path is pg.SearchPath, for a table that exists.
func SimilarTx(ctx context.Context, tx pgx.Tx, schema, name string) (string, error) {
	rows, err := tx.Query(ctx, similarSQL, []string{schema})
	if err != nil {
		return "", err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return buffer.NearestTable(name, slices.DeleteFunc(names, func(n string) bool { return n == name })), err
}
