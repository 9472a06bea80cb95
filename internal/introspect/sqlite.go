package introspect

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const sqliteTablesSQL = `
SELECT name, sql LIKE '%autoincrement%' FROM sqlite_schema
WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name`

const sqliteViewsSQL = `
SELECT name FROM sqlite_schema WHERE type = 'view'`

const sqliteColumnsSQL = `
SELECT name, type, "notnull", pk, CASE WHEN upper(dflt_value) = 'NULL' THEN '' ELSE COALESCE(dflt_value, '') END
FROM pragma_table_info(?1) ORDER BY cid`

const sqliteIndexesSQL = `
SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?1 COLLATE NOCASE AND sql IS NOT NULL`

const sqliteRefsSQL = `
SELECT "from", "table", COALESCE("to", ''), (SELECT count(*) FROM pragma_foreign_key_list(?1) o WHERE o.id = f.id)
FROM pragma_foreign_key_list(?1) f WHERE f.seq = 0 ORDER BY f.id DESC`

func openSQLite(ctx context.Context, source string) (d *Database, err error) {
	d = &Database{}
	return d, readSQLite(ctx, source, func(tx *sql.Tx) error { return d.readSQLite(ctx, tx) })
}

func (d *Database) readSQLite(ctx context.Context, tx *sql.Tx) error {
	each := func(query string, args []any, into []any, do func()) error {
		rows, err := tx.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				return err
			}
			do()
		}
		return rows.Err()
	}
	var (
		name, kind, to string
		value          string
		autoincrement  bool
		notNull        bool
		pk, columns    int
		named          = map[string]*Table{}
	)
	if err := each(sqliteTablesSQL, nil, []any{&name, &autoincrement}, func() {
		t := &Table{Name: name, ReusesIDs: !autoincrement}
		d.Tables, named[strings.ToLower(name)] = append(d.Tables, t), t
	}); err != nil {
		return err
	}
	if err := each(sqliteViewsSQL, nil, []any{&name}, func() { d.Views = append(d.Views, &Table{Name: name}) }); err != nil {
		return err
	}
	for _, t := range d.Tables {
		key := map[int]string{}
		if err := each(sqliteColumnsSQL, []any{t.Name}, []any{&name, &kind, &notNull, &pk, &value}, func() {
			c := Column{Name: name, Type: baseType(kind), NotNull: notNull || pk > 0, Default: value}
			t.Columns = append(t.Columns, c)
			if pk > 0 {
				key[pk] = name
			}
		}); err != nil {
			return err
		}
		if err := each(sqliteIndexesSQL, []any{t.Name}, []any{&value}, func() {
			index := strings.ReplaceAll(value, `"`, "")
			for i := range t.Columns {
				c := &t.Columns[i]
				c.Indexed = c.Indexed || strings.Contains(index, buffer.SQLiteAvailable(c.Name))
			}
		}); err != nil {
			return err
		}
		for i := range len(key) {
			t.Key = append(t.Key, key[i+1])
		}
	}
	for _, t := range d.Tables {
		if err := each(sqliteRefsSQL, []any{t.Name}, []any{&name, &kind, &to, &columns}, func() {
			parent := named[strings.ToLower(kind)]
			if parent == nil || parent == t {
				return
			}
			if !slices.Contains(parent.ReferredBy, t.Name) {
				parent.ReferredBy = append(parent.ReferredBy, t.Name)
			}
			if to == "" && len(parent.Key) == 1 { // REFERENCES parent, without a column
				to = parent.Key[0]
			}
			if columns == 1 && to != "" {
				t.Refs = append(t.Refs, Ref{Column: name, Table: parent, To: to})
			}
		}); err != nil {
			return err
		}
	}
	return nil
}
