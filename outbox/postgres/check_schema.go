package postgres

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// What a role lacks to read what a statement of the user's reads: a table or a schema that
// it may not, and that the server's error ends with, in whatever language.
const unreadableSQL = `
SELECT 'SELECT ON ' || quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT has_table_privilege(c.oid, 'SELECT')
  AND right($1, length(c.relname) + 1) = ' ' || c.relname AND strpos($2, c.relname) > 0
  AND (strpos($2, n.nspname) > 0 OR n.nspname = ANY (current_schemas(false)))
UNION ALL
SELECT 'USAGE ON SCHEMA ' || quote_ident(nspname)
FROM pg_namespace WHERE NOT has_schema_privilege(oid, 'USAGE') AND right($1, length(nspname) + 1) = ' ' || nspname`

// readable is the statement that lets a role read what it was denied.
func (b *Buffer) readable(ctx context.Context, denied, role string) (string, error) {
	var grants []string
	begin := pg.ReadTx(b.db.StatementTimeout)
	begin.Row = func([][]byte) error {
		grants = nil
		return nil
	}
	err := b.db.RoundTrip(ctx, []pg.Step{begin, {SQL: unreadableSQL, Args: []string{denied, b.config.Own.Project}, Row: func(v [][]byte) error {
		grants = append(grants, string(v[0]))
		return nil
	}}})
	if len(grants) != 1 { // the error does not say which
		grants = []string{"SELECT ON ..."}
	}
	return "GRANT " + grants[0] + " TO " + pg.Quote(role), err
}
