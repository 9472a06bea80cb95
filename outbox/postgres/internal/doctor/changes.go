package doctor

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	// Bits of tgtype: 1 is FOR EACH ROW, 2 BEFORE, 4 INSERT, 8 DELETE, 16 UPDATE. On DELETE, NEW is NULL.
	ignoringTriggersSQL = `
SELECT quote_ident(t.tgname), t.tgrelid::regclass::text, p.oid::regprocedure::text
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid IN (SELECT $1::regclass UNION SELECT relid FROM pg_partition_tree($1::regclass))
  AND t.tgtype & 3 = 3 AND t.tgtype & $2::int <> 0 AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal AND p.prosrc ~* $3
ORDER BY 2, 1`

	replacingRulesSQL = `
SELECT quote_ident(rulename) FROM pg_rewrite
WHERE ev_class = $1::regclass AND ev_type = $2 AND is_instead AND ev_enabled IN ('O', 'A')
ORDER BY 1`

	// Bits of tgtype: 4 is INSERT, 8 DELETE. RAISE without a level raises an error.
	refusingTriggersSQL = `
SELECT quote_ident(t.tgname), t.tgrelid::regclass::text, p.oid::regprocedure::text, CASE WHEN t.tgrelid = $2::regclass THEN 'INSERT' ELSE 'DELETE' END
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE (t.tgrelid IN (SELECT $1::regclass UNION SELECT relid FROM pg_partition_tree($1::regclass)) AND t.tgtype & 8 = 8
       OR t.tgrelid = $2::regclass AND t.tgtype & 4 = 4)
  AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal AND p.prosrc ~* '\mraise\M(?!\s+(debug|log|info|notice|warning)\M)'
ORDER BY 2, 1`
)

// deletes adds what may make a DELETE of a delivered event do nothing, or fail.
func (d *diagnosis) deletes(ctx context.Context, events catalog.Table) {
	const (
		about = "deletes"
		then  = "delivered events stay in the table, and the pipeline stalls"
	)
	d.query(ctx, about, refusingTriggersSQL, func(v []string) {
		d.warn(about, "trigger "+v[0]+" of table "+v[1]+" fires on "+v[3]+", and its function "+v[2]+" may raise an error; where it does so, the batch waits, and the pipeline stalls",
			"correct function "+v[2]+", or DROP TRIGGER "+v[0]+" ON "+v[1])
	}, events.Quoted, pg.Ident(d.LedgerSchema, "outbox_dead_letters"))
	d.query(ctx, about, ignoringTriggersSQL, func(v []string) {
		d.warn(about, "trigger "+v[0]+" of table "+v[1]+" fires BEFORE INSERT, and its function "+v[2]+" returns NULL or OLD; where it does so, a refused event gets no dead letter and waits, "+
			"and the pipeline stalls", "return NEW in function "+v[2]+", or DROP TRIGGER "+v[0]+" ON "+v[1])
	}, pg.Ident(d.LedgerSchema, "outbox_dead_letters"), "4", `\mreturn\s+(null|old)\M`)
	if d.state.Tables.Marks { // nothing is deleted
		return
	}
	d.query(ctx, about, ignoringTriggersSQL, func(v []string) {
		d.warn(about, "trigger "+v[0]+" of table "+v[1]+" fires BEFORE DELETE, and its function "+v[2]+" returns NULL or NEW; where it does so for a DELETE, "+then,
			"return OLD in function "+v[2]+", or DROP TRIGGER "+v[0]+" ON "+v[1])
	}, events.Quoted, "8", `\mreturn\s+(null|new)\M`)
	d.query(ctx, about, replacingRulesSQL, func(v []string) {
		d.problem(about, "rule "+v[0]+" of table "+events.Quoted+" replaces a DELETE; "+then, "DROP RULE "+v[0]+" ON "+events.Quoted)
	}, events.Quoted, "4")
}

// updates adds what may make the UPDATE of a claim by stamp do nothing.
func (d *diagnosis) updates(ctx context.Context, events catalog.Table) {
	const (
		about = "updates"
		then  = "no event is claimed"
	)
	if d.state.Mode != buffer.ClaimStamp {
		return
	}
	d.query(ctx, about, ignoringTriggersSQL, func(v []string) {
		d.warn(about, "trigger "+v[0]+" of table "+v[1]+" fires BEFORE UPDATE, and its function "+v[2]+" returns NULL or OLD; where it does so for an UPDATE of group_id, "+then,
			"return NEW in function "+v[2]+", or DROP TRIGGER "+v[0]+" ON "+v[1])
	}, events.Quoted, "16", `\mreturn\s+(null|old)\M`)
	d.query(ctx, about, replacingRulesSQL, func(v []string) {
		d.problem(about, "rule "+v[0]+" of table "+events.Quoted+" replaces an UPDATE; "+then, "DROP RULE "+v[0]+" ON "+events.Quoted)
	}, events.Quoted, "2")
}

const referencesSQL = `
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(k.conname), (k.confdeltype IN ('a', 'r'))::text,
       (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY u.n)
        FROM unnest(k.conkey) WITH ORDINALITY u(column_number, n) JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.column_number),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = k.conrelid AND i.indisvalid AND i.indpred IS NULL
                 AND (string_to_array(i.indkey::text, ' ')::int2[])[1:cardinality(k.conkey)] @> k.conkey)::text
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.confrelid = $1::regclass
ORDER BY 1, 2`

// references adds foreign keys of other tables that prevent deletes or make them slow. A batch with an event that a row refers to waits.
func (d *diagnosis) references(ctx context.Context, events catalog.Table) {
	const about = "foreign keys"
	if d.state != nil && d.state.Tables.Marks {
		return
	}
	d.query(ctx, about, referencesSQL, func(v []string) {
		table, constraint, prevents, columns, indexed := v[0], v[1], v[2] == "true", v[3], v[4] == "true"
		if prevents {
			d.warn(about, "constraint "+constraint+" of table "+table+" prevents the delete of delivered events",
				"ALTER TABLE "+table+" DROP CONSTRAINT "+constraint+" (or make it ON DELETE SET NULL, or CASCADE)")
		}
		if !indexed {
			d.warn(about, "table "+table+" references table "+events.Quoted+" by columns without an index; each deleted event reads all of it",
				"CREATE INDEX ON "+table+" ("+columns+")")
		}
	}, events.Quoted)
}
