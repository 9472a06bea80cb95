-- Where the search path finds the name $1, and where it has another owner: a role that may create in a schema of the path can plant a
-- table there, before the one that is meant. A first one of the relay's role, a superuser or the owner of the database is meant.
-- Temporary tables, which come first where the path does not name pg_temp, are not found. It runs with the session's own path: see pg.SearchPath.
WITH found AS (
  SELECT path.nr, n.nspname AS schema, c.relowner AS owner,
         r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) CURRENT_USER OR r.oid OPERATOR(pg_catalog.=) d.datdba AS trusted
  FROM pg_catalog.unnest(pg_catalog.current_schemas(true)) WITH ORDINALITY path(schema, nr)
       JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) path.schema
       JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid
       JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) c.relowner
       JOIN pg_catalog.pg_database d ON d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
  WHERE c.relname OPERATOR(pg_catalog.=) $1::pg_catalog.name AND c.relpersistence OPERATOR(pg_catalog.<>) 't'
), first AS (
  SELECT nr, schema, owner, trusted FROM found ORDER BY nr LIMIT 1
), other AS (
  SELECT found.schema, found.owner FROM found, first
  WHERE NOT first.trusted AND found.owner OPERATOR(pg_catalog.<>) first.owner
  ORDER BY found.nr LIMIT 1
)
SELECT first.schema::pg_catalog.text, pg_catalog.quote_ident(first.schema::pg_catalog.text), pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(first.owner)::pg_catalog.text),
       coalesce(other.schema, '')::pg_catalog.text, coalesce(pg_catalog.quote_ident(other.schema::pg_catalog.text), ''),
       coalesce(pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(other.owner)::pg_catalog.text), '')
FROM first LEFT JOIN other ON true
