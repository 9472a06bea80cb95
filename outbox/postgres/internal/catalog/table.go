package catalog

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Table is what the catalog says of a table. Without the right to use its schema, nothing is
// known but Wanted, ForbiddenSchema and Role; if it is ambiguous, nothing but Wanted and Ambiguous.
type Table struct {
	// Wanted is the quoted name that was asked for; Schema, Name and Quoted are those found.
	Wanted, Schema, Name, Quoted string
	// ForbiddenSchema is the quoted name of the schema if the role may not use it.
	ForbiddenSchema string
	// Ambiguous is what is wrong if the search path has several tables of the name, and another role may have planted the first. Then none is looked at.
	Ambiguous Findings
	Exists    bool
	ID        int64 // the table's oid
	// IsTable is false for a view.
	IsTable, Unlogged bool
	// PartitionKey is RANGE (created_at); "" if the table is not partitioned.
	PartitionKey                               string
	CanSelect, CanInsert, CanUpdate, CanDelete bool
	Columns                                    []string
	oids                                       []uint32 // the types of Columns
	// Sequence generates the values of column id.
	Sequence string

	// Role, Database and the rest are those of the connection.
	Role, Database  string
	DeadlockTimeout time.Duration
	ServerIsLinux   bool
}

// Has reports whether the table has a column.
func (t *Table) Has(column string) bool { return slices.Contains(t.Columns, column) }

// Lacks returns the names of the columns that the table has not. Columns are written as ALTER TABLE ADD COLUMN takes them.
func (t *Table) Lacks(columns []string) (lacks []string) {
	for _, c := range columns {
		if name, _, _ := strings.Cut(c, " "); !t.Has(name) {
			lacks = append(lacks, name)
		}
	}
	return lacks
}

// OID returns the type of a column; 0 if the table has no such column.
func (t *Table) OID(column string) uint32 {
	if i := slices.Index(t.Columns, column); i >= 0 {
		return t.oids[i]
	}
	return 0
}

// tableSQL returns no row if there is no such table.
const tableSQL = `
SELECT n.nspname::text, c.relname::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       has_table_privilege(c.oid, 'SELECT'), has_table_privilege(c.oid, 'INSERT'),
       has_table_privilege(c.oid, 'UPDATE'), has_table_privilege(c.oid, 'DELETE'),
       coalesce(pg_get_serial_sequence(quote_ident(n.nspname) || '.' || quote_ident(c.relname), (
         SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attname = 'id' AND NOT attisdropped)), ''),
       ARRAY(SELECT a.atttypid::bigint FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       c.relkind = 'r' AND c.relpersistence = 'u',
       (SELECT extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000)::bigint,
       current_user::text, current_database()::text, version() ~ 'linux', c.relkind IN ('r', 'p'),
       CASE WHEN c.relkind = 'p' THEN pg_get_partkeydef(c.oid) ELSE '' END, c.oid::int8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1) AND has_schema_privilege(n.oid, 'USAGE') AND c.relpersistence <> 't'`

// Find looks a table up; schema is "" to search along the search path. Temporary tables are not found.
func Find(ctx context.Context, db *pg.DB, schema, name string) (Table, error) {
	t := Table{Wanted: pg.Ident(schema, name)}
	var err error
	if schema == "" {
		p, err := onPath(ctx, db, name)
		if t.Ambiguous = p.ambiguous(name); err != nil || p.schema == "" || t.Ambiguous != nil {
			return t, err
		}
		schema = p.schema
	}
	if t.ForbiddenSchema, t.Role, err = ForbiddenSchema(ctx, db, schema); err != nil || t.ForbiddenSchema != "" {
		return t, err
	}
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: tableSQL, Args: []string{pg.Ident(schema, name)}, Row: func(v [][]byte) error {
		t.Exists = true
		t.Schema, t.Name, t.Quoted = string(v[0]), string(v[1]), string(v[2])
		pg.ReadArray(v[3], func(c []byte) { t.Columns = append(t.Columns, string(c)) })
		t.CanSelect, t.CanInsert, t.CanUpdate, t.CanDelete = pg.ReadBool(v[4]), pg.ReadBool(v[5]), pg.ReadBool(v[6]), pg.ReadBool(v[7])
		t.Sequence = string(v[8])
		pg.ReadArray(v[9], func(oid []byte) { t.oids = append(t.oids, uint32(pg.ReadInt8(oid))) }) //nolint:gosec // an oid
		t.Unlogged = pg.ReadBool(v[10])
		t.DeadlockTimeout = time.Duration(pg.ReadInt8(v[11])) * time.Millisecond
		t.Role, t.Database, t.ServerIsLinux = string(v[12]), string(v[13]), pg.ReadBool(v[14])
		t.IsTable, t.PartitionKey, t.ID = pg.ReadBool(v[15]), string(v[16]), pg.ReadInt8(v[17])
		return nil
	}}})
	return t, err
}

const forbiddenSchemaSQL = `
SELECT quote_ident(nspname), current_user::text FROM pg_namespace
WHERE nspname = $1 AND NOT has_schema_privilege(oid, 'USAGE')`

// ForbiddenSchema returns the schema's quoted name and the role if the role may not use the
// schema, otherwise "". Looking up a table in such a schema is an error.
func ForbiddenSchema(ctx context.Context, db *pg.DB, schema string) (quoted, role string, err error) {
	if schema == "" {
		return "", "", nil
	}
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: forbiddenSchemaSQL, Args: []string{schema}, Row: func(v [][]byte) error {
		quoted, role = string(v[0]), string(v[1])
		return nil
	}}})
	return quoted, role, err
}

const noSchemaSQL = `
SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`

// NoSchema reports whether a schema does not exist; "" is none.
func NoSchema(ctx context.Context, db *pg.DB, schema string) (no bool, err error) {
	if schema == "" {
		return false, nil
	}
	err = db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {SQL: noSchemaSQL, Args: []string{schema}, Row: func(v [][]byte) error {
		no = pg.ReadBool(v[0])
		return nil
	}}})
	return no, err
}
