package introspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const schemasSQL = `
SELECT n.nspname::text, has_schema_privilege(n.oid, 'CREATE')
FROM pg_namespace n
WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema'`

const canCreateSQL = `
SELECT current_user::text, has_database_privilege(current_database(), 'CREATE')`

// The zone is that of a session that sets none. One that is that of UTC in January and in July counts as UTC.
const zoneSQL = `
SELECT CASE WHEN bool_or(t AT TIME ZONE s.reset_val <> t AT TIME ZONE 'UTC') THEN s.reset_val ELSE '' END
FROM pg_settings s, unnest(ARRAY[timestamptz '2026-01-01', timestamptz '2026-07-01']) t
WHERE s.name = 'TimeZone' GROUP BY s.reset_val`

// Partitions are left out; their table is listed.
const tablesSQL = `
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind = 'p', c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
       array_remove(ARRAY[
           CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') THEN 'SELECT' END,
           CASE WHEN NOT has_table_privilege(c.oid, 'UPDATE') THEN 'UPDATE' END,
           CASE WHEN NOT has_table_privilege(c.oid, 'INSERT') THEN 'INSERT' END,
           CASE WHEN NOT has_table_privilege(c.oid, 'DELETE') THEN 'DELETE' END], NULL)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema'
ORDER BY n.nspname, c.relname`

const viewsSQL = `
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('v', 'm', 'f') AND n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema'`

// CASE, because has_sequence_privilege fails for anything but a sequence.
const columnsSQL = `
SELECT a.attrelid, a.attnum, a.attname::text, format_type(t.oid, NULL), a.attnotnull,
       a.attidentity <> '' OR COALESCE(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indnkeyatts = 1
               AND i.indkey[0] = a.attnum AND i.indpred IS NULL AND i.indisvalid),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indkey[0] = a.attnum AND i.indisvalid
               AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = '(' || quote_ident(a.attname) || ' IS NOT NULL)')),
       COALESCE((SELECT s.oid::regclass::text FROM pg_depend o JOIN pg_class s ON s.oid = o.objid
                 WHERE o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass AND o.refobjid = a.attrelid
                   AND o.refobjsubid = a.attnum
                   AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'SELECT') END LIMIT 1), ''),
       COALESCE(pg_get_expr(d.adbin, d.adrelid) ~* '(at time zone|timezone\() ?''utc''', false),
       CASE WHEN pg_get_expr(d.adbin, d.adrelid) ~* '^null(::|$)' THEN '' ELSE COALESCE(pg_get_expr(d.adbin, d.adrelid), '') END
FROM pg_attribute a
JOIN pg_type y ON y.oid = a.atttypid
JOIN pg_type t ON t.oid = COALESCE(NULLIF(y.typbasetype, 0), y.oid) -- the type under a domain
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum`

const keysSQL = `
SELECT i.indrelid, a.attname::text
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY k (attnum, at)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY ($1) AND i.indisprimary AND k.at <= i.indnkeyatts
ORDER BY i.indrelid, k.at`

const refsSQL = `
SELECT c.conrelid, a.attname::text, c.confrelid, f.attname::text, cardinality(c.conkey)
FROM pg_constraint c
JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
JOIN pg_attribute f ON f.attrelid = c.confrelid AND f.attnum = c.confkey[1]
WHERE c.contype = 'f' AND c.conrelid = ANY ($1) AND c.conparentid = 0
ORDER BY c.conrelid, a.attnum, c.oid`

func openPostgres(ctx context.Context, url string) (d *Database, err error) {
	d = &Database{Schemas: map[string]bool{}}
	err = readPostgres(ctx, url, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, canCreateSQL).Scan(&d.Role, &d.CanCreateSchema); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, zoneSQL).Scan(&d.Zone); err != nil {
			return err
		}
		return d.readPostgres(ctx, tx)
	})
	return d, err
}

// connectError says why a connection failed, and what to do. What the server says stands instead of pgx's list of all tries.
func connectError(c *pgx.ConnConfig, err error) error {
	at := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		if refused.Code == "42704" { // undefined_object
			return fmt.Errorf("PostgreSQL at %s refuses the connection: %s (SQLSTATE %s); remove that parameter from the URL: it is perhaps one of the application's driver", at, refused.Message, refused.Code)
		}
		return fmt.Errorf("PostgreSQL at %s refuses the connection: %s (SQLSTATE %s); correct the URL, or create the role or the database", at, refused.Message, refused.Code)
	}
	return fmt.Errorf("cannot reach PostgreSQL at %s; start the server, or correct the URL: %w", at, err)
}

func (d *Database) readPostgres(ctx context.Context, tx pgx.Tx) error {
	tables, oids := map[uint32]*Table{}, []uint32{}
	var (
		schema, name, to string
		canCreate, parts bool
		inherited        bool
		missing          []string
		oid, toOID       uint32
		at, columns      int
		c                Column
	)
	for _, q := range []struct {
		sql  string
		into []any
		do   func()
	}{
		{schemasSQL, []any{&schema, &canCreate}, func() { d.Schemas[schema] = canCreate }},
		{viewsSQL, []any{&schema, &name}, func() { d.Views = append(d.Views, &Table{Schema: schema, Name: name}) }},
		{tablesSQL, []any{&oid, &schema, &name, &parts, &inherited, &missing}, func() {
			t := &Table{Schema: schema, Name: name, IsPartitioned: parts, IsInherited: inherited, MissingPrivileges: missing}
			tables[oid], oids, missing = t, append(oids, oid), nil
			d.Tables = append(d.Tables, t)
		}},
		{columnsSQL, []any{&oid, &at, &c.Name, &c.Type, &c.NotNull, &c.Generated, &c.Unique, &c.Indexed, &c.UnreadableSequence, &c.InUTC, &c.Default}, func() {
			c.Type = baseType(c.Type)
			tables[oid].Columns = append(tables[oid].Columns, c)
		}},
		{keysSQL, []any{&oid, &name}, func() { tables[oid].Key = append(tables[oid].Key, name) }},
		{refsSQL, []any{&oid, &name, &toOID, &to, &columns}, func() {
			from, parent := tables[oid], tables[toOID]
			if parent == nil || parent == from {
				return
			}
			parent.ReferredBy = append(parent.ReferredBy, from.FullName())
			if columns == 1 {
				from.Refs = append(from.Refs, Ref{Column: name, Table: parent, To: to})
			}
		}},
	} {
		args := []any{}
		if q.sql != schemasSQL && q.sql != viewsSQL && q.sql != tablesSQL {
			args = append(args, oids)
		}
		rows, err := tx.Query(ctx, q.sql, args...)
		if err != nil {
			return err
		}
		if _, err := pgx.ForEachRow(rows, q.into, func() error { q.do(); return nil }); err != nil {
			return err
		}
	}
	return nil
}
