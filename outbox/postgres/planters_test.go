package postgres_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// all of it, as SQL: the statements that a fix names.
var (
	fixOfSchema = regexp.MustCompile(`^(REVOKE CREATE ON SCHEMA .+ FROM \S+|ALTER SCHEMA .+ OWNER TO \S+)$`)
	fixOfObject = regexp.MustCompile(`^(?:(DROP .*); or )?look at it(?: and,|;) if it is meant, (ALTER .* OWNER TO [^;\s]+)(?:; if it is another application's, .*)?$`)
)

// TestProjection_Creators: a projection is refused, as a superuser and as a role with few privileges, while a role that is not trusted could create what it
// calls. The error names the schema, that role and its privilege, and the fix works. Nobody else is refused.
func TestProjection_Creators(t *testing.T) {
	t.Parallel()
	const (
		content   = "to_jsonb(e)"
		elsewhere = "app.content(e.id)"
		toOther   = "GRANT {other} TO {shop}; ALTER ROLE {shop} NOINHERIT; "
	)
	for name, c := range map[string]struct {
		granted, payload string
		want             string // of the text; nothing: it is not refused
	}{
		"Privilege":        {"GRANT CREATE ON SCHEMA public TO {shop}", content, "schema public, and role {shop} can create there what it calls; it would run with the relay's rights: {shop} has CREATE ON SCHEMA public"},
		"Public":           {"GRANT CREATE ON SCHEMA public TO PUBLIC", content, "schema public, and every role can create there what it calls; it would run with the relay's rights: PUBLIC has CREATE ON SCHEMA public"},
		"Member":           {toOther + "GRANT CREATE ON SCHEMA public TO {other}", content, "role {shop} can create there what it calls; it would run with the relay's rights: {other} has CREATE ON SCHEMA public"},
		"Owner":            {"ALTER SCHEMA app OWNER TO {shop}; ALTER ROLE {relay} SET search_path = public, app; ALTER DATABASE {database} SET search_path = public, app", content, "schema app, which belongs to {shop}: role {shop} can create"},
		"OwnerRevoked":     {"ALTER SCHEMA app OWNER TO {shop}; REVOKE ALL ON SCHEMA app FROM {shop}; GRANT USAGE ON SCHEMA app TO PUBLIC", elsewhere, "schema app, which belongs to {shop}: role {shop} can create"},
		"MemberOfOwner":    {toOther + "ALTER SCHEMA app OWNER TO {other}", elsewhere, "schema app, which belongs to {other}: role {shop} can create"},
		"Named":            {"GRANT CREATE ON SCHEMA app TO {shop}", elsewhere, "{shop} has CREATE ON SCHEMA app"},
		"NamedUpper":       {"GRANT CREATE ON SCHEMA app TO {shop}", "APP . content(e.id)", "{shop} has CREATE ON SCHEMA app"},
		"NamedQuoted":      {"GRANT CREATE ON SCHEMA app TO {shop}", `"app".content(e.id)`, "{shop} has CREATE ON SCHEMA app"},
		"NamedComment":     {"GRANT CREATE ON SCHEMA app TO {shop}", "app/* */.content(e.id)", "{shop} has CREATE ON SCHEMA app"},
		"NamedEscaped":     {"GRANT CREATE ON SCHEMA app TO {shop}", `U&"\0061pp".content(e.id)`, "{shop} has CREATE ON SCHEMA app"},
		"NamedOperator":    {"GRANT CREATE ON SCHEMA app TO {shop}", "e.name OPERATOR(app.||) e.name", "{shop} has CREATE ON SCHEMA app"},
		"NamedWithBlank":   {`ALTER SCHEMA app RENAME TO "my ""app"; GRANT CREATE ON SCHEMA "my ""app" TO {shop}`, `"my ""app".content(e.id)`, `{shop} has CREATE ON SCHEMA "my ""app"`},
		"EventTable":       {"GRANT CREATE ON SCHEMA public TO {shop}; ALTER ROLE {relay} SET search_path = app; ALTER DATABASE {database} SET search_path = app", "'1'", "{shop} has CREATE ON SCHEMA public"},
		"NamedLines":       {"GRANT CREATE ON SCHEMA app TO {shop}", "\"app\"\n\t. content(e.id)", "{shop} has CREATE ON SCHEMA app"},
		"Words":            {"CREATE SCHEMA payload AUTHORIZATION {shop}; CREATE SCHEMA id AUTHORIZATION {shop}; GRANT CREATE ON SCHEMA app TO {shop}", "e.name AS app, '1'", ""},
		"WordsOfFunction":  {"CREATE SCHEMA payload AUTHORIZATION {shop}; CREATE FUNCTION public.own(text) RETURNS text LANGUAGE sql RETURN $1", "own('x') AS own, '1'", ""},
		"NotSearched":      {"GRANT CREATE ON SCHEMA app TO {shop}", content, ""},
		"NotNamed":         {"GRANT CREATE ON SCHEMA app TO {shop}", "to_jsonb('myapp.content'::text)", ""},
		"NewSchema":        {"GRANT ALL ON DATABASE {database} TO {shop}", content, ""}, // see TestProjection_FixedPath
		"NobodyIsMember":   {"GRANT CREATE ON SCHEMA public TO {other}", content, ""},
		"OwnerOfEvents":    {"GRANT CREATE ON SCHEMA public TO {owner}", content, ""},
		"MemberOfTheOwner": {"GRANT CREATE ON SCHEMA public TO {shop}; GRANT {owner} TO {shop}", content, ""},
		"OwnerOfDatabase":  {"GRANT CREATE ON SCHEMA public TO {shop}; ALTER DATABASE {database} OWNER TO {shop}", content, ""},
		"OwnerOfSchema":    {"ALTER SCHEMA public OWNER TO {shop}", content, ""},
		"Relay":            {"GRANT CREATE ON SCHEMA public TO {relay}", content, ""},
		"MemberOfRelay":    {"GRANT CREATE ON SCHEMA public TO {shop}; GRANT {relay} TO {shop}", content, ""},
		"GroupOfRelay":     {"GRANT CREATE ON SCHEMA public TO {other}; GRANT {other} TO {relay}", content, ""},
		"GroupOfBoth":      {"GRANT CREATE ON SCHEMA public TO {other}; GRANT {other} TO {relay}, {shop}", content, "can create there what it calls; it would run with the relay's rights: {other} has"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.as(t, "owner", "CREATE FUNCTION app.content(bigint) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RETURN to_jsonb($1); END $$")
			p.as(t, "", c.granted)
			roles := []string{"relay", "superuser"}
			if strings.HasSuffix(name, "Relay") { // that of the superuser is no such role
				roles = roles[:1]
			}
			fix := ""
			for _, role := range roles {
				found := p.refused(t, role, c.payload)
				if c.want == "" {
					if len(found) > 0 {
						t.Errorf("as %s: %+v", role, found)
					}
					continue
				}
				if len(found) != 1 || !strings.Contains(found[0].Text, p.named(c.want)) || !fixOfSchema.MatchString(found[0].Fix) {
					t.Fatalf("as %s: %+v, want %q", role, found, p.named(c.want))
				}
				b := p.open(t, p.urls[role], c.payload)
				if !slices.Contains(b.Diagnose(t.Context()), found[0]) {
					t.Errorf("as %s: doctor does not say %+v", role, found[0])
				}
				check(t, b.Close())
				fix = found[0].Fix
			}
			p.as(t, "", fix)
			for _, role := range roles {
				if again := p.refused(t, role, c.payload); len(again) > 0 && strings.Contains(again[0].Text, "looks names up") {
					t.Errorf("as %s, after %s: %+v", role, fix, again)
				}
			}
		})
	}
}

