package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/internal/notready"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// planting is a custom table and the roles that use it: its owner, who owns schema app too; the relay's, which may do what it needs and no more; shop, whose
// code must not run, and which may create objects in the schemas that a test grants it; and other, which nobody is.
type planting struct {
	*testDB
	urls  map[string]string // by name: owner, relay, shop, other, superuser
	names *strings.Replacer // of {owner} and the like, and of {database}
}

func newPlanting(t *testing.T) *planting {
	t.Helper()
	p := &planting{testDB: newMigratedDB(t, buffertest.Options{}), urls: map[string]string{}}
	var names []string
	for _, name := range []string{"owner", "relay", "other", "shop"} {
		p.urls[name] = p.asRole(t, name)
		u, err := url.Parse(p.urls[name])
		check(t, err)
		names = append(names, "{"+name+"}", u.User.Username(), "{database}", pgx.Identifier{strings.TrimPrefix(u.Path, "/")}.Sanitize())
	}
	p.urls["superuser"] = p.url
	p.names = strings.NewReplacer(names...)
	t.Cleanup(func() {
		_, err := p.pool.Exec(context.Background(), p.named("ALTER DATABASE {database} OWNER TO CURRENT_USER; DROP OWNED BY {shop}, {other}, {relay}, {owner} CASCADE"))
		check(t, err)
	})
	p.as(t, "", `
		ALTER ROLE {other} NOLOGIN;
		CREATE SCHEMA app AUTHORIZATION {owner};
		GRANT USAGE ON SCHEMA app TO PUBLIC;
		CREATE TABLE parents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name varchar, group_id uuid);
		INSERT INTO parents (name) VALUES ('a'), ('b'), ('c'), ('d'), ('e');
		ALTER TABLE parents OWNER TO {owner};
		GRANT SELECT ON parents TO PUBLIC`)
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: "parents", Custom: true})
	check(t, err)
	p.as(t, "", "GRANT ALL ON ALL TABLES IN SCHEMA public TO {relay}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {relay}")
	return p
}

// as runs statements as one of the roles; as a superuser if it has no name. See named.
func (p *planting) as(t *testing.T, role, sql string) {
	t.Helper()
	if role == "" {
		if _, err := p.pool.Exec(t.Context(), p.named(sql)); err != nil {
			t.Fatalf("%s: %v", p.named(sql), err)
		}
		return
	}
	conn, err := pgx.Connect(t.Context(), p.urls[role])
	check(t, err)
	if _, err = conn.Exec(t.Context(), p.named(sql)); err != nil {
		t.Fatalf("%s: %v", p.named(sql), err)
	}
	check(t, conn.Close(t.Context()))
}

// asShop runs statements of shop while it may create objects in schemas public and app.
func (p *planting) asShop(t *testing.T, sql string) {
	t.Helper()
	p.as(t, "", "GRANT CREATE ON SCHEMA public, app TO {shop}")
	p.as(t, "shop", sql)
	p.as(t, "", "REVOKE CREATE ON SCHEMA public, app FROM {shop}")
}

// named returns a text with the names of roles and database.
func (p *planting) named(text string) string { return p.names.Replace(text) }

// open opens the buffer as a role, with a projection of this payload.
func (p *planting) open(t *testing.T, url, payload string) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Table: "public.parents", Pipeline: "parents", Custom: buffer.CustomTable{
		ID: "id", Project: "SELECT e.id, 't' AS topic, " + payload + " AS payload FROM {events} e",
	}})
	check(t, err)
	return b
}

// refused returns why the relay does not start as a role with a projection of this payload; nothing if it does.
func (p *planting) refused(t *testing.T, role, payload string) []buffer.Finding {
	t.Helper()
	b := p.open(t, p.urls[role], payload)
	defer func() { check(t, b.Close()) }()
	err := b.Check(t.Context())
	if err == nil {
		return nil
	}
	why, is := errors.AsType[*notready.Error](err)
	if !is || !errors.Is(err, buffer.ErrProjection) {
		t.Fatal(err)
	}
	return why.Missing
}
