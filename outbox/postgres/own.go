package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// ownFacts is what the catalog says of a table of the user's own.
type ownFacts struct {
	table   catalog.Table
	columns []ownColumn
}

// ownColumn is one of its columns.
type ownColumn struct {
	name, quoted string
	// kind is the type's name, and oid the type; those that a domain is made of.
	kind string
	oid  uint32
	// generated: the database computes it, and takes no value for it.
	notNull, generated bool
	// unique: an index on it alone keeps its values apart; primary: it alone is the
	// primary key.
	unique, primary bool
	// sequence is the name of the one that its default draws from, as regclass reads
	// it; "" for none.
	sequence string
}

func (c ownColumn) isInteger() bool {
	return c.oid == pg.OIDInt8 || c.oid == pg.OIDInt4 || c.oid == pg.OIDInt2
}

// column is the one of that name; its name is "" when there is none.
func (f *ownFacts) column(name string) ownColumn {
	if i := slices.IndexFunc(f.columns, func(c ownColumn) bool { return c.name == name }); i >= 0 {
		return f.columns[i]
	}
	return ownColumn{}
}

// Every column, in its order. A default may draw from a sequence that another table owns.
const ownColumnsSQL = `
SELECT a.attname::text, quote_ident(a.attname), t.oid::bigint, format_type(t.oid, NULL), a.attnotnull, a.attgenerated <> '',
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                 AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
       coalesce(pg_get_serial_sequence($1, a.attname), (
         SELECT format('%I.%I', n.nspname, s.relname)
         FROM pg_attrdef f JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
              JOIN pg_class s ON d.refclassid = 'pg_class'::regclass AND s.oid = d.refobjid AND s.relkind = 'S'
              JOIN pg_namespace n ON n.oid = s.relnamespace
         WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum LIMIT 1), '')
FROM pg_attribute a JOIN pg_type d ON d.oid = a.atttypid
     JOIN pg_type t ON t.oid = coalesce(nullif(d.typbasetype, 0), d.oid)
WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

// lookAtOwn reads the table's columns, if there is one.
func (b *Buffer) lookAtOwn(ctx context.Context, table catalog.Table) (ownFacts, error) {
	f := ownFacts{table: table}
	if !table.Exists {
		return f, nil
	}
	begin := pg.ReadTx(b.db.StatementTimeout)
	begin.Row = func([][]byte) error {
		f.columns = nil
		return nil
	}
	return f, b.db.RoundTrip(ctx, []pg.Step{begin, {SQL: ownColumnsSQL, Args: []string{table.Quoted}, Row: func(v [][]byte) error {
		f.columns = append(f.columns, ownColumn{
			name: string(v[0]), quoted: string(v[1]), kind: string(v[3]),
			oid:     uint32(pg.ReadInt8(v[2])), //nolint:gosec // an oid
			notNull: pg.ReadBool(v[4]), generated: pg.ReadBool(v[5]), unique: pg.ReadBool(v[6]), primary: pg.ReadBool(v[7]),
			sequence: string(v[8]),
		})
		return nil
	}}})
}

// validateOwn tells what a table of the user's own does not go with.
func (c Config) validateOwn() error {
	switch {
	case c.Own.ID == "":
		return errors.New("postgres buffer: Own.ID is empty; expected the name of the table's primary key")
	case c.Ordered:
		return errors.New("postgres buffer: Ordered is set; events of a custom table have no key before they are projected")
	case c.Wake == buffer.WakeNotify:
		return fmt.Errorf(`postgres buffer: wake is %q; expected "auto" or "poll", because nothing is added to a custom table`, c.Wake)
	}
	return nil
}
