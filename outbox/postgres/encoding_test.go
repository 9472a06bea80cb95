package postgres_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// encodedDB makes a migrated database with another encoding than UTF8.
func encodedDB(t *testing.T, encoding string) (pool *pgxpool.Pool, b *postgres.Buffer) {
	t.Helper()
	p := newMigratedDB(t, buffertest.Options{})
	u, err := url.Parse(p.url)
	check(t, err)
	name := strings.TrimPrefix(u.Path, "/") + "_encoded"
	_, err = p.pool.Exec(t.Context(), `CREATE DATABASE "`+name+`" ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	check(t, err)
	t.Cleanup(func() {
		_, err := p.pool.Exec(context.Background(), `DROP DATABASE "`+name+`" WITH (FORCE)`)
		check(t, err)
	})
	u.Path = "/" + name
	_, err = postgres.Migrate(t.Context(), u.String(), postgres.SchemaConfig{})
	check(t, err)
	pool, err = pgxpool.New(t.Context(), u.String())
	check(t, err)
	t.Cleanup(pool.Close)
	b, err = postgres.Open(postgres.Config{URL: u.String(), Pipeline: "orders"})
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	check(t, b.Check(t.Context()))
	return pool, b
}

// Texts arrive in UTF-8 whatever the database's encoding. A database with SQL_ASCII does not know its own: bytes arrive as they are.
func TestClaim_Encodings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ encoding, payload, want string }{
		{"LATIN1", `E'{"size": "Gr\xf6\xdfe"}'`, `{"size": "Größe"}`},
		{"SQL_ASCII", `E'{"size": "Gr\xf6\xdfe"}'`, "{\"size\": \"Gr\xf6\xdfe\"}"},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			t.Parallel()
			pool, b := encodedDB(t, c.encoding)
			_, err := pool.Exec(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES ('t', "+c.payload+")")
			check(t, err)
			l, err := b.Claim(t.Context(), 10, lease)
			check(t, err)
			if l.Len() != 1 || string(l.Events[0].Payload) != c.want {
				t.Errorf("claimed %+v, want payload %q", l, c.want)
			}
		})
	}
}