// TestProjection_Literals: a name in a string literal, such as a topic, is not the name of a schema, unless a function may run the literal. What only looks
// like a literal is none. What is refused here calls app.seen.
func TestProjection_Literals(t *testing.T) {
	t.Parallel()
	const ends = ", true, true, '')"
	for name, c := range map[string]struct {
		payload string
		refused bool
	}{
		"Topic":         {"to_jsonb('app.invoice.paid'::text)", false},
		"Doubled":       {"to_jsonb('it''s app'::text || 'app')", false},
		"Alone":         {"jsonb_build_object('app', 'app' /* it's */, 'name', e.name)", false},
		"Class":         {"to_jsonb('app.seers'::regclass::text)", false},
		"Call":          {"'app' || app.seen() || 'app'", true},
		"QueryToXML":    {"query_to_xml('SELECT app.seen()'" + ends, true},
		"TableToXML":    {"TABLE_TO_XML('app.seers'" + ends, true},
		"SchemaToXML":   {"schema_to_xml_and_xmlschema('app'" + ends, true},
		"Stat":          {"(SELECT count(*) FROM ts_stat('SELECT app.seen()::tsvector'))", true},
		"Rewrite":       {"ts_rewrite('a & b'::tsquery, 'SELECT app.seen()::tsquery, ''c''::tsquery')", true},
		"Domain":        {"(domain_in('x', 'app.label'::regtype, -1) IS NULL)", true},
		"Record":        {"record_in('(x)', 'app.pair'::regtype, -1)", true},
		"Array":         {"array_in('{x}', 'app.label'::regtype, -1)::text", true},
		"Body":          {"fmgr_sql_validator('app.body'::regproc)", true},
		"Function":      {"run('SELECT app.seen()')", true},
		"FunctionBlank": {`"run it"('SELECT app.seen()')`, true},
		"Path":          {"(SELECT min(unqualified()) FROM (SELECT set_config('search_path', 'app', false) OFFSET 0) s WHERE set_config <> '')", true},
		"Escape":        {`E'\'' || app.seen() || E'\''`, true},
		"Dollar":        {"$$'$$ || app.seen() || $$'$$", true},
		"Tag":           {"$a$'$a$ || app.seen() || $a$'$a$", true},
		"Comment":       {"'' /* ' */ || app.seen() /* ' */", true},
		"CommentNested": {"'' /* /* */ ' */ || app.seen() /* /* */ ' */", true},
		"CommentLine":   {"'' -- '\n || app.seen() -- '\n", true},
		"CommentReturn": {"'' -- '\r || app.seen() -- '\r", true},
		"Identifier":    {`(SELECT "'" || app.seen() || "'" FROM (SELECT ''::text AS "'") q)`, true},
		"Unicode":       {`U&'\0027' || app.seen() || U&'\0027'`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.as(t, "", `GRANT CREATE ON SCHEMA app TO {shop};
				CREATE FUNCTION public.run(text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE found text; BEGIN EXECUTE $1 INTO found; RETURN found; END $$;
				CREATE FUNCTION public."run it"(text) RETURNS text LANGUAGE sql RETURN public.run($1);
				CREATE FUNCTION public.unqualified() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN seen(); END $$;
				CREATE FUNCTION app.seen() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'app.seen was called'; END $$;
				CREATE VIEW app.seers AS SELECT app.seen();
				CREATE DOMAIN app.label AS text CHECK (VALUE <> app.seen());
				CREATE TYPE app.pair AS (label app.label);
				SET check_function_bodies = off; CREATE FUNCTION app.body() RETURNS app.label[] LANGUAGE sql AS $$ SELECT '{x}'::app.label[] $$; RESET check_function_bodies`)
			_, err := p.pool.Exec(t.Context(), "SELECT "+c.payload+" FROM public.parents e")
			if called := err != nil && strings.Contains(err.Error(), "app.seen was called"); called != c.refused || err != nil && !called {
				t.Fatalf("called %t: %v", called, err)
			}
			found := p.refused(t, "relay", c.payload)
			if refused := len(found) > 0 && strings.Contains(found[0].Text, p.named("{shop} has CREATE ON SCHEMA app")); refused != c.refused || !refused && len(found) > 0 {
				t.Errorf("%+v", found)
			}
		})
	}
}

