package postgres_test

import (
	"cmp"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// calling is a custom table and the roles that use it: its owner; the relay's, which may do what it needs and no more; shop, which may create objects in
// the schemas that a test grants it; and other, which nobody is.
type calling struct {
	*testDB
	urls  map[string]string // by name: owner, relay, shop
	names *strings.Replacer // of {owner} and the like, and of {database}
}

func newCalling(t *testing.T) *calling {
	t.Helper()
	c := &calling{testDB: newMigratedDB(t, buffertest.Options{}), urls: map[string]string{}}
	var names []string
	for _, name := range []string{"owner", "relay", "other", "shop"} {
		c.urls[name] = c.asRole(t, name)
		u, err := url.Parse(c.urls[name])
		check(t, err)
		names = append(names, "{"+name+"}", u.User.Username(), "{database}", pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize())
	}
	c.names = strings.NewReplacer(names...)
	c.as(t, "", `
		ALTER ROLE {other} NOLOGIN;
		CREATE SCHEMA app AUTHORIZATION {owner};
		GRANT USAGE ON SCHEMA app TO PUBLIC;
		CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name varchar, group_id uuid);
		INSERT INTO parents (name) VALUES ('a');
		ALTER TABLE parents OWNER TO {owner};
		GRANT SELECT ON parents TO PUBLIC`)
	_, err := postgres.Migrate(t.Context(), c.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	c.as(t, "", "GRANT ALL ON ALL TABLES IN SCHEMA public TO {relay}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {relay}")
	return c
}

// as runs statements as one of the roles, as the superuser if it has no name. See named.
func (c *calling) as(t *testing.T, role, sql string) {
	t.Helper()
	to := c.url
	if role != "" {
		to = c.urls[role]
	}
	conn, err := pgx.Connect(t.Context(), to)
	check(t, err)
	if _, err = conn.Exec(t.Context(), c.named(sql)); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	check(t, conn.Close(t.Context()))
}

// named returns a text with the names of roles and database.
func (c *calling) named(text string) string { return c.names.Replace(text) }

// refused returns why the relay does not start with a projection of this payload; "" if it does.
func (c *calling) refused(t *testing.T, payload string) string {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: c.urls["relay"], Table: "public.parents", Pipeline: "parents", Custom: buffer.CustomTable{
		ID: "id", Project: "SELECT e.id, 't' AS topic, " + payload + " AS payload FROM {events} e",
	}})
	check(t, err)
	defer func() { check(t, b.Close()) }()
	err = b.Check(t.Context())
	if err == nil {
		return ""
	}
	if !errors.Is(err, buffer.ErrNotReady) {
		t.Fatal(err)
	}
	return err.Error()
}

// TestProjection_Overloaded: a name with its schema may mean several functions and operators, and a function may have the name of a type. Another owner's
// among them is refused, in a schema of the search path or any other.
func TestProjection_Overloaded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ owned, undo, planted, dropped, payload string }{
		"Function": {
			"CREATE FUNCTION app.content(text) RETURNS text LANGUAGE sql RETURN $1", "DROP FUNCTION app.content(text)",
			"CREATE FUNCTION app.content(varchar) RETURNS text LANGUAGE sql RETURN current_user", "DROP FUNCTION app.content(varchar)",
			"app.content(e.name)",
		},
		"Operator": {
			"CREATE FUNCTION app.added(text, text) RETURNS text LANGUAGE sql RETURN $1; CREATE OPERATOR app.<+> (LEFTARG = text, RIGHTARG = text, FUNCTION = app.added)",
			"DROP FUNCTION app.added(text, text) CASCADE",
			"CREATE FUNCTION app.planted(varchar, varchar) RETURNS text LANGUAGE sql RETURN current_user; CREATE OPERATOR app.<+> (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = app.planted)",
			"DROP FUNCTION app.planted(varchar, varchar) CASCADE",
			"e.name OPERATOR(app.<+>) e.name",
		},
		"Type": {
			"CREATE DOMAIN app.label AS text", "DROP DOMAIN app.label",
			"CREATE FUNCTION app.label(varchar) RETURNS text LANGUAGE sql RETURN current_user", "DROP FUNCTION app.label(varchar)",
			"app.label(e.name)::text",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newCalling(t)
			db.as(t, "", "GRANT CREATE ON SCHEMA app TO {shop}")
			for _, path := range []string{"public", "app, public"} {
				db.as(t, "", "ALTER ROLE {relay} SET search_path = "+path)
				db.as(t, "owner", c.owned)
				if got := db.refused(t, c.payload); got != "" {
					t.Errorf("with search path %s: %s", path, got)
				}
				db.as(t, "shop", c.planted)
				got := db.refused(t, c.payload)
				if !strings.Contains(got, db.named("which belongs to {shop}")) || strings.Contains(got, "name what is meant with its schema") {
					t.Errorf("with search path %s, after another role made one: %q", path, got)
				}
				db.as(t, "shop", c.dropped)
				if got := db.refused(t, c.payload); got != "" {
					t.Errorf("with search path %s, after that was dropped: %s", path, got)
				}
				db.as(t, "owner", c.undo)
			}
		})
	}
}

