package catalog

import (
	"context"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Findings collects what is missing, and how to fix each.
type Findings []buffer.Finding

// Add adds what is missing and its fix.
func (f *Findings) Add(text, fix string) {
	*f = append(*f, buffer.Finding{Level: buffer.LevelError, Subject: "tables", Text: text, Fix: fix})
}

// Err returns a *notready.Error; nil if nothing is missing.
func (f Findings) Err() error { return notready.New("", f) }

// AddForbidden adds, once, that a role may not use a schema.
func (f *Findings) AddForbidden(schema, role string) {
	text := "role " + role + " may not use schema " + schema
	if !slices.ContainsFunc(*f, func(g buffer.Finding) bool { return g.Text == text }) {
		f.Add(text, "GRANT USAGE ON SCHEMA "+schema+" TO "+pg.Quote(role))
	}
}

// AddNoSchema adds, once, that a schema does not exist, which migrate does not make.
func (f *Findings) AddNoSchema(schema string) {
	one := notready.NoSchema(pg.Quote(schema))
	if !slices.ContainsFunc(*f, func(g buffer.Finding) bool { return g.Text == one.Text }) {
		*f = append(*f, one)
	}
}

// AddMissing adds all that a table lacks: itself, columns, privileges. Columns are written as
// ALTER TABLE ADD COLUMN takes them; adds reports whether Migrate adds one.
func (f *Findings) AddMissing(t Table, columns []string, adds func(column string) bool, privileges ...string) {
	switch {
	case t.ForbiddenSchema != "":
		f.AddForbidden(t.ForbiddenSchema, t.Role)
		return
	case !t.Exists:
		f.Add("table "+t.Wanted+" does not exist", notready.MigrateCommand)
		return
	}
	for _, c := range columns {
		if name, _, _ := strings.Cut(c, " "); !t.Has(name) {
			text := "table " + t.Quoted + " has no column " + name
			if adds(c) {
				text += ", which relay migrate adds"
			}
			f.Add(text, AddColumn(t.Quoted, c))
		}
	}
	var denied []string
	for _, p := range []struct {
		granted bool
		name    string
	}{{t.CanSelect, "SELECT"}, {t.CanInsert, "INSERT"}, {t.CanUpdate, "UPDATE"}, {t.CanDelete, "DELETE"}} {
		if !p.granted && slices.Contains(privileges, p.name) {
			denied = append(denied, p.name)
		}
	}
	f.AddDenied("table "+t.Quoted, t.Quoted, t.Role, denied...)
}

// CanAdd reports whether a column, written as ALTER TABLE ADD COLUMN takes it, can be added to a table that has rows.
func CanAdd(column string) bool {
	return !strings.Contains(column, "PRIMARY KEY") && (!strings.Contains(column, " NOT NULL") || strings.Contains(column, " DEFAULT "))
}

// Columns whose value in the rows that are there when they are added is not the default of later rows: one that is another in each transaction would
// rewrite the table, and say of those rows what is not so; and a sink that was there before the column got everything.
var added = []struct{ column, first, then string }{
	{"stamp_xid xid8 DEFAULT pg_current_xact_id()", "", "pg_current_xact_id()"},
	{"routed int8multirange NOT NULL DEFAULT '{}'", "'{[0,)}'", "'{}'"},
}

// AddColumn returns the statements that add a column, which is written as ALTER TABLE ADD COLUMN takes it. They can be run again without harm.
func AddColumn(table, column string) string {
	name, _, _ := strings.Cut(column, " ")
	then := ""
	for _, a := range added {
		if column == a.column {
			column = strings.TrimSuffix(strings.TrimSuffix(column, a.then)+a.first, " DEFAULT ")
			then = "; ALTER TABLE " + table + " ALTER " + name + " SET DEFAULT " + a.then
		}
	}
	return "ALTER TABLE " + table + " ADD COLUMN IF NOT EXISTS " + column + then
}

// AddJSONB adds that columns are jsonb, although a delivered or dead event may have JSON that jsonb refuses.
func (f *Findings) AddJSONB(t Table, columns ...string) {
	columns = slices.DeleteFunc(columns, func(c string) bool { return t.OID(c) != pg.OIDJSONB })
	if len(columns) > 0 {
		f.Add("table "+t.Quoted+" has jsonb in "+strings.Join(columns, ", ")+`, which refuses JSON like "\u0000"; expected json`,
			"ALTER TABLE "+t.Quoted+" ALTER "+strings.Join(columns, " TYPE json, ALTER ")+" TYPE json")
	}
}

// AddDenied adds that a role lacks privileges on an object; on is how GRANT names it.
func (f *Findings) AddDenied(object, on, role string, privileges ...string) {
	if list := strings.Join(privileges, ", "); list != "" {
		f.Add("role "+role+" may not "+list+" on "+object, "GRANT "+list+" ON "+on+" TO "+pg.Quote(role))
	}
}

// DelayedIndexSQL reports whether an index of table $1 finds delayed events by column $2.
const DelayedIndexSQL = `
SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
               WHERE i.indrelid = $1::regclass AND i.indisvalid AND am.amname = 'btree' AND i.indkey[0] = (
                 SELECT attnum FROM pg_attribute WHERE attrelid = $1::regclass AND attname = $2 AND NOT attisdropped)
                 AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = '(' || quote_ident($2) || ' IS NOT NULL)'))`

// AddDelayedIndex adds that no index finds delayed events by a column.
func (f *Findings) AddDelayedIndex(ctx context.Context, db *pg.DB, t Table, column string) error {
	found, quoted := false, pg.Quote(column)
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: DelayedIndexSQL, Args: []string{t.Quoted, column},
		Row: func(v [][]byte) error { found = pg.ReadBool(v[0]); return nil },
	}})
	if err == nil && !found {
		f.Add("table "+t.Quoted+" has no index on column "+quoted+", so that each look for delayed events would read the whole table",
			"CREATE INDEX CONCURRENTLY ON "+t.Quoted+" ("+quoted+") WHERE "+quoted+" IS NOT NULL")
	}
	return err
}
