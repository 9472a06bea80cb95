package doctor

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
)

const (
	// Bits of tgtype: 1 is FOR EACH ROW, 2 BEFORE, 8 DELETE. On DELETE, NEW is NULL.
	deleteTriggersSQL = `
SELECT quote_ident(t.tgname), t.tgrelid::regclass::text, p.oid::regprocedure::text
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid IN (SELECT $1::regclass UNION SELECT relid FROM pg_partition_tree($1::regclass))
  AND t.tgtype & 11 = 11 AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal AND p.prosrc ~* '\mreturn\s+(null|new)\M'
ORDER BY 2, 1`

	deleteRulesSQL = `
SELECT quote_ident(rulename) FROM pg_rewrite
WHERE ev_class = $1::regclass AND ev_type = '4' AND is_instead AND ev_enabled IN ('O', 'A')
ORDER BY 1`
)

// deletes adds what may make a DELETE of a delivered event do nothing.
func (d *diagnosis) deletes(ctx context.Context, events catalog.Table) {
	const (
		about = "deletes"
		then  = "delivered events stay in the table, and the pipeline stalls"
	)
	d.query(ctx, about, deleteTriggersSQL, func(v []string) {
		d.warn(about, "trigger "+v[0]+" of table "+v[1]+" fires BEFORE DELETE, and its function "+v[2]+" returns NULL or NEW; where it does so for a DELETE, "+then,
			"return OLD in function "+v[2]+", or DROP TRIGGER "+v[0]+" ON "+v[1])
	}, events.Quoted)
	d.query(ctx, about, deleteRulesSQL, func(v []string) {
		d.problem(about, "rule "+v[0]+" of table "+events.Quoted+" replaces a DELETE; "+then, "DROP RULE "+v[0]+" ON "+events.Quoted)
	}, events.Quoted)
}
