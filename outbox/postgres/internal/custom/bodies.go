package custom

import (
	"github.com/outboxrelay/relay/outbox/postgres/internal/catalog"
)

// A function's body is a text: the server looks its names up in the search path each time it runs, and nobody knows what it calls. (A body of RETURN or
// BEGIN ATOMIC was parsed when it was made, and reachedSQL follows it.) So bodiesSQL finds, for each function that a projection reaches, a role that may
// create objects in a schema of that path, or that owns one there under the name of another owner's, because it stays when the role loses the privilege.
// Not counted are superusers, the relay's role, the owners of the function, the event table, its schema and the database, and members of these roles,
// who can do as much without it. A role that may create schemas can create the one that is named as the relay's role: it is in the path by default.
const bodiesSQL = reachedSQL + `, own AS (
  SELECT oid FROM pg_roles WHERE rolname = current_user
  UNION SELECT datdba FROM pg_database WHERE datname = current_database()
  UNION SELECT unnest(ARRAY[c.relowner, n.nspowner]) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::regclass
), bodies AS (
  SELECT DISTINCT p.oid, p.proowner,
         (SELECT regexp_split_to_array(lower(replace(substr(s, 13), '"', '')), '\s*,\s*') FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%') AS path
  FROM reached r JOIN pg_proc p ON r.class = 'pg_proc'::regclass AND p.oid = r.oid JOIN pg_language l ON l.oid = p.prolang
  WHERE l.lanname NOT IN ('internal', 'c') AND p.prosqlbody IS NULL AND p.prokind <> 'a'
), looked AS MATERIALIZED (
  SELECT b.oid, b.proowner, n.oid AS schema, n.nspname, n.nspowner, n.nspacl
  FROM bodies b JOIN pg_namespace n ON lower(n.nspname) = ANY (b.path)
       OR (b.path IS NULL OR '$user' = ANY (b.path)) AND n.oid IN (SELECT oid FROM searched)
), dangers AS (
  SELECT l.oid, l.proowner, 1 AS nr, 'CREATE ON SCHEMA ' || quote_ident(nspname) AS what, a.grantee
  FROM looked l, aclexplode(coalesce(nspacl, acldefault('n', nspowner))) a
  WHERE a.privilege_type = 'CREATE'
  UNION ALL
  SELECT b.oid, b.proowner, 2, 'CREATE ON DATABASE ' || quote_ident(datname), a.grantee
  FROM bodies b, pg_database d, aclexplode(coalesce(datacl, acldefault('d', datdba))) a
  WHERE (b.path IS NULL OR '$user' = ANY (b.path)) AND a.privilege_type = 'CREATE' AND datname = current_database()
  UNION ALL
  SELECT l.oid, l.proowner, 3, pg_describe_object(o.class, o.oid, 0), o.owner
  FROM looked l JOIN objects o ON o.schema = l.schema AND o.runs
  WHERE EXISTS (
    SELECT FROM objects other
    WHERE other.class IN (o.class, CASE o.class WHEN 'pg_proc'::regclass THEN 'pg_type'::regclass END)
      AND other.name = o.name AND other.owner <> o.owner AND other.schema IN (SELECT schema FROM looked UNION SELECT 'pg_catalog'::regnamespace)
  )
)
SELECT DISTINCT ON (d.oid) d.oid::regprocedure::text, quote_ident(r.rolname), CASE nr WHEN 3 THEN what ELSE '' END, what,
       CASE d.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(d.grantee)) END
FROM dangers d JOIN pg_roles r ON NOT r.rolsuper AND CASE nr
       WHEN 3 THEN r.oid = d.grantee AND NOT (SELECT NOT rolsuper AND pg_has_role(oid, r.oid, 'MEMBER') FROM pg_roles WHERE rolname = current_user)
       ELSE r.rolcanlogin AND has_database_privilege(r.oid, current_database(), 'CONNECT') AND (d.grantee = 0 OR pg_has_role(r.oid, d.grantee, 'MEMBER')) END
WHERE NOT pg_has_role(r.oid, d.proowner, 'MEMBER') AND NOT EXISTS (SELECT FROM own WHERE pg_has_role(r.oid, own.oid, 'MEMBER'))
ORDER BY d.oid, nr, what, d.grantee, r.rolname`

// body is a function that may run what another role made, or may make.
type body struct {
	function, role string
	planted        string // what the role made; "" if it may make something
	privilege      string // what allows that, such as CREATE ON SCHEMA public
	grantee        string // the role that has the privilege: the same, one that it is a member of, or PUBLIC
}

func (b body) addTo(missing *catalog.Findings) {
	text := "source.project runs function " + b.function + ", whose body looks names up in its search path, and "
	fix := ", or write the schemas of all names in the body and ALTER FUNCTION " + b.function + " SET search_path = pg_catalog, pg_temp"
	if b.planted != "" {
		missing.Add(text+"there is "+b.planted+", which belongs to "+b.role+" and has the name of another owner's", "drop that"+fix)
		return
	}
	missing.Add(text+"role "+b.role+" may create objects there: "+b.grantee+" has "+b.privilege, "REVOKE "+b.privilege+" FROM "+b.grantee+fix)
}
