package postgres_test

import (
	"strings"
	"testing"
)

// TestProjection_Unparsed: the server runs no code of another role for a projection, not even to parse it: neither while that role may create
// objects, nor when only what it planted is left. The planted code raises an error, so that it is seen.
func TestProjection_Unparsed(t *testing.T) {
	t.Parallel()
	const (
		body   = " LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'planted code ran as %', current_user; END $$; "
		domain = "CREATE FUNCTION public.planted(text) RETURNS boolean" + body + "CREATE DOMAIN public.label AS text CHECK (public.planted(VALUE))"
		mood   = "CREATE TYPE public.mood AS ENUM ('good'); CREATE FUNCTION public.planted(public.mood) RETURNS json" + body +
			"CREATE CAST (public.mood AS json) WITH FUNCTION public.planted(public.mood)"
	)
	for name, c := range map[string]struct{ owned, planted, then, payload string }{
		"Domain":         {"CREATE DOMAIN app.label AS text", domain, "", "to_jsonb('x'::label)"},
		"DomainInArray":  {"CREATE DOMAIN app.label AS text", domain, "", "to_jsonb('{x}'::label[])"}, // parsing the constant runs the check
		"QualifiedName":  {"", strings.ReplaceAll(domain, "public.", "app."), "", "to_jsonb('x'::app.label)"},
		"Folded":         {"", "CREATE FUNCTION public.upper(varchar) RETURNS text" + body, "", "to_jsonb(upper('x'::varchar))"},
		"CastToJSON":     {"", mood, "ALTER TABLE parents ADD mood public.mood DEFAULT 'good'", "to_jsonb(e)"},
		"CastToJSONRow":  {"", mood, "ALTER TABLE parents ADD mood public.mood DEFAULT 'good'", "row_to_json(e)"},
		"CastToJSONList": {"", mood, "ALTER TABLE parents ADD moods public.mood[] DEFAULT '{good}'", "json_agg(e) OVER (PARTITION BY e.id)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.as(t, "", `ALTER ROLE {relay} SET search_path = public, app; ALTER DATABASE {database} SET search_path = public, app;
				REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC`)
			p.as(t, "owner", c.owned)
			p.as(t, "", "GRANT CREATE, USAGE ON SCHEMA public, app TO {shop}")
			p.as(t, "shop", c.planted)
			p.as(t, "", c.then)
			for _, change := range []string{"", "REVOKE CREATE ON SCHEMA public, app FROM {shop}", "ALTER ROLE {shop} NOLOGIN"} {
				p.as(t, "", change)
				for _, role := range []string{"relay", "superuser"} {
					p.runsNothing(t, role, change, c.payload)
				}
			}
		})
	}
}

// TestProjection_UnparsedBelow: neither does it run such code of a schema that is not searched, which something of a trusted role refers to.
func TestProjection_UnparsedBelow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ owned, payload string }{
		"Statistics": {
			"CREATE TABLE app.things (n bigint); GRANT SELECT ON app.things TO PUBLIC; CREATE STATISTICS app.counts ON (shop.planted('x'::text)) FROM app.things",
			"(SELECT to_jsonb(t) FROM app.things t WHERE t.n = e.id)", // the planner folds the constant
		},
		"CastOfRow":  {"CREATE CAST (parents AS text) WITH FUNCTION shop.planted(anyelement)", "(SELECT to_jsonb(p::text) FROM parents p WHERE p.id = e.id)"},
		"CastOfRows": {"CREATE CAST (parents[] AS text) WITH FUNCTION shop.planted(anyelement)", "(SELECT to_jsonb(array_agg(p)::text) FROM parents p WHERE p.id = e.id)"},
		"Negator": {
			"CREATE OPERATOR app.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8eq, NEGATOR = OPERATOR(shop.<>)); ALTER OPERATOR app.= (bigint, bigint) OWNER TO {owner}",
			"to_jsonb(NOT (e.id OPERATOR(app.=) 1::bigint))", // the planner makes a <> of it
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanting(t)
			p.as(t, "", "CREATE SCHEMA shop AUTHORIZATION {shop}; GRANT USAGE ON SCHEMA shop TO PUBLIC")
			p.as(t, "shop", "CREATE FUNCTION shop.planted(anyelement) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'planted code ran as %', current_user; END $$; "+
				"CREATE FUNCTION shop.planted(bigint, bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RAISE 'planted code ran as %', current_user; END $$; "+
				"CREATE OPERATOR shop.<> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shop.planted)")
			p.as(t, "", c.owned)
			for _, role := range []string{"relay", "superuser"} {
				p.runsNothing(t, role, "", c.payload)
			}
		})
	}
}

// runsNothing reports a projection of this payload that is not refused, or that runs planted code before it is.
func (p *planting) runsNothing(t *testing.T, role, change, payload string) {
	t.Helper()
	b := p.open(t, p.urls[role], payload)
	seen := func(what string, err error) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), "planted code ran") {
			t.Errorf("%s as %s, after %q: %v", what, role, change, err)
		}
	}
	seen("check", b.Check(t.Context()))
	for _, f := range b.Diagnose(t.Context()) {
		if strings.Contains(f.Text, "planted code ran") {
			t.Errorf("doctor as %s, after %q: %s", role, change, f.Text)
		}
	}
	_, err := b.Peek(t.Context(), 5)
	seen("preview", err)
	_, err = b.Claim(t.Context(), 5, lease)
	seen("claim", err)
	check(t, b.Close())
}
