package postgres

import (
	"fmt"
	neturl "net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestShadow: a projection runs in the shadow of its batch where that means the same, and
// nowhere else. What runs as it stands is sent as well.
func TestShadow(t *testing.T) {
	t.Parallel()
	p := newOwnPatient(t)
	if _, err := p.conn.Exec(t.Context(), `
SET search_path = app;
CREATE TABLE "Odd; ""table""" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "the kind" text, group_id uuid);
CREATE VIEW seen AS SELECT * FROM "Odd; ""table""";
CREATE FUNCTION kinds(uuid) RETURNS SETOF bigint STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT id FROM app."Odd; ""table""" WHERE group_id = $1; END $$;
CREATE FUNCTION whole(app."Odd; ""table""") RETURNS text STABLE LANGUAGE sql AS $$ SELECT $1."the kind" $$;
CREATE TABLE parents (LIKE "Odd; ""table""");
CREATE TABLE heirs () INHERITS (parents);
CREATE SCHEMA other;
CREATE TABLE other."Odd; ""table""" (LIKE app."Odd; ""table""");
INSERT INTO "Odd; ""table""" ("the kind") SELECT 'kind ' || i FROM generate_series(1, 6) i`); err != nil {
		t.Fatal(err)
	}
	const odd = ` FROM "Odd; ""table""" e`
	first := shadowed(t, p.url, `app."Odd; ""table"""`, "", `SELECT id, '{}' AS payload`+odd+` WHERE group_id = $1`, "")
	batch, err := first.Claim(t.Context(), 3, time.Hour)
	if err != nil || len(batch.Events) != 3 || batch.ProjectErr != nil || batch.Events[0].NoProjection {
		t.Fatalf("claimed %+v, %v", batch, err)
	}
	group := batch.GroupID
	for name, c := range map[string]struct{ project, path, plain string }{
		"as it should be":    {project: `SELECT e.id, '{}' AS payload` + odd + ` WHERE e.group_id = $1`},
		"ended":              {project: `SELECT e.id, '";"' AS payload` + odd + ` WHERE group_id = $1 ; -- of; the batch`},
		"ended twice":        {project: `SELECT e.id, to_jsonb(e) AS payload` + odd + ` WHERE group_id = $1;; /* and; so on */ `},
		"its own WITH":       {project: `WITH x AS (SELECT *` + odd + ` WHERE group_id = $1) SELECT id, '{}' AS payload FROM x a ORDER BY 1`},
		"the same name":      {project: `WITH "Odd; ""table""" AS (SELECT *` + odd + ` WHERE group_id = $1) SELECT id, '{}' AS payload` + odd},
		"a parent":           {project: `SELECT e.id, '{}' AS payload` + odd + ` JOIN contact_activities a USING (id) WHERE $1 = e.group_id AND kind = 'call'`},
		"a parent first":     {project: `SELECT e.id, '{}' AS payload FROM contact_activities a LEFT JOIN "Odd; ""table""" e USING (id) WHERE e.group_id = $1`},
		"counted":            {project: `SELECT min(id) AS id, '{}' AS payload` + odd + ` GROUP BY group_id HAVING group_id = $1`},
		"by the batch":       {project: `SELECT * FROM (SELECT id, '{}' AS payload, group_id, rank() OVER (PARTITION BY group_id ORDER BY id)` + odd + `) x WHERE group_id = $1`},
		"a whole row":        {project: `SELECT id, to_jsonb(whole(e)) AS payload` + odd + ` WHERE group_id = $1`},
		"its schema":         {project: `SELECT id, '{}' AS payload FROM app."Odd; ""table""" WHERE group_id = $1`, plain: "by its schema's name"},
		"a view":             {project: `SELECT id, '{}' AS payload FROM seen WHERE group_id = $1`, plain: "through a view"},
		"a function":         {project: `SELECT kinds AS id, '{}' AS payload FROM kinds($1)`, plain: "in 0 places"},
		"twice":              {project: `SELECT e.id, (SELECT to_jsonb(max(o.id)) FROM "Odd; ""table""" o) AS payload` + odd + ` WHERE group_id = $1`, plain: "in 2 places"},
		"joined with itself": {project: `SELECT e.id, to_jsonb(o."the kind") AS payload` + odd + ` JOIN "Odd; ""table""" o ON o.id < e.id WHERE e.group_id = $1`, plain: "in 2 places"},
		"twice by schema":    {project: `SELECT e.id, (SELECT to_jsonb(max(o.id)) FROM app."Odd; ""table""" o) AS payload` + odd + ` WHERE group_id = $1`, plain: "in 2 places"},
		"ranked among all":   {project: `SELECT * FROM (SELECT id, '{}' AS payload, group_id, rank() OVER (ORDER BY id)` + odd + `) x WHERE group_id = $1`, plain: "more of it"},
		"the first of all":   {project: `SELECT * FROM (SELECT id, '{}' AS payload, group_id` + odd + ` ORDER BY id LIMIT 3) x WHERE group_id = $1`, plain: "more of it"},
		"the unclaimed too":  {project: `SELECT id, '{}' AS payload` + odd + ` WHERE group_id = $1 OR group_id IS NULL`, plain: "more of it"},
		"others too":         {project: `SELECT id, '{}' AS payload` + odd + ` WHERE group_id = $1 OR group_id IS NOT NULL`, plain: "more of it"},
		"all":                {project: `SELECT id, to_jsonb($1) AS payload` + odd, plain: "more of it"},
		"as a text":          {project: `SELECT id, '{}' AS payload` + odd + ` WHERE group_id::text = $1::text`, plain: "more of it"},
		"a system column":    {project: `SELECT id, to_jsonb(ctid::text) AS payload` + odd + ` WHERE group_id = $1`, plain: "what only the table itself has"},
		"another path":       {project: `SELECT id, '{}' AS payload FROM app."Odd; ""table""" WHERE group_id = $1`, path: "other, app", plain: "search_path"},
		"by another":         {project: `SELECT e.id, '{}' AS payload FROM app."Odd; ""table""" x JOIN "Odd; ""table""" e USING (id) WHERE x.group_id = $1 AND e.group_id = $1`, path: "other, app", plain: "search_path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := shadowed(t, p.url, `app."Odd; ""table"""`, c.path, c.project, c.plain)
			if c.plain != "" {
				return
			}
			rows := func(sql string) []string {
				conn, err := b.db.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Release()
				got, err := conn.Query(t.Context(), sql, group.String())
				if err != nil {
					t.Fatal(err)
				}
				all, err := pgx.CollectRows(got, func(row pgx.CollectableRow) (string, error) {
					v, err := row.Values()
					return fmt.Sprint(v...), err
				})
				if err != nil {
					t.Fatal(err)
				}
				slices.Sort(all)
				return all
			}
			if as, plain := rows(b.table.Load().own.project), rows(unended(c.project)); len(plain) == 0 || !slices.Equal(as, plain) {
				t.Errorf("in the shadow it returns %q, without it %q", as, plain)
			}
		})
	}
	t.Run("children", func(t *testing.T) {
		t.Parallel()
		p.exec("ALTER TABLE app.parents ADD PRIMARY KEY (id)")
		shadowed(t, p.url, "app.parents", "", "SELECT id, '{}' AS payload FROM parents WHERE group_id = $1", "partitions or children")
	})
}

// shadowed opens a buffer and tells what stands against the shadow, if anything should.
func shadowed(t *testing.T, url, table, path, project, plain string) *Buffer {
	t.Helper()
	if path == "" {
		path = "app, public"
	}
	between := "?"
	if strings.Contains(url, "?") {
		between = "&"
	}
	b, err := Open(Config{
		URL: url + between + "search_path=" + neturl.QueryEscape(path), Pipeline: "activities", Table: table, Schema: "relay",
		Own: buffer.CustomTable{ID: "id", Project: project},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := b.table.Load().own
	if (own.plain == "") != (plain == "") || !strings.Contains(own.plain, plain) || (own.project == project) != (plain != "") {
		t.Errorf("%q stands against the shadow, %q was expected; it runs %s", own.plain, plain, own.project)
	}
	return b
}
