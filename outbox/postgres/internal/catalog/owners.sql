-- Objects whose owners are not trusted. $1: the relay's relations; $2: its functions; $3: those of $1 whose
-- triggers, rules, defaults, policies, constraints, indexes and statistics are examined; $4: relations whose owners are trusted.
-- A superuser counts as a member of every role, so only another role's memberships say anything.
WITH trusted AS (
  SELECT r.oid FROM pg_roles r, pg_roles me
  WHERE me.rolname = current_user AND (r.rolsuper OR r.oid = me.oid OR NOT me.rolsuper AND pg_has_role(me.oid, r.oid, 'MEMBER'))
  UNION SELECT datdba FROM pg_database WHERE datname = current_database()
  UNION SELECT c.relowner FROM unnest($4::text[]) name JOIN pg_class c ON c.oid = to_regclass(name)
), relations AS (
  SELECT c.oid, name, c.relkind, c.relowner, n.nspowner
  FROM unnest($1::text[]) name JOIN pg_class c ON c.oid = to_regclass(name) JOIN pg_namespace n ON n.oid = c.relnamespace
), code(class, object, relation) AS (
  SELECT 'pg_trigger'::regclass, oid, tgrelid FROM pg_trigger
  UNION ALL SELECT 'pg_rewrite'::regclass, oid, ev_class FROM pg_rewrite
  UNION ALL SELECT 'pg_attrdef'::regclass, oid, adrelid FROM pg_attrdef
  UNION ALL SELECT 'pg_policy'::regclass, oid, polrelid FROM pg_policy
  UNION ALL SELECT 'pg_constraint'::regclass, oid, conrelid FROM pg_constraint
  UNION ALL SELECT 'pg_class'::regclass, indexrelid, indrelid FROM pg_index
  UNION ALL SELECT 'pg_statistic_ext'::regclass, oid, stxrelid FROM pg_statistic_ext
), found(rank, object, verb, owner, schema_owner) AS (
  SELECT 1, CASE relkind WHEN 'S' THEN 'sequence ' WHEN 'v' THEN 'view ' WHEN 'm' THEN 'materialized view ' WHEN 'f' THEN 'foreign table ' ELSE 'table ' END || name,
         'belongs', relowner, nspowner
  FROM relations
  UNION ALL
  SELECT 2, 'function ' || p.oid::regprocedure::text, 'belongs', p.proowner, n.nspowner
  FROM unnest($2::text[]) name JOIN pg_proc p ON p.oid = to_regprocedure(name || '()') JOIN pg_namespace n ON n.oid = p.pronamespace
  UNION ALL
  SELECT 3, pg_describe_object(code.class, code.object, 0), 'calls ' || pg_describe_object(d.refclassid, d.refobjid, 0) || ', which belongs',
         coalesce(p.proowner, o.oprowner, t.typowner), r.nspowner
  FROM unnest($3::text[]) guarded JOIN relations r ON r.name = guarded
       JOIN code ON code.relation = r.oid
       JOIN pg_depend d ON d.classid = code.class AND d.objid = code.object
       LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
       LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
       LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
)
SELECT DISTINCT rank::text, object, verb, quote_ident(pg_get_userbyid(owner)), quote_ident(current_user)
FROM found
WHERE owner IS NOT NULL AND owner <> schema_owner AND owner NOT IN (SELECT oid FROM trusted)
ORDER BY 1, 2, 3
