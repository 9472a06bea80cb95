package custom

import (
	"context"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Facts are what the catalog says of a custom table.
type Facts struct {
	Table   catalog.Table
	Columns []Column
	// Schemas are those of the search path; see pathSQL.
	Schemas []string
	// Returned are the columns of the projection; nil before Check.
	Returned []string
}

// Column is one of its columns. Type and OID of a domain are those of its base type.
type Column struct {
	Name, Quoted string
	Type         string
	OID          uint32
	// Generated is set if the database computes its value.
	NotNull, Generated bool
	// Unique is set if an index on it alone is unique.
	Unique bool
	// Sequence is the one that its default draws from, as regclass reads it; "" for none.
	Sequence string
}

// IsInteger reports whether the column is an integer.
func (c Column) IsInteger() bool {
	return c.OID == pg.OIDInt8 || c.OID == pg.OIDInt4 || c.OID == pg.OIDInt2
}

// Column returns the column of that name; its Name is "" if there is none.
func (f *Facts) Column(name string) Column {
	if i := slices.IndexFunc(f.Columns, func(c Column) bool { return c.Name == name }); i >= 0 {
		return f.Columns[i]
	}
	return Column{}
}

// Every column, in its order. A default may draw from a sequence that another table owns.
const columnsSQL = `
SELECT a.attname::text, quote_ident(a.attname), t.oid::bigint, format_type(t.oid, NULL), a.attnotnull, a.attgenerated <> '',
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                 AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
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

// Read reads the columns of the table, if it exists, and the search path.
func Read(ctx context.Context, db *pg.DB, table catalog.Table) (Facts, error) {
	f := Facts{Table: table}
	if !table.Exists {
		return f, nil
	}
	err := db.RoundTrip(ctx, []pg.Step{db.OwnPathTx(db.StatementTimeout), {SQL: pathSQL, Row: f.readPath}, pg.SetLocal("search_path", pg.SearchPath), {SQL: columnsSQL, Args: []string{table.Quoted}, Row: func(v [][]byte) error {
		f.Columns = append(f.Columns, Column{
			Name: string(v[0]), Quoted: string(v[1]), Type: string(v[3]),
			OID:     uint32(pg.ReadInt8(v[2])), //nolint:gosec // an oid
			NotNull: pg.ReadBool(v[4]), Generated: pg.ReadBool(v[5]), Unique: pg.ReadBool(v[6]),
			Sequence: string(v[7]),
		})
		return nil
	}}})
	return f, err
}

// asJSON returns the row e as json, an expression that never fails. A column that may hold JSON is kept as text,
// because json_populate_record refuses a NUL or half a surrogate pair at any depth.
func (f *Facts) asJSON() string {
	if !slices.ContainsFunc(f.Columns, Column.isText) {
		return "to_json(e)"
	}
	columns := make([]string, len(f.Columns))
	for i, c := range f.Columns {
		columns[i] = "e." + c.Quoted
		if c.isText() {
			columns[i] += "::text AS " + c.Quoted
		}
	}
	return "(SELECT to_json(r) FROM (SELECT " + strings.Join(columns, ", ") + ") r)"
}

// isText reports whether a row as JSON has the column as text: json, and types that are not PostgreSQL's own, which
// may contain json or have a cast to it that cannot be undone.
func (c Column) isText() bool {
	return c.OID == pg.OIDJSON || c.OID == pg.OIDJSONArray || c.OID >= pg.FirstUserOID
}
