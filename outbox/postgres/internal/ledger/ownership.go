package ledger

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/internal/ownership"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// The first pipeline that claims owns the buffer.
const (
	ownSQL = `
UPDATE outbox_buffers SET pipeline = $2, owned_since = clock_timestamp() WHERE buffer = $1 AND pipeline IS NULL`

	ownerSQL = `
SELECT coalesce(pipeline, ''), coalesce(owned_since, 'epoch') FROM outbox_buffers WHERE buffer = $1`

	// The ledgers of other schemas, of which each would send the buffer's events. Reading a table may run functions of
	// its owner (row security, rules), so only those are read whose owner is this role, the owner of the events, or a superuser.
	otherLedgersSQL = `
SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
WHERE c.relname = 'outbox' || '_buffers' AND c.relkind = 'r' AND NOT c.relrowsecurity AND NOT c.relhasrules
  AND c.oid <> $1::regclass
  AND (r.rolsuper OR c.relowner = (SELECT relowner FROM pg_catalog.pg_class WHERE oid = $2::regclass) OR pg_catalog.pg_has_role(c.relowner, 'USAGE'))
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
  AND EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attname = 'owned_since')`
)

// Own makes the pipeline the buffer's owner if it has none. The error is an *ownership.Error if another pipeline owns it; counts look
// again whether that is still so.
func (b *Base) Own(ctx context.Context, t *Tables) error {
	if b.Ownership.Elsewhere() {
		if err := b.LookElsewhere(ctx, t); err != nil {
			return err
		}
	}
	mine, err := b.Ownership.Known()
	if mine || err != nil {
		return err
	}
	var (
		owner string
		since time.Time
	)
	err = b.DB.Transact(ctx, b.DB.WriteTx(b.DB.StatementTimeout, "synchronous_commit", "on"),
		pg.Step{SQL: t.SQL(ownSQL), Args: []string{t.Buffer, b.Pipeline}},
		pg.Step{SQL: t.SQL(ownerSQL), Args: []string{t.Buffer}, Row: func(v [][]byte) error {
			owner, since = string(v[0]), pg.ReadTime(v[1])
			return nil
		}})
	if err != nil {
		return b.Explain(ctx, "reading the buffer's owner", err)
	}
	b.Ownership.Saw(t.Buffer, owner, b.Pipeline, since)
	// Another ledger may have got its owner at the same time; then both refuse.
	if err := b.LookElsewhere(ctx, t); err != nil {
		return err
	}
	_, conflict := b.Ownership.Known()
	return conflict
}

// LookElsewhere looks for another ledger in this database in which a pipeline owns the buffer. Claims and counts return the conflict.
func (b *Base) LookElsewhere(ctx context.Context, t *Tables) error {
	var (
		ledgers  []string
		conflict *ownership.Error
	)
	read := func(sql string, row func([][]byte) error, args ...string) error {
		return b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{SQL: sql, Args: args, Row: row})
	}
	err := b.DB.Transact(ctx, pg.ReadTx(b.DB.StatementTimeout), pg.Step{SQL: OtherLedgerSQL, Args: []string{t.Events, t.Schema}, Row: func(v [][]byte) error {
		conflict = b.MovedTo(t, string(v[0]))
		return nil
	}})
	if err != nil {
		return b.Explain(ctx, "looking for other ledgers", err)
	}
	if conflict != nil {
		b.Ownership.SawElsewhere(conflict)
		return nil
	}
	err = read(otherLedgersSQL, func(v [][]byte) error {
		ledgers = append(ledgers, string(v[0]))
		return nil
	}, t.SQL("outbox_buffers"), t.Events)
	for _, name := range ledgers {
		if err != nil {
			break
		}
		err = read("SELECT pipeline, owned_since FROM "+name+" WHERE buffer = $1 AND pipeline IS NOT NULL", func(v [][]byte) error {
			conflict = &ownership.Error{Buffer: t.Buffer, Owner: string(v[0]), Pipeline: b.Pipeline, Since: pg.ReadTime(v[1]), Ledger: name}
			return nil
		}, t.Buffer)
	}
	if err != nil {
		return b.Explain(ctx, "looking for other ledgers", err)
	}
	b.Ownership.SawElsewhere(conflict)
	return nil
}

// MovedTo is the conflict of a buffer whose trigger names the ledger of another schema; see OtherLedgerSQL.
func (b *Base) MovedTo(t *Tables, schema string) *ownership.Error {
	return &ownership.Error{Buffer: t.Buffer, Pipeline: b.Pipeline, Ledger: pg.Ident(schema, "outbox_buffers"), Events: t.Events}
}