// TestProjection_PlantedBefore: what a role that is not trusted made in a schema that is searched stays when it may create nothing any more, and cannot even log
// in. The error names it, and each of its fixes works.
func TestProjection_PlantedBefore(t *testing.T) {
	t.Parallel()
	const f = "CREATE FUNCTION public.planted(varchar) RETURNS varchar LANGUAGE sql RETURN $1; "
	for name, c := range map[string]struct {
		planted, object string
		others          bool // there are more findings, which the fix of this one does not remove
	}{
		"Function":      {"CREATE FUNCTION public.to_jsonb(public.parents) RETURNS jsonb LANGUAGE sql RETURN '{}'::jsonb", "function public.to_jsonb(public.parents)", false},
		"OfItsOwnName":  {"CREATE FUNCTION public.of_its_own() RETURNS int LANGUAGE sql RETURN 1", "function public.of_its_own()", false},
		"Named":         {"CREATE FUNCTION app.content(varchar) RETURNS text LANGUAGE sql RETURN $1", "function app.content(character varying)", false},
		"Procedure":     {"CREATE PROCEDURE public.planted() LANGUAGE sql AS 'SELECT 1'", "procedure public.planted()", false},
		"Aggregate":     {"CREATE AGGREGATE public.max(varchar) (SFUNC = pg_catalog.textcat, STYPE = text)", "aggregate public.max(character varying)", false},
		"Operator":      {"CREATE OPERATOR public.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = pg_catalog.textcat)", "operator public.||(pg_catalog.text,pg_catalog.text)", false},
		"Enum":          {"CREATE TYPE public.mood AS ENUM ('good')", "type public.mood", false},
		"Domain":        {"CREATE DOMAIN public.label AS text CHECK (VALUE <> '')", "type public.label", false},
		"DomainOfArray": {"CREATE DOMAIN public.labels AS text[] CHECK (VALUE <> '{}')", "type public.labels", false},
		"Composite":     {"CREATE TYPE public.pair AS (a int, b int)", "type public.pair", false},
		"Range":         {"CREATE TYPE public.span AS RANGE (SUBTYPE = date)", "type public.span", false}, // its multirange keeps the first owner
		"View":          {"CREATE VIEW public.things AS SELECT 1 AS n", "view public.things", false},
		"Materialized":  {"CREATE MATERIALIZED VIEW public.things AS SELECT 1 AS n", "materialized view public.things", false},
		"Table":         {"CREATE TABLE public.things (n int)", "table public.things", false},
		"Sequence":      {"CREATE SEQUENCE public.numbers", "", false}, // which runs nothing
		"OwnSchema": {
			"CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('good'); CREATE FUNCTION shop.planted(shop.mood) RETURNS json LANGUAGE sql RETURN '1'::json; CREATE CAST (shop.mood AS json) WITH FUNCTION shop.planted(shop.mood)",
			"", false,
		},
		"DomainWithCheck": {f + "CREATE DOMAIN public.label AS varchar CHECK (public.planted(VALUE) <> '')", "type public.label", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const payload = "to_jsonb(app.content(e.name::text))"
			p := newPlanting(t)
			p.as(t, "owner", "CREATE FUNCTION app.content(text) RETURNS text LANGUAGE sql RETURN $1")
			p.as(t, "", "GRANT CREATE ON DATABASE {database} TO {shop}")
			plant := func() {
				t.Helper()
				p.as(t, "", "ALTER ROLE {shop} LOGIN")
				p.asShop(t, c.planted)
				p.as(t, "", "ALTER ROLE {shop} NOLOGIN")
			}
			roles := []string{"relay", "superuser"}
			plant()
			var fix []string
			for _, role := range roles {
				found := p.refused(t, role, payload)
				if c.object == "" {
					if len(found) > 0 {
						t.Errorf("as %s: %+v", role, found)
					}
					continue
				}
				i := slices.IndexFunc(found, func(f buffer.Finding) bool {
					return strings.Contains(f.Text, p.named("can reach "+c.object+", which belongs to {shop}: code of role {shop} would run"))
				})
				if i < 0 || len(found) > 1 != c.others {
					t.Fatalf("as %s: %+v, want %s", role, found, c.object)
				}
				if fix = fixOfObject.FindStringSubmatch(found[i].Fix); fix == nil {
					t.Fatalf("as %s: %s", role, found[i].Fix)
				}
			}
			if fix == nil || c.others {
				return
			}
			if fix[1] != "" { // nobody is told to drop a table or a view
				p.as(t, "", fix[1])
				for _, role := range roles {
					if again := p.refused(t, role, payload); len(again) > 0 {
						t.Errorf("as %s, after %s: %+v", role, fix[1], again)
					}
				}
				plant()
			}
			p.as(t, "", fix[2])
			for _, role := range roles {
				if again := p.refused(t, role, payload); len(again) > 0 {
					t.Errorf("as %s, after %s: %+v", role, fix[2], again)
				}
			}
		})
	}
}

