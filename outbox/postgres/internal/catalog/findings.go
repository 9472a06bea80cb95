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

// AddMissing adds all that a table lacks: itself, columns, privileges. Columns are written as
// ALTER TABLE ADD COLUMN takes them.
func (f *Findings) AddMissing(t Table, columns []string, privileges ...string) {
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
			f.Add("table "+t.Quoted+" has no column "+name, AddColumn(t.Quoted, c))
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

// AddColumn returns the statement that adds a column, which is written as ALTER TABLE ADD COLUMN takes it. A default that is another one in each transaction is only
// for rows that come later: one for those that are there would rewrite the table, and say of them what is not so.
func AddColumn(table, column string) string {
	const volatile = " DEFAULT pg_current_xact_id()"
	plain, found := strings.CutSuffix(column, volatile)
	add := "ALTER TABLE " + table + " ADD COLUMN " + plain
	if name, _, _ := strings.Cut(column, " "); found {
		add += "; ALTER TABLE " + table + " ALTER " + name + " SET" + volatile
	}
	return add
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

const delayedIndexSQL = `
SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
               WHERE i.indrelid = $1::regclass AND i.indisvalid AND am.amname = 'btree' AND i.indkey[0] = (
                 SELECT attnum FROM pg_attribute WHERE attrelid = $1::regclass AND attname = $2 AND NOT attisdropped)
                 AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = '(' || quote_ident($2) || ' IS NOT NULL)'))`

// AddDelayedIndex adds that no index finds delayed events by a column.
func (f *Findings) AddDelayedIndex(ctx context.Context, db *pg.DB, t Table, column string) error {
	found, quoted := false, pg.Quote(column)
	err := db.RoundTrip(ctx, []pg.Step{pg.ReadTx(db.StatementTimeout), {
		SQL: delayedIndexSQL, Args: []string{t.Quoted, column},
		Row: func(v [][]byte) error { found = pg.ReadBool(v[0]); return nil },
	}})
	if err == nil && !found {
		f.Add("table "+t.Quoted+" has no index on column "+quoted+", so that each look for delayed events would read the whole table",
			"CREATE INDEX CONCURRENTLY ON "+t.Quoted+" ("+quoted+") WHERE "+quoted+" IS NOT NULL")
	}
	return err
}
