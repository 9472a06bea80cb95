package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestProjection_FixedPath: a projection runs with the search path that the role had when the relay started, with and without a pooler: neither a schema
// that another role creates in it later nor another path of role and database changes it. Temporary objects are searched last.
func TestProjection_FixedPath(t *testing.T) {
	t.Parallel()
	const (
		payload = `(SELECT to_jsonb(p) || jsonb_build_object('topic', (SELECT topic FROM topics), 'path', current_setting('search_path')) FROM parents p WHERE p.id = e.id)`
		planted = `
			CREATE SCHEMA evil;
			CREATE FUNCTION evil.to_jsonb(public.parents) RETURNS jsonb LANGUAGE sql RETURN '"planted"'::jsonb;
			CREATE TABLE evil.topics AS SELECT 'planted'::text AS topic;
			GRANT SELECT ON evil.topics TO PUBLIC; GRANT USAGE ON SCHEMA evil TO PUBLIC`
		reconnect = "; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{relay}'"
	)
	for name, c := range map[string]struct{ shop, super string }{
		"SchemaOfTheRole":    {strings.ReplaceAll(planted, "evil", "{relay}"), "SELECT 1"}, // "$user" is the first of the path
		"PathOfTheRole":      {planted, "ALTER ROLE {relay} SET search_path = evil, public" + reconnect},
		"PathOfTheDatabase":  {planted, "ALTER DATABASE {database} SET search_path = evil, public" + reconnect},
		"PathWithoutCatalog": {planted, "ALTER ROLE {relay} SET search_path = evil, public, pg_catalog" + reconnect},
	} {
		for _, pooler := range []string{"Direct", "PgBouncer"} {
			t.Run(name+"/"+pooler, func(t *testing.T) {
				t.Parallel()
				p := newPlanting(t)
				p.as(t, "", "CREATE TABLE topics AS SELECT 't'::text AS topic; GRANT SELECT ON topics TO PUBLIC; GRANT ALL ON DATABASE {database} TO {shop}")
				url := p.urls["relay"]
				if pooler == "PgBouncer" {
					url = testserver.PgBouncer(t, url)
				}
				b := p.open(t, url, payload)
				t.Cleanup(func() { check(t, b.Close()) })
				check(t, b.Check(t.Context()))
				p.as(t, "shop", c.shop)
				p.as(t, "", c.super)
				// What has lost its connection is done again.
				patiently := func(what string, f func(context.Context) (*buffer.Lease, error)) *buffer.Lease {
					t.Helper()
					var err error
					for end := time.Now().Add(time.Minute); time.Now().Before(end); {
						var l *buffer.Lease
						if l, err = f(t.Context()); err == nil && l != nil && l.ProjectErr == nil {
							if got := string(l.Events[0].Payload); !strings.Contains(got, `"topic": "t"`) || !strings.Contains(got, `"name": "a"`) || !strings.Contains(got, `"path": "pg_catalog, public, pg_temp"`) {
								t.Errorf("%s: %s", what, got)
							}
							return l
						}
					}
					t.Fatalf("%s: %v", what, err)
					return nil
				}
				patiently("preview", func(ctx context.Context) (*buffer.Lease, error) { return b.Peek(ctx, 1) })
				l := patiently("claim", func(ctx context.Context) (*buffer.Lease, error) { return b.Claim(ctx, 1, lease) })
				check(t, b.Settle(t.Context(), l, []buffer.Outcome{{Verdict: buffer.Retry, GroupID: l.GroupID, Attempts: 1}}))
				patiently("take-over", func(ctx context.Context) (*buffer.Lease, error) { return testkit.TakeOver(ctx, b, lease) })
			})
		}
	}
}