// TestProjection_PlantedBelow: what the objects of a trusted owner use is looked at too, in any schema and however far below, if the server knows it: a projection
// that reaches code of a role that is not trusted is refused. A body that is a text finds what it names in the search path, in which
// there is nothing of others. A function that names another schema, or sets a search path of its own, is trusted as its owner is.
func TestProjection_PlantedBelow(t *testing.T) {
	t.Parallel()
	const (
		text    = "function shop.text(bigint)"
		mood    = "type shop.mood"
		content = "CREATE FUNCTION app.content(bigint) RETURNS jsonb "
		public  = "CREATE FUNCTION public.to_jsonb(bigint) RETURNS jsonb LANGUAGE sql RETURN '1'::jsonb"
	)
	for name, c := range map[string]struct {
		owned, planted string // by the owner of the table, and by shop in schema public
		want           string // nothing: it is not refused
	}{
		"Statistics":       {"CREATE STATISTICS app.counts ON (shop.text(id)) FROM public.parents", "", text},
		"View":             {"CREATE VIEW app.contents AS SELECT shop.text(id) FROM public.parents", "", text},
		"ViewOfTable":      {"CREATE VIEW app.contents AS SELECT n FROM shop.things", "", "table shop.things"},
		"ParsedBody":       {content + "RETURN to_jsonb(shop.text($1))", "", text},
		"TwoBelow":         {"CREATE SCHEMA far; CREATE FUNCTION far.content(bigint) RETURNS jsonb RETURN to_jsonb(shop.text($1)); CREATE VIEW app.contents AS SELECT far.content(id) FROM public.parents", "", text},
		"Policy":           {"CREATE TABLE app.things (n bigint); CREATE POLICY p ON app.things USING (shop.text(n) <> '')", "", text},
		"Domain":           {"CREATE DOMAIN app.label AS bigint CHECK (shop.text(VALUE) <> '')", "", text},
		"Composite":        {"CREATE DOMAIN app.label AS bigint CHECK (shop.text(VALUE) <> ''); CREATE TYPE public.pair AS (labels app.label[])", "", text},
		"Operator":         {"CREATE OPERATOR app.# (RIGHTARG = bigint, FUNCTION = shop.text)", "", text},
		"Negator":          {"CREATE OPERATOR app.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = pg_catalog.int8eq, NEGATOR = OPERATOR(shop.<>))", "", "operator shop.<>(bigint,bigint)"},
		"Commutator":       {"CREATE OPERATOR app.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = pg_catalog.int8lt, COMMUTATOR = OPERATOR(shop.>))", "", "operator shop.>(bigint,bigint)"},
		"Constraint":       {"ALTER TABLE public.parents ADD CHECK (shop.text(id) <> '')", "", text},
		"Index":            {"CREATE INDEX ON public.parents (shop.text(id))", "", text},
		"Column":           {"ALTER TABLE public.parents ADD mood shop.mood", "", mood},
		"Columns":          {"ALTER TABLE public.parents ADD moods shop.mood[]", "", mood},
		"Child":            {"CREATE TABLE app.more () INHERITS (public.parents); CREATE INDEX ON app.more (shop.text(id)); CREATE SCHEMA far; ALTER TABLE app.more SET SCHEMA far", "", text},
		"Argument":         {"CREATE FUNCTION app.content(shop.mood) RETURNS int LANGUAGE sql RETURN 1", "", mood},
		"CastOfOwnersType": {"CREATE TYPE app.mood AS ENUM ('good'); CREATE CAST (app.mood AS json) WITH FUNCTION shop.json(anyenum)", "", "function shop.json(pg_catalog.anyenum)"},
		"CastOfRow":        {"CREATE CAST (public.parents AS text) WITH FUNCTION shop.as_text(anyelement)", "", "function shop.as_text(pg_catalog.anyelement)"},
		"CastOfRows":       {"CREATE CAST (public.parents[] AS text) WITH FUNCTION shop.as_text(anyelement)", "", "function shop.as_text(pg_catalog.anyelement)"},
		"CastOfArray":      {"CREATE TYPE app.kind AS ENUM ('one'); CREATE CAST (app.kind[] AS text) WITH FUNCTION shop.as_text(anyelement)", "", "function shop.as_text(pg_catalog.anyelement)"},
		"CastOfMultirange": {"CREATE SCHEMA far; CREATE TYPE far.span AS RANGE (SUBTYPE = date, MULTIRANGE_TYPE_NAME = far.multispan); ALTER TABLE public.parents ADD span far.span; CREATE CAST (far.multispan AS text) WITH FUNCTION shop.as_text(anyelement)", "", "function shop.as_text(pg_catalog.anyelement)"},
		"TextBody":         {content + "LANGUAGE plpgsql AS $$ BEGIN RETURN to_jsonb($1); END $$", public, "function public.to_jsonb(bigint)"},
		"ViewInPath":       {"CREATE VIEW app.contents AS SELECT to_jsonb(id) FROM public.parents", public, "function public.to_jsonb(bigint)"},
		"TextBodyOnly":     {content + "LANGUAGE plpgsql AS $$ BEGIN RETURN to_jsonb($1); END $$", "", ""},
		"QualifiedText":    {content + "LANGUAGE plpgsql AS $$ BEGIN RETURN to_jsonb(shop.text($1)); END $$", "", ""},
		"OwnPath":          {content + "LANGUAGE plpgsql SET search_path = shop AS $$ BEGIN RETURN to_jsonb(text($1)); END $$", "", ""},
		"Trigger":          {"CREATE TRIGGER t AFTER DELETE ON public.parents FOR EACH ROW EXECUTE FUNCTION shop.tell()", "", ""}, // see owners_test
		"Default":          {"ALTER TABLE public.parents ALTER name SET DEFAULT shop.text(1)", "", ""},                            // which reads use not
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.as(t, "", "CREATE SCHEMA shop AUTHORIZATION {shop}; GRANT USAGE ON SCHEMA shop TO PUBLIC; ALTER ROLE {relay} SET search_path = public, app; GRANT CREATE ON SCHEMA public TO {owner}; GRANT CREATE ON DATABASE {database} TO {owner}; GRANT {owner} TO {other}")
			p.as(t, "shop", `
				CREATE FUNCTION shop.text(bigint) RETURNS text IMMUTABLE LANGUAGE sql RETURN '1';
				CREATE FUNCTION shop.as_text(anyelement) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT NULL::text';
				CREATE FUNCTION shop.json(anyenum) RETURNS json IMMUTABLE LANGUAGE sql AS 'SELECT NULL::json';
				CREATE FUNCTION shop.tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
				CREATE OPERATOR shop.<> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8ne);
				CREATE OPERATOR shop.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8gt);
				CREATE TYPE shop.mood AS ENUM ('good');
				CREATE TABLE shop.things (n bigint);
				CREATE TABLE shop.unused (n bigint PRIMARY KEY CHECK (shop.text(n) <> ''));
				CREATE DOMAIN shop.unused_label AS bigint CHECK (shop.text(VALUE) <> '');
				GRANT SELECT ON shop.things TO PUBLIC`)
			if c.planted != "" {
				p.asShop(t, c.planted)
			}
			p.as(t, "", "GRANT {shop} TO {owner}") // who may link an operator to shop's
			p.as(t, "owner", c.owned)
			p.as(t, "", "REVOKE {shop} FROM {owner}")
			found := p.refused(t, "relay", "to_jsonb(e.id)")
			if c.want == "" {
				if len(found) > 0 {
					t.Errorf("%+v", found)
				}
				return
			}
			if len(found) != 1 || !strings.Contains(found[0].Text, p.named("can reach "+c.want+", which belongs to {shop}")) {
				t.Errorf("%+v, want %s", found, c.want)
			}
		})
	}
}