// TestProjection_Bodies: nobody knows what the text of a function calls. The relay does not start while another role may create objects where that text
// finds what it names. The error names the function, and both of its fixes work.
func TestProjection_Bodies(t *testing.T) {
	t.Parallel()
	const (
		args     = "(bigint) RETURNS text LANGUAGE sql STABLE "
		body     = args + "AS $$ SELECT to_jsonb(p)::text FROM public.parents p WHERE id = $1 $$"
		content  = "CREATE FUNCTION app.content" + body
		below    = "CREATE FUNCTION app.below" + body + "; "
		mine     = "CREATE FUNCTION app.mine(text) RETURNS boolean LANGUAGE sql AS $$ SELECT $1 <> '' $$; "
		added    = "CREATE FUNCTION app.added(text, text) RETURNS text LANGUAGE sql AS $$ SELECT $1 || $2 $$; "
		contents = "(SELECT content FROM app.contents c WHERE c.id = e.id)"
		toShop   = "GRANT CREATE ON SCHEMA public TO {shop}"
		toPublic = "GRANT CREATE ON SCHEMA public TO PUBLIC; REVOKE CONNECT ON DATABASE {database} FROM PUBLIC; GRANT CONNECT ON DATABASE {database} TO {owner}, {relay}"
		newOnes  = "GRANT CREATE ON DATABASE {database} TO {shop}"
		hasIt    = "role {shop} may create objects there: {shop} has CREATE ON "
	)
	for name, c := range map[string]struct {
		owned, granted string
		payload        string // app.content(e.id) if empty
		want           string // nothing: it is not refused
	}{
		"NobodyElse":         {content, "GRANT CREATE ON SCHEMA public TO {owner}, {relay}", "", ""},
		"Schema":             {content, toShop, "", hasIt + "SCHEMA public"},
		"SchemaOfNoPath":     {content, "CREATE SCHEMA more; GRANT CREATE ON SCHEMA more TO {shop}", "", ""},
		"NewSchema":          {content, newOnes, "", hasIt + "DATABASE"},
		"Public":             {content, toPublic + ", {shop}", "", "role {shop} may create objects there: PUBLIC has CREATE ON SCHEMA public"},
		"PublicWithoutOther": {content, toPublic, "", ""},
		"MemberOfOwner":      {content, toShop + "; GRANT {owner} TO {shop}", "", ""},
		"MemberOfAnother":    {content, "GRANT CREATE ON SCHEMA public TO {other}; GRANT {other} TO {shop}", "", "role {shop} may create objects there: {other} has CREATE ON SCHEMA public"},
		"OwnPath":            {content + " SET search_path = app, pg_temp", toShop + "; " + newOnes, "", ""},
		"OwnPathShared":      {content + ` SET search_path = "app", public`, toShop + "; ALTER ROLE {relay} SET search_path = app", "", hasIt + "SCHEMA public"},
		"OwnPathNewSchema":   {content + ` SET search_path = "$user", app`, newOnes, "", hasIt + "DATABASE"},
		"Procedural": {
			"CREATE FUNCTION app.content(bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN to_jsonb($1); END $$", toShop, "", "app.content(bigint)",
		},
		"Parsed":       {"CREATE FUNCTION app.content" + args + "RETURN to_jsonb($1)", toShop, "", ""},
		"CallOfParsed": {below + "CREATE FUNCTION app.content" + args + "RETURN app.below($1)", toShop, "", "app.below(bigint)"},
		"View": {
			below + "CREATE VIEW app.contents AS SELECT id, app.below(id) AS content FROM public.parents; GRANT SELECT ON app.contents TO {relay}",
			toShop, contents, "app.below(bigint)",
		},
		"Policy": {
			mine + "CREATE TABLE app.contents AS SELECT 1 AS id, 'x'::text AS content; GRANT SELECT ON app.contents TO {relay}; ALTER TABLE app.contents ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON app.contents USING (app.mine(content))",
			toShop, contents, "app.mine(text)",
		},
		"Composite": {
			mine + "CREATE DOMAIN app.label AS text CHECK (app.mine(VALUE)); CREATE TYPE app.pair AS (label app.label)", toShop,
			"pg_catalog.row_to_json(pg_catalog.jsonb_populate_record(NULL::app.pair, '{}'))::text", "app.mine(text)",
		},
		"Composites": {
			mine + "CREATE DOMAIN app.label AS text CHECK (app.mine(VALUE)); CREATE TYPE app.pair AS (labels app.label[])", toShop,
			"pg_catalog.array_length(NULL::app.pair[], 1)::text", "app.mine(text)",
		},
		"Domain":    {mine + "CREATE DOMAIN app.label AS text CHECK (app.mine(VALUE))", toShop, "e.name::app.label::text", "app.mine(text)"},
		"Operator":  {added + "CREATE OPERATOR app.<+> (LEFTARG = text, RIGHTARG = text, FUNCTION = app.added)", toShop, "e.name OPERATOR(app.<+>) e.name", "app.added(text,text)"},
		"Aggregate": {added + "CREATE AGGREGATE app.total(text) (SFUNC = app.added, STYPE = text)", toShop, "(SELECT app.total(name) FROM public.parents)", "app.added(text,text)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newCalling(t)
			db.as(t, "owner", c.owned)
			db.as(t, "", c.granted)
			payload := cmp.Or(c.payload, "app.content(e.id)")
			got := db.refused(t, payload)
			if c.want == "" {
				if got != "" {
					t.Error(got)
				}
				return
			}
			if want := db.named(c.want); !strings.Contains(got, "looks names up in its search path") || !strings.Contains(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			for _, fix := range fixes.FindAllString(got, -1) {
				db.as(t, "", fix)
				if got := db.refused(t, payload); got != "" {
					t.Errorf("after %s: %s", fix, got)
				}
				if strings.HasPrefix(fix, "REVOKE") {
					db.as(t, "", c.granted)
				}
			}
		})
	}
}

