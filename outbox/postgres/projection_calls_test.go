package postgres_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// calling is a custom table that three roles share: its owner; the relay's, which may do what it needs and no more; and shop, which may create objects
// in the schemas that a test grants it.
type calling struct {
	*testDB
	urls  map[string]string // by name: owner, relay, shop
	roles map[string]string
}

func newCalling(t *testing.T) *calling {
	t.Helper()
	c := &calling{testDB: newMigratedDB(t, buffertest.Options{}), urls: map[string]string{}, roles: map[string]string{}}
	for _, name := range []string{"owner", "relay", "shop"} {
		c.urls[name] = c.asRole(t, name)
		u, err := url.Parse(c.urls[name])
		check(t, err)
		c.roles[name] = u.User.Username()
	}
	c.as(t, "", `
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

// as runs statements as one of the roles, as the superuser if it has no name. {shop} stands for the name of role shop.
func (c *calling) as(t *testing.T, role, sql string) {
	t.Helper()
	to := c.url
	if role != "" {
		to = c.urls[role]
	}
	conn, err := pgx.Connect(t.Context(), to)
	check(t, err)
	for name, quoted := range c.roles {
		sql = strings.ReplaceAll(sql, "{"+name+"}", quoted)
	}
	if _, err = conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	check(t, conn.Close(t.Context()))
}

// refused returns why the relay does not start with a projection of this payload; "" if it does.
func (c *calling) refused(t *testing.T, payload string) string {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: c.urls["relay"], Table: "parents", Pipeline: "parents", Custom: buffer.CustomTable{
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
				db.as(t, "", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = `+path+`', current_database()); END $$`)
				db.as(t, "owner", c.owned)
				if got := db.refused(t, c.payload); got != "" {
					t.Errorf("with search path %s: %s", path, got)
				}
				db.as(t, "shop", c.planted)
				got := db.refused(t, c.payload)
				if !strings.Contains(got, "which belongs to "+db.roles["shop"]) || strings.Contains(got, "name what is meant with its schema") {
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
