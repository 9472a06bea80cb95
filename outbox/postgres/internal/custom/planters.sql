-- Roles that could have a projection run their code. $1: the event table; $2: the schemas of the search path; $3: the text of the projection;
-- $4 and $5: the part of it that names schemas, without and with string literals. It runs with pg.SearchPath.
WITH RECURSIVE event AS (
  SELECT c.relowner, n.nspowner, n.oid AS schema FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::regclass
), own(role) AS ( -- these can do as much without the projection
  SELECT oid FROM pg_roles WHERE rolsuper OR rolname = current_user
  UNION SELECT datdba FROM pg_database WHERE datname = current_database()
  UNION SELECT unnest(ARRAY[relowner, nspowner]) FROM event
), trusted AS MATERIALIZED ( -- those, roles that may become one of them, and roles that the relay's is a member of
  SELECT r.oid FROM pg_roles r, pg_roles me
  WHERE me.rolname = current_user
    AND (NOT me.rolsuper AND pg_has_role(me.oid, r.oid, 'MEMBER') OR EXISTS (SELECT FROM own WHERE pg_has_role(r.oid, own.role, 'MEMBER')))
), project(nr, text) AS ( -- the server may lower the letters of names by the rules of C, or by those of the database
  SELECT nr, lower(text) || ' ' || lower(text COLLATE "C") FROM (VALUES (0, $3), (1, $4), (2, $5)) v(nr, text)
), words AS MATERIALIZED ( -- the text has a name only between other characters than those of names, or escapes it
  SELECT nr, text, regexp_split_to_array(text, '[^\w$]+') AS names FROM project
), named(nr, schema) AS MATERIALIZED (
  SELECT nr, n.oid FROM words JOIN pg_namespace n ON nr > 0
  WHERE n.oid = (SELECT schema FROM event) OR nspname = ANY ($2::name[])
     OR lower(nspname) = ANY (names)
     OR nspname ~ '[^\w$]' AND strpos(text, lower(replace(nspname, '"', '""'))) > 0
     OR $3 ~* 'u&"' AND nspname !~ '^pg_'
), calls(users) AS MATERIALIZED ( -- whether the projection may call a function that is not PostgreSQL's own, which may run a literal
  SELECT EXISTS (
    SELECT FROM words JOIN named ON words.nr = 0 AND named.nr = 1 JOIN pg_proc ON pronamespace = schema
    WHERE pg_proc.oid >= 16384 AND (lower(proname) = ANY (names) OR proname ~ '[^\w$]' AND strpos(text, lower(replace(proname, '"', '""'))) > 0))
), searched AS MATERIALIZED (
  SELECT oid, nspowner, nspacl FROM pg_namespace WHERE oid IN (SELECT schema FROM named, calls WHERE nr = 1 OR users)
), objects(class, oid, owner, schema) AS NOT MATERIALIZED (
  SELECT 'pg_proc'::regclass::oid, oid, proowner, pronamespace FROM pg_proc
  UNION ALL SELECT 'pg_operator'::regclass, oid, oprowner, oprnamespace FROM pg_operator
  UNION ALL SELECT 'pg_type'::regclass, y.oid, typowner, typnamespace FROM pg_type y LEFT JOIN pg_class c ON c.oid = typrelid
            WHERE typelem = 0 AND typtype <> 'm' AND coalesce(c.relkind, 'c') = 'c' -- no array, no multirange, and no row of a table: these run nothing of their own
  UNION ALL SELECT 'pg_class'::regclass, oid, relowner, relnamespace FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
), reached(class, oid) AS ( -- what is there, and what that uses: views, policies, constraints, indexes, statistics, types of columns, parsed bodies, and so on
  -- Only superusers make what is not followed: base types, operator classes, support functions and estimators, access methods, languages, transforms, conversions,
  -- wrappers of foreign data, text search parsers and templates, and event triggers. Collations, text search dictionaries, foreign servers and bounds are data.
  SELECT class, oid FROM objects WHERE schema IN (SELECT oid FROM searched) AND oid >= 16384 -- those of initdb use each other only
  UNION
  SELECT next.class, next.oid FROM reached r CROSS JOIN LATERAL (
    SELECT refclassid, refobjid FROM pg_depend
    WHERE classid = r.class AND objid = r.oid AND refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass, 'pg_class'::regclass)
    UNION ALL SELECT 'pg_rewrite'::regclass, w.oid FROM pg_rewrite w WHERE r.class = 'pg_class'::regclass AND ev_class = r.oid AND ev_type = '1'
    UNION ALL SELECT 'pg_policy'::regclass, p.oid FROM pg_policy p WHERE r.class = 'pg_class'::regclass AND polrelid = r.oid
    UNION ALL SELECT 'pg_class'::regclass, inhrelid FROM pg_inherits WHERE r.class = 'pg_class'::regclass AND inhparent = r.oid
    UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM pg_index WHERE r.class = 'pg_class'::regclass AND indrelid = r.oid
    UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid FROM pg_statistic_ext s WHERE r.class = 'pg_class'::regclass AND stxrelid = r.oid
    UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c WHERE r.class = 'pg_class'::regclass AND conrelid = r.oid AND contype = 'c'
    UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c WHERE r.class = 'pg_type'::regclass AND contypid = r.oid
    -- the planner replaces an operator by these
    UNION ALL SELECT 'pg_operator'::regclass, unnest(ARRAY[oprcom, oprnegate]) FROM pg_operator o WHERE r.class = 'pg_operator'::regclass AND o.oid = r.oid
    UNION ALL SELECT 'pg_class'::regclass, typrelid FROM pg_type y WHERE r.class = 'pg_type'::regclass AND y.oid = r.oid
    -- casts from these types
    UNION ALL SELECT 'pg_type'::regclass, reltype FROM pg_class c WHERE r.class = 'pg_class'::regclass AND c.oid = r.oid
    UNION ALL SELECT 'pg_type'::regclass, typarray FROM pg_type y WHERE r.class = 'pg_type'::regclass AND y.oid = r.oid
    UNION ALL SELECT 'pg_type'::regclass, rngmultitypid FROM pg_range WHERE r.class = 'pg_type'::regclass AND rngtypid = r.oid
  ) next(class, oid)
  WHERE next.oid <> 0 -- for none, such as the array of an array
), types AS MATERIALIZED (
  SELECT oid FROM reached WHERE class = 'pg_type'::regclass UNION SELECT oid FROM pg_type WHERE oid < 16384
), dangers(nr, by, class, oid, holder) AS (
  SELECT 1, 'OWNER', 'pg_namespace'::regclass::oid, oid, nspowner FROM searched
  UNION ALL
  SELECT 2, 'CREATE', 'pg_namespace'::regclass, oid, a.grantee FROM searched, aclexplode(nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> nspowner
  UNION
  SELECT 3, 'OBJECT', class, oid, owner FROM objects WHERE schema IN (SELECT oid FROM searched)
  UNION
  SELECT 3, 'OBJECT', class, oid, owner FROM objects JOIN reached USING (class, oid)
  UNION -- the function of a cast, to json for example: casts are in no schema
  SELECT 3, 'OBJECT', o.class, o.oid, o.owner
  FROM pg_cast c JOIN objects o ON o.class = 'pg_proc'::regclass AND o.oid = castfunc
  WHERE castsource IN (SELECT oid FROM types) AND casttarget IN (SELECT oid FROM types)
), planters AS ( -- who is behind a holder: a role that no other may become, and that cannot log in, creates nothing any more, but what it made stays
  SELECT DISTINCT ON (holder, by) holder, by, who
  FROM (SELECT DISTINCT holder, by FROM dangers) h CROSS JOIN LATERAL (
    SELECT 1, 'every role' WHERE holder = 0
    UNION ALL
    SELECT CASE r.oid WHEN holder THEN 2 ELSE 3 END, 'role ' || quote_ident(r.rolname) FROM pg_roles r
    WHERE r.oid NOT IN (SELECT oid FROM trusted)
      AND (r.oid = holder AND by = 'OBJECT' OR r.rolcanlogin AND holder <> 0 AND pg_has_role(r.oid, holder, 'MEMBER'))
  ) p(rank, who)
  ORDER BY holder, by, rank, who
)
SELECT by, i.type, i.identity, CASE holder WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(holder)) END, who, quote_ident(pg_get_userbyid(relowner))
FROM dangers JOIN planters USING (holder, by), event, pg_identify_object(class, oid, 0) i
ORDER BY nr, i.type, i.identity, 4
LIMIT 10
