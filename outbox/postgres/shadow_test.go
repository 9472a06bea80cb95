package postgres_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// shadowed are the tables that a role could shadow: the relay's own, and a custom one.
var shadowed = map[string]buffer.CustomTable{
	"outbox_events": {},
	"parents":       {ID: "id", Project: "SELECT e.id, 't' AS topic, '{}' AS payload FROM {events} e"},
}

// openShadowed opens a buffer whose ledger is in schema public.
func openShadowed(t *testing.T, url, table string) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Table: table, Schema: "public", Pipeline: "orders", Custom: shadowed[strings.TrimPrefix(table, "public.")]})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

// shadow has shop make schema evil with an empty table that is like one of schema public, which has events.
func (p *planting) shadow(t *testing.T, table string) {
	t.Helper()
	p.as(t, "", "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}'); GRANT ALL ON DATABASE {database} TO {shop}; GRANT SELECT ON outbox_events TO {shop}")
	p.as(t, "shop", "CREATE SCHEMA evil; CREATE TABLE evil."+table+" (LIKE public."+table+" INCLUDING ALL);"+
		"GRANT USAGE ON SCHEMA evil TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC; GRANT ALL ON ALL SEQUENCES IN SCHEMA evil TO PUBLIC")
}

// expectClaims fails unless a claim finds events, or finds none.
func expectClaims(t *testing.T, b *postgres.Buffer, want bool) {
	t.Helper()
	l, err := b.Claim(t.Context(), 1, lease)
	check(t, err)
	if got := l != nil && len(l.Events) > 0; got != want {
		t.Errorf("claimed %+v", l)
	}
}

// TestShadow_Refused: an event table that another role planted in an earlier schema of the search path is not taken for the one that is meant, neither by the relay nor
// by doctor or migrate. The error says which there are, and its fix is enough.
func TestShadow_Refused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ role, path, schema string }{
		"SchemaOfTheRole":   {"relay", "ALTER SCHEMA evil RENAME TO {relay}", "{relay}"}, // "$user" is the first of the path
		"PathOfTheRole":     {"relay", "ALTER ROLE {relay} SET search_path = evil, public", "evil"},
		"PathOfTheDatabase": {"superuser", "ALTER DATABASE {database} SET search_path = evil, public", "evil"},
	} {
		for table := range shadowed {
			t.Run(name+"/"+table, func(t *testing.T) {
				t.Parallel()
				p := newPlanting(t)
				p.as(t, "", "ALTER TABLE parents OWNER TO CURRENT_USER")
				owner := query(t, p.pool, "SELECT quote_ident(current_user)", pgx.RowTo[string])[0]
				p.shadow(t, table)
				p.as(t, "", c.path)
				want := p.named("table " + pgQuote(table) + " exists in schemas " + c.schema + " (owner {shop}) and public (owner " + owner + ") of the search path, with different owners")
				b := openShadowed(t, p.urls[c.role], table)
				err := b.Check(t.Context())
				if !errors.Is(err, buffer.ErrNotReady) || errors.Is(err, buffer.ErrProjection) || !strings.HasSuffix(err.Error(), want+": name the schema: source.table: public."+table) {
					t.Fatalf("got %v; expected %s", err, want)
				}
				if _, err := b.Claim(t.Context(), 1, lease); !errors.Is(err, buffer.ErrNotReady) {
					t.Errorf("claim: %v", err)
				}
				found := b.Diagnose(t.Context())
				if last := found[len(found)-1]; last.Level != buffer.LevelError || last.Text != want {
					t.Errorf("doctor looked further: %+v", found)
				}
				_, err = postgres.Migrate(t.Context(), p.urls[c.role], postgres.SchemaConfig{Table: table, Schema: "public", Custom: table == "parents"})
				if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), want) {
					t.Errorf("migrate: %v", err)
				}
				named := openShadowed(t, p.urls[c.role], "public."+table)
				if table == "parents" { // the projection would look names up in the schema, too
					if err := named.Check(t.Context()); !errors.Is(err, buffer.ErrProjection) {
						t.Errorf("got %v", err)
					}
					p.as(t, "", "ALTER SCHEMA "+c.schema+" RENAME TO elsewhere")
				}
				expectClaims(t, named, true)
			})
		}
	}
}

// TestShadow_Trusted: the first table of the path is taken if its owner is trusted, or owns them all.
func TestShadow_Trusted(t *testing.T) {
	t.Parallel()
	for name, owner := range map[string]string{"Relay": "{relay}", "Superuser": "CURRENT_USER", "OfDatabase": "{other}", "SameOwner": "{owner}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.shadow(t, "outbox_events")
			p.as(t, "", "ALTER DATABASE {database} OWNER TO {other}; ALTER TABLE outbox_events OWNER TO {owner}; ALTER SCHEMA evil OWNER TO "+owner+
				"; ALTER TABLE evil.outbox_events OWNER TO "+owner+"; ALTER ROLE {relay} SET search_path = evil, public")
			b := openShadowed(t, p.urls["relay"], "outbox_events")
			check(t, b.Check(t.Context()))
			expectClaims(t, b, false)
			p.as(t, "", "INSERT INTO evil.outbox_events (topic, payload) VALUES ('t', '{}')")
			expectClaims(t, b, true)
		})
	}
}

// TestShadow_Later: a table that is planted in the path while the relay runs is never taken, although the relay looks its table up again when that was replaced.
func TestShadow_Later(t *testing.T) {
	t.Parallel()
	for table := range shadowed {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			b := openShadowed(t, p.urls["relay"], table)
			check(t, b.Check(t.Context()))
			p.shadow(t, table)
			p.as(t, "", "ALTER SCHEMA evil RENAME TO {relay}; ALTER TABLE public."+table+" RENAME TO old")
			if err := b.Check(t.Context()); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "does not exist") {
				t.Errorf("got %v", err)
			}
			p.as(t, "", "ALTER TABLE public.old RENAME TO "+table)
			if found := b.Diagnose(t.Context()); !slices.ContainsFunc(found, func(f buffer.Finding) bool { return strings.Contains(f.Subject+f.Text, "deadlock_timeout") }) {
				t.Errorf("doctor did not examine the table: %+v", found)
			}
			p.as(t, "", "ALTER SCHEMA {relay} RENAME TO elsewhere") // where a projection finds nothing
			check(t, b.Check(t.Context()))
			expectClaims(t, b, true)
		})
	}
}

// TestShadow_Temporary: a temporary table, which another client left on the server's connection behind PgBouncer, is not taken, with or without its schema.
func TestShadow_Temporary(t *testing.T) {
	t.Parallel()
	for table := range shadowed {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.shadow(t, table)
			through := testserver.PgBouncer(t, p.urls["relay"])
			other, err := pgx.Connect(t.Context(), through)
			check(t, err)
			_, err = other.Exec(t.Context(), "CREATE TEMPORARY TABLE "+table+" (LIKE public."+table+" INCLUDING ALL)", pgx.QueryExecModeSimpleProtocol)
			check(t, err)
			check(t, other.Close(t.Context()))
			expectClaims(t, openShadowed(t, through, table), true)
			b, err := postgres.Open(postgres.Config{URL: through, Table: "pg_temp." + table, Schema: "public", Pipeline: "orders", Custom: shadowed[table]})
			check(t, err)
			t.Cleanup(func() { check(t, b.Close()) })
			if err := b.Check(t.Context()); !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), "does not exist") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// pgQuote returns a name as errors have it.
func pgQuote(name string) string {
	if strings.HasPrefix(name, "outbox_") {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}