var fixes = regexp.MustCompile(`REVOKE CREATE ON \S+ \S+ FROM [^\s,]+|ALTER FUNCTION .* SET search_path = pg_catalog, pg_temp`)

// TestProjection_BodyOfPlanted: what another role made where the text of a function finds it stays when that role may create nothing any more.
func TestProjection_BodyOfPlanted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ owned, planted, drop string }{
		"Function": {
			"", "CREATE FUNCTION public.to_jsonb(public.parents) RETURNS jsonb LANGUAGE sql RETURN '{}'::jsonb", "DROP FUNCTION public.to_jsonb(public.parents)",
		},
		"Operator": {
			"", "CREATE FUNCTION public.planted(bigint, bigint) RETURNS boolean LANGUAGE sql RETURN true; CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.planted)",
			"DROP FUNCTION public.planted(bigint, bigint) CASCADE",
		},
		"View":   {"CREATE TABLE app.things (n int)", "CREATE VIEW public.things AS SELECT 1 AS n", "DROP VIEW public.things"},
		"Domain": {"CREATE DOMAIN app.label AS text", "CREATE DOMAIN public.label AS text CHECK (true)", "DROP DOMAIN public.label"},
		"Cast":   {"CREATE DOMAIN app.label AS text", "CREATE FUNCTION public.label(text) RETURNS text LANGUAGE sql RETURN $1", "DROP FUNCTION public.label(text)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newCalling(t)
			db.as(t, "", "ALTER ROLE {relay} SET search_path = public, app; GRANT CREATE ON SCHEMA public TO {shop}")
			db.as(t, "owner", c.owned)
			db.as(t, "owner", "CREATE FUNCTION app.content(bigint) RETURNS text LANGUAGE sql STABLE AS $$ SELECT to_jsonb(p)::text FROM public.parents p WHERE id = $1 $$")
			// What has a name of its own was meant, and a table runs nothing.
			db.as(t, "shop", "CREATE FUNCTION public.of_its_own() RETURNS int LANGUAGE sql RETURN 1; CREATE TABLE public.contents (n int)")
			db.as(t, "owner", "CREATE TABLE app.contents (n int)")
			db.as(t, "", "REVOKE CREATE ON SCHEMA public FROM {shop}")
			if got := db.refused(t, "app.content(e.id)"); got != "" {
				t.Error(got)
			}
			db.as(t, "", "GRANT CREATE ON SCHEMA public TO {shop}")
			db.as(t, "shop", c.planted)
			db.as(t, "", "REVOKE CREATE ON SCHEMA public FROM {shop}")
			got := db.refused(t, "app.content(e.id)")
			if !strings.Contains(got, db.named("which belongs to {shop} and has the name of another owner's: drop that")) {
				t.Error(got)
			}
			db.as(t, "", fixes.FindString(got))
			if got := db.refused(t, "app.content(e.id)"); got != "" {
				t.Errorf("after the fix: %s", got)
			}
			db.as(t, "", "ALTER FUNCTION app.content(bigint) RESET search_path")
			db.as(t, "shop", c.drop)
			if got := db.refused(t, "app.content(e.id)"); got != "" {
				t.Errorf("after %s: %s", c.drop, got)
			}
		})
	}
}

