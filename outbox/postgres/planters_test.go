package postgres_test

import (
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

// TestProjection_Planters: the projection of a superuser is refused while another role could make what it calls. The error names who has the privilege,
// and its fix works.
func TestProjection_Planters(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	exec := func(sql string) {
		t.Helper()
		_, err := p.pool.Exec(t.Context(), sql)
		check(t, err)
	}
	role := func(name string) string {
		t.Helper()
		u, err := url.Parse(p.asRole(t, name))
		check(t, err)
		return u.User.Username()
	}
	planter, group, member, database := role("planter"), role("owners"), role("member"), pgx.Identifier{query(t, p.pool, "SELECT current_database()", pgx.RowTo[string])[0]}.Sanitize()
	exec("ALTER ROLE " + group + " NOLOGIN; ALTER ROLE " + member + " NOINHERIT")
	exec("CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, group_id uuid)")
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	refused := func() string {
		t.Helper()
		b, err := postgres.Open(postgres.Config{
			URL: p.url, Table: "parents", Pipeline: "parents", Custom: buffer.CustomTable{ID: "id", Project: "SELECT e.id, e.name AS payload FROM {events} e"},
		})
		check(t, err)
		defer func() { check(t, b.Close()) }()
		if err = b.Check(t.Context()); err == nil {
			return ""
		}
		if !errors.Is(err, buffer.ErrNotReady) {
			t.Fatal(err)
		}
		return err.Error()
	}
	fix := regexp.MustCompile(`REVOKE CREATE ON \S+ \S+ FROM \S+`)
	for _, c := range []struct {
		what, sql string
		want      []string // nothing: it is not refused
		undo      string   // what the fix leaves
	}{
		{"nobody may create", "", nil, ""},
		{"in the schema", "GRANT CREATE ON SCHEMA public TO " + planter, []string{"role " + planter, planter + " has CREATE ON SCHEMA public"}, ""},
		{"everybody", "GRANT CREATE ON SCHEMA public TO PUBLIC", []string{"every role may create", "PUBLIC has CREATE ON SCHEMA public"}, ""}, // also if there is no other yet
		{`in a schema "$user" that does not exist`, "GRANT CREATE ON DATABASE " + database + " TO " + planter, []string{"role " + planter, planter + " has CREATE ON DATABASE"}, ""},
		{"as a role that nobody may become", "GRANT CREATE ON SCHEMA public TO " + group, nil, "REVOKE CREATE ON SCHEMA public FROM " + group},
		{
			"as another role, by SET ROLE", "GRANT " + group + " TO " + member + "; GRANT CREATE ON SCHEMA public TO " + group,
			[]string{"role " + member, group + " has CREATE ON SCHEMA public"},
			"",
		},
		{
			"as another role, in a new schema", "GRANT CREATE ON DATABASE " + database + " TO " + group,
			[]string{"role " + member, group + " has CREATE ON DATABASE"},
			"",
		},
		{
			"as the owner of a schema", "CREATE SCHEMA app AUTHORIZATION " + group + "; ALTER DATABASE " + database + ` SET search_path = "$user", public, app`,
			[]string{"role " + member, group + " has CREATE ON SCHEMA app"},
			"",
		},
		{"the owner of the event table", "ALTER TABLE parents OWNER TO " + planter + "; GRANT CREATE ON SCHEMA public TO " + planter, nil, ""},
	} {
		for statement := range strings.SplitSeq(c.sql, ";") {
			exec(statement)
		}
		got := refused()
		if len(c.want) == 0 && got != "" {
			t.Errorf("%s: %s", c.what, got)
		}
		for _, part := range c.want {
			if !strings.Contains(got, "rights of superuser") || !strings.Contains(got, part) {
				t.Errorf("%s: %q, want %q", c.what, got, part)
			}
		}
		exec(fix.FindString(got))
		exec(c.undo)
		if got := refused(); got != "" {
			t.Fatalf("%s, after the fix: %s", c.what, got)
		}
	}
}

// TestProjection_Qualified: an object that a projection names with its schema is accepted, of any owner. A name that the search path resolves is refused, where
// another owner has the same one. The parameter may stand twice.
func TestProjection_Qualified(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	exec := func(url, sql string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		check(t, err)
		_, err = conn.Exec(t.Context(), sql)
		check(t, err)
		check(t, conn.Close(t.Context()))
	}
	exec(p.url, `
		CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, group_id uuid);
		INSERT INTO parents (name) VALUES ('a'), ('b');
		CREATE SCHEMA app;
		CREATE VIEW app.items AS SELECT 1 AS n;
		CREATE DOMAIN app.label AS text;
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, app', current_database()); END $$;
		GRANT CREATE ON SCHEMA public TO PUBLIC`)
	exec(p.asRole(t, "shop"), `
		CREATE FUNCTION public.to_jsonb(parents) RETURNS jsonb LANGUAGE sql STABLE AS $$ SELECT '"theirs"'::jsonb $$;
		CREATE VIEW public.items AS SELECT 2 AS n;
		CREATE DOMAIN public.label AS text;
		GRANT SELECT ON public.items TO PUBLIC`)
	exec(p.url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC") // what was made stays
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	open := func(project string) *postgres.Buffer {
		t.Helper()
		b, err := postgres.Open(postgres.Config{URL: p.url, Table: "parents", Pipeline: "parents", Custom: buffer.CustomTable{ID: "id", Project: project}})
		check(t, err)
		t.Cleanup(func() { check(t, b.Close()) })
		return b
	}
	const head, tail, twice = "SELECT e.id, 't' AS topic, ", " FROM parents e WHERE e.group_id = $1", " FROM parents e WHERE e.group_id IN ($1,$1)"
	for project, owned := range map[string]string{
		head + "to_jsonb(e) AS payload" + tail:                                                     "public.to_jsonb",
		head + "public.to_jsonb(e) AS payload" + tail:                                              "",
		head + `"public" . "to_jsonb" (e) AS payload` + tail:                                       "",
		head + "coalesce(public.to_jsonb(e), to_jsonb(e)) AS payload" + tail:                       "public.to_jsonb",
		head + "pg_catalog.to_jsonb(e.name) AS payload" + tail:                                     "",
		head + "(SELECT pg_catalog.to_jsonb(n) FROM items) AS payload" + tail:                      "public.items",
		head + "(SELECT pg_catalog.to_jsonb(n) FROM public.items) AS payload" + tail:               "",
		head + "(SELECT pg_catalog.to_jsonb(n) FROM app.items) AS payload" + tail:                  "",
		head + "pg_catalog.to_jsonb(e.name::label::text) AS payload" + tail:                        "public.label",
		head + "pg_catalog.to_jsonb(e.name::public.label::text) AS payload" + tail:                 "",
		head + "to_jsonb(e) AS payload" + twice:                                                    "public.to_jsonb",
		head + "public.to_jsonb(e) AS payload" + twice:                                             "",
		head + "public.to_jsonb(e) AS payload" + strings.Replace(twice, "$1,$1", "$1,$1,$1,$1", 1): "",
	} {
		err := open(project).Check(t.Context())
		if owned == "" && err != nil {
			t.Errorf("check of %s: %v", project, err)
		}
		if owned != "" && (!errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), owned) || !strings.Contains(err.Error(), "belongs to")) {
			t.Errorf("check of %s: %v, want %s", project, err, owned)
		}
	}
	batch, err := open(head+"public.to_jsonb(e) AS payload"+twice).Claim(t.Context(), 10, lease)
	check(t, err)
	if batch == nil || batch.ProjectErr != nil || len(batch.Events) != 2 || string(batch.Events[0].Payload) != `"theirs"` {
		t.Errorf("claimed %+v", batch)
	}
}
