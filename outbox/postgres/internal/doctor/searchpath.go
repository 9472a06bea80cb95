package doctor

import (
	"context"

	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// schemasOnPathSQL runs with the session's own search path: see pg.SearchPath.
const schemasOnPathSQL = `
SELECT pg_catalog.current_schemas(false)::pg_catalog.text`

// A superuser may do anything anyway, and the owner of the buffer table anything with it.
const creatorsSQL = `
SELECT quote_ident(n.nspname), coalesce(quote_ident(r.rolname), 'PUBLIC')
FROM pg_namespace n CROSS JOIN LATERAL aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
     LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE n.nspname = ANY ($1::name[]) AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  AND NOT coalesce(r.rolsuper, false) AND r.rolname IS DISTINCT FROM current_user
  AND a.grantee <> (SELECT relowner FROM pg_class WHERE oid = $2::regclass)
ORDER BY 1, 2`

// searchPath adds the schemas of the search path in which others may create what source.project would call.
func (d *diagnosis) searchPath(ctx context.Context, events catalog.Table) {
	const about = "search_path"
	schemas := ""
	err := d.DB.RoundTrip(ctx, []pg.Step{d.DB.UserTx(d.DB.StatementTimeout), {SQL: schemasOnPathSQL, Row: func(v [][]byte) error {
		schemas = string(v[0])
		return nil
	}}})
	if d.failed(about, err) {
		return
	}
	found := 0
	answered := d.query(ctx, about, creatorsSQL, func(v []string) {
		found++
		d.warn(about, v[1]+" may create objects in schema "+v[0]+", which is in the search path; source.project could call them; the relay's own statements name their schemas, and run and migrate refuse relay objects of other owners",
			"REVOKE CREATE ON SCHEMA "+v[0]+" FROM "+v[1])
	}, schemas, events.Quoted)
	if answered && found == 0 {
		d.ok(about, "nobody else may create objects in its schemas")
	}
	if found > 0 && d.state != nil && d.state.Custom != nil {
		d.unknownCalls(ctx, events)
	}
}

// unknownCalls adds that nobody knows whether source.project calls what another role made.
func (d *diagnosis) unknownCalls(ctx context.Context, events catalog.Table) {
	const about = "projection"
	unknown, err := d.state.Custom.UnknownCalls(ctx, events.Quoted)
	if d.failed(about, err) || unknown == nil {
		return
	}
	database := ""
	if !d.query(ctx, about, "SELECT quote_ident(current_database())", func(v []string) { database = v[0] }) {
		return
	}
	d.warn(about, "nobody can tell whether source.project calls objects of other roles, because the relay cannot make a temporary view: "+unknown.Error(),
		"GRANT TEMPORARY ON DATABASE "+database+" TO "+pg.Quote(events.Role)+", or REVOKE what the line about search_path names")
}
