package custom

import (
	"context"
	"regexp"
	"strings"

	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// A projection is resolved by the session's own search path, so a role that may create objects in one of its schemas could have it call functions of that role:
// to_jsonb(orders) of public is preferred to the polymorphic one of pg_catalog. The server says what the statement calls, without running or
// planning it: it records the dependencies of a view, which is rolled back.
const (
	viewHead = "CREATE TEMPORARY VIEW relay_projection AS SELECT 1 AS one FROM (\n"
	viewTail = "\n) projected"

	// What a projection names, without a referer, and what that uses: the queries of views, the policies of tables, the checks of domains, the functions
	// of operators and aggregates, and what SQL functions call whose body is parsed.
	reachedSQL = `
WITH RECURSIVE searched AS MATERIALIZED (
  SELECT oid FROM pg_namespace WHERE nspname = ANY (current_setting('relay.searched')::name[])
), objects(class, oid, name, owner, schema, runs) AS NOT MATERIALIZED (
  SELECT 'pg_proc'::regclass::oid, oid, proname, proowner, pronamespace, true FROM pg_proc
  UNION ALL SELECT 'pg_operator'::regclass, oid, oprname, oprowner, oprnamespace, true FROM pg_operator
  UNION ALL SELECT 'pg_type'::regclass, oid, typname, typowner, typnamespace, typtype = 'd' FROM pg_type
  UNION ALL SELECT 'pg_class'::regclass, oid, relname, relowner, relnamespace, relkind IN ('v', 'f') OR relrowsecurity
            FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
), reached(class, oid, owner, referer) AS (
  SELECT 'pg_rewrite'::regclass::oid, oid, NULL::oid, NULL::oid FROM pg_rewrite WHERE ev_class = 'pg_temp.relay_projection'::regclass
  UNION
  SELECT next.class, next.oid, coalesce(o.owner, r.owner), r.owner
  FROM reached r CROSS JOIN LATERAL (
         SELECT refclassid, refobjid FROM pg_depend WHERE classid = r.class AND objid = r.oid AND deptype = 'n' AND r.class <> 'pg_class'::regclass
         UNION ALL SELECT 'pg_rewrite'::regclass, w.oid FROM pg_rewrite w WHERE r.class = 'pg_class'::regclass AND ev_class = r.oid AND ev_type = '1'
                     AND ev_class <> 'pg_temp.relay_projection'::regclass -- a view's rule names the view up to PostgreSQL 15
         UNION ALL SELECT 'pg_policy'::regclass, p.oid FROM pg_policy p WHERE r.class = 'pg_class'::regclass AND polrelid = r.oid
         UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c WHERE r.class = 'pg_type'::regclass AND contypid = r.oid
         UNION ALL SELECT 'pg_type'::regclass, a.atttypid FROM pg_type y JOIN pg_attribute a ON a.attrelid = y.typrelid -- of a composite type
                     WHERE r.class = 'pg_type'::regclass AND y.oid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
         UNION ALL SELECT 'pg_type'::regclass, y.typelem FROM pg_type y WHERE r.class = 'pg_type'::regclass AND y.oid = r.oid AND y.typelem <> 0
       ) next(class, oid)
       LEFT JOIN objects o ON o.class = next.class AND o.oid = next.oid
)`

	// An object that has a name of its own was meant, and so was what its owner's own objects use. Only those are looked for that share their name
	// with another owner's, in the search path, in pg_catalog, or in their own schema: there one name may mean several functions or operators, or a
	// function and a type. Trusted are superusers, the relay's role and those that it is a member of, and the owners of database, event table and its
	// schema. The policies of a table, and the checks of a domain, run with the relay's rights as well.
	callsSQL = reachedSQL + `, trusted AS (
  SELECT r.oid FROM pg_roles r, pg_roles me
  WHERE me.rolname = current_user AND (r.rolsuper OR r.oid = me.oid OR NOT me.rolsuper AND pg_has_role(me.oid, r.oid, 'MEMBER'))
  UNION SELECT datdba FROM pg_database WHERE datname = current_database()
  UNION SELECT relowner FROM pg_class WHERE oid = $1::regclass
), called AS (
  SELECT o.*, r.referer IS NULL AS named, EXISTS (
           SELECT FROM objects other
           WHERE other.class IN (o.class, CASE o.class WHEN 'pg_proc'::regclass THEN 'pg_type'::regclass END)
             AND other.name = o.name AND other.owner <> o.owner AND other.schema = o.schema
         ) AS overloads, EXISTS (
           SELECT FROM objects other
           WHERE other.class IN (o.class, CASE o.class WHEN 'pg_proc'::regclass THEN 'pg_type'::regclass END)
             AND other.name = o.name AND other.owner <> o.owner AND other.schema IN (SELECT s.oid FROM searched s)
         ) AS shadows
  FROM reached r JOIN objects o ON o.class = r.class AND o.oid = r.oid
  WHERE r.referer IS NULL OR r.referer <> o.owner AND r.class IN ('pg_proc'::regclass, 'pg_operator'::regclass)
)
SELECT DISTINCT pg_describe_object(class, c.oid, 0), quote_ident(pg_get_userbyid(owner)), nspname,
       CASE WHEN class = 'pg_operator'::regclass OR overloads OR NOT named THEN '' ELSE name END, (overloads OR NOT named)::text
FROM called c JOIN pg_namespace n ON n.oid = schema
WHERE (overloads OR shadows) AND owner NOT IN (SELECT oid FROM trusted)
  AND NOT (owner = nspowner AND n.oid = (SELECT relnamespace FROM pg_class WHERE oid = $1::regclass))
ORDER BY 1`

	// searchedSQL runs before the view is made, so that a temporary schema is among them only if the session had one.
	searchedSQL = "SELECT pg_catalog.set_config('relay.searched', pg_catalog.current_schemas(true)::pg_catalog.text, true)"
)

// checkCalls adds the functions, operators and views of other roles that a projection would run, or could, and returns why nobody knows them: the role
// may make no temporary view.
func checkCalls(ctx context.Context, db *pg.DB, project, table string, missing *catalog.Findings) (unknown, err error) {
	var found [][5]string
	var bodies []body
	for _, text := range []string{projection.Trim(project), project} { // Trim does not know the quotes of PostgreSQL alone
		for range 2 { // two that have one character between them
			text = parameter.ReplaceAllString(text, "${1}NULL::pg_catalog.uuid${2}")
		}
		if found, bodies, err = callsOf(ctx, db, viewHead+text+viewTail, table); pg.Code(err) != codeSyntax {
			break
		}
	}
	switch {
	case pg.Code(err) == pg.CodeNoPrivilege, err != nil && pg.IsStatementError(err) && !isRefusedView(err):
		return err, nil
	case err != nil && pg.IsStatementError(err) && writing.MatchString(project):
		missing.Add(writesText, "make it a SELECT")
		return nil, nil
	case err != nil && pg.IsStatementError(err):
		missing.Add("nobody can tell what source.project calls, because it cannot be the text of a view: "+err.Error(), "make it a single SELECT")
		return nil, nil
	case err != nil:
		return nil, err
	}
	for _, f := range found {
		if names(project, f[2], f[3]) {
			continue
		}
		fix := "name what is meant with its schema, such as pg_catalog.to_jsonb, or make the owner of the event table its owner; and see that " + f[1] + " may create nothing in the search path"
		if f[4] == "true" {
			fix = "drop it, or make the owner of the event table its owner if it is meant; and see that " + f[1] + " may create nothing in schema " + pg.Quote(f[2])
		}
		missing.Add("source.project would run "+f[0]+", which belongs to "+f[1]+" and has the name of another owner's, with the relay's rights", fix)
	}
	for _, b := range bodies {
		b.addTo(missing)
	}
	return nil, nil
}

// names reports whether a projection names an object with its schema, so that no other can be meant. The name is empty if its schema has others of that
// name.
func names(project, schema, name string) bool {
	if name == "" {
		return false
	}
	qualified, err := regexp.Compile(`(?i)(^|[^\pL\pN_$"])"?` + regexp.QuoteMeta(schema) + `"?\s*\.\s*"?` + regexp.QuoteMeta(name) + `($|[^\pL\pN_$])`)
	if err != nil {
		return false
	}
	bare, err := regexp.Compile(`(?i)(^|[^\pL\pN_$".])"?` + regexp.QuoteMeta(name) + `("?)\s*(\(|$|[^\pL\pN_$.])`)
	return err == nil && qualified.MatchString(project) && !bare.MatchString(qualified.ReplaceAllString(project, " "))
}

// UnknownCalls returns why nobody knows what the projection calls; nil if that is known.
func (t *Table) UnknownCalls(ctx context.Context, table string) (unknown, err error) {
	return checkCalls(ctx, t.Base.DB, t.project, table, &catalog.Findings{})
}

// callsOf returns the objects that callsSQL finds in a view, and their owners, and what bodiesSQL finds.
func callsOf(ctx context.Context, db *pg.DB, view, table string) (found [][5]string, bodies []body, err error) {
	err = db.RoundTrip(ctx, []pg.Step{
		pg.Begin,
		db.UserTx(db.StatementTimeout),
		{SQL: searchedSQL},
		{SQL: view},
		pg.SetLocal("search_path", pg.SearchPath),
		{SQL: callsSQL, Args: []string{table}, Row: func(v [][]byte) error {
			found = append(found, [5]string{string(v[0]), string(v[1]), string(v[2]), string(v[3]), string(v[4])})
			return nil
		}},
		{SQL: bodiesSQL, Args: []string{table}, Row: func(v [][]byte) error {
			bodies = append(bodies, body{function: string(v[0]), role: string(v[1]), planted: string(v[2]), privilege: string(v[3]), grantee: string(v[4])})
			return nil
		}},
		rollback,
	})
	return found, bodies, err
}

const codeSyntax = "42601"

// plantersSQL finds a role that could make, at any time, what the projection of a superuser calls: it may create in a schema that is searched, or make
// one that is ("$user" by default). It has that privilege itself, or as a member of a role that has it: one that does not inherit may SET ROLE. What
// everybody may do, a role may that is made later. Neither a read-only transaction nor its rollback keeps a superuser's function from running programs.
const plantersSQL = `
WITH granted AS (
  SELECT 1 AS nr, 'CREATE ON SCHEMA ' || quote_ident(nspname) AS what, a.grantee
  FROM pg_namespace, aclexplode(coalesce(nspacl, acldefault('n', nspowner))) a
  WHERE a.privilege_type = 'CREATE' AND nspname = ANY (current_setting('relay.searched')::name[])
  UNION ALL
  SELECT 2, 'CREATE ON DATABASE ' || quote_ident(datname), a.grantee
  FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) a
  WHERE a.privilege_type = 'CREATE' AND datname = current_database()
)
SELECT quote_ident(me.rolname), who, g.what, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END
FROM pg_roles me, granted g, LATERAL (
  SELECT 'every role' AS who WHERE g.grantee = 0
  UNION ALL
  SELECT 'role ' || quote_ident(r.rolname) FROM pg_roles r
  WHERE g.grantee <> 0 AND pg_has_role(r.oid, g.grantee, 'MEMBER') AND r.rolcanlogin AND NOT r.rolsuper
    AND r.oid NOT IN (SELECT datdba FROM pg_database WHERE datname = current_database() UNION SELECT relowner FROM pg_class WHERE oid = $1::regclass)
) planters
WHERE me.rolname = current_user AND me.rolsuper
ORDER BY g.nr, g.what, g.grantee, who LIMIT 1`

// checkPlanters adds that other roles may create what the projection of a superuser calls.
func checkPlanters(ctx context.Context, db *pg.DB, table string, missing *catalog.Findings) error {
	return db.RoundTrip(ctx, []pg.Step{
		pg.Begin,
		db.UserTx(db.StatementTimeout),
		{SQL: searchedSQL},
		pg.SetLocal("search_path", pg.SearchPath),
		{SQL: plantersSQL, Args: []string{table}, Row: func(v [][]byte) error {
			super, who, privilege, grantee := string(v[0]), string(v[1]), string(v[2]), string(v[3])
			missing.Add("source.project runs with the rights of superuser "+super+", and "+who+" may create in its search path what it calls: "+grantee+" has "+privilege,
				"let the relay use a role that is no superuser, or REVOKE "+privilege+" FROM "+grantee)
			return nil
		}},
		rollback,
	})
}

// parameter matches $1 where it is no part of a name.
var parameter = regexp.MustCompile(`(^|[^\pL\pN_$])\$1($|[^0-9])`)

// writing matches a statement that writes, which a view does not take.
var writing = regexp.MustCompile(`(?i)\b(INSERT|UPDATE|DELETE|MERGE)\b`)

const writesText = "source.project writes (INSERT, UPDATE, DELETE or MERGE), and is run where nothing can be written: the relay deletes events itself"

// isRefusedView reports whether the server has something against the text of a view, and not against views: an event trigger may raise any code.
func isRefusedView(err error) bool {
	c := pg.Code(err)
	return strings.HasPrefix(c, "42") || strings.HasPrefix(c, "0A")
}