// TestProjection_PlantedBelow: what a view, or a parsed body, of the table's owner calls is refused if another role planted it before that was made.
func TestProjection_PlantedBelow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ owned, drop, payload string }{
		"View":   {"CREATE VIEW app.contents AS SELECT id, to_jsonb(p) AS content FROM public.parents p; GRANT SELECT ON app.contents TO {relay}", "DROP VIEW app.contents", "(SELECT content FROM app.contents c WHERE c.id = e.id)"},
		"Parsed": {"CREATE FUNCTION app.content(bigint) RETURNS jsonb LANGUAGE sql BEGIN ATOMIC SELECT to_jsonb(p) FROM public.parents p WHERE id = $1; END", "DROP FUNCTION app.content", "app.content(e.id)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newCalling(t)
			db.as(t, "", "GRANT CREATE ON SCHEMA public TO {shop}; GRANT CREATE, USAGE ON SCHEMA app TO {shop}")
			db.as(t, "shop", "CREATE FUNCTION public.to_jsonb(public.parents) RETURNS jsonb LANGUAGE sql RETURN pg_catalog.to_jsonb(current_user)")
			db.as(t, "owner", c.owned)
			if got := db.refused(t, c.payload); !strings.Contains(got, db.named("would run function public.to_jsonb(public.parents), which belongs to {shop}")) {
				t.Error(got)
			}
			db.as(t, "owner", c.drop)
		})
	}
	// A view of another role, with a name of its own, was meant, and so was what that role calls there.
	db := newCalling(t)
	db.as(t, "", "GRANT CREATE ON SCHEMA app TO {shop}; GRANT USAGE ON SCHEMA app TO {shop}")
	db.as(t, "shop", `
		CREATE FUNCTION app.to_jsonb(public.parents) RETURNS jsonb LANGUAGE sql RETURN pg_catalog.to_jsonb($1);
		CREATE VIEW app.contents AS SELECT id, app.to_jsonb(p) AS content FROM public.parents p;
		GRANT SELECT ON app.contents TO {relay}`)
	if got := db.refused(t, "(SELECT content FROM app.contents c WHERE c.id = e.id)"); got != "" {
		t.Error(got)
	}
}
