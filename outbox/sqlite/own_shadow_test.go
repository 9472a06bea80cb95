package sqlite

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// theirTable is a buffer on a table of the user's own, with parents and a view beside it,
// and eight events, whose stamps are not in the order of ids: of the parents 1, 2, 1, 2...
func theirTable(t testing.TB, project string) *Buffer {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "app.db")
	if _, err := Migrate(t.Context(), url, SchemaConfig{Table: "t", Own: true}); err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{URL: url, Table: "t", Pipeline: "orders", Own: buffer.CustomTable{ID: "id", Project: project}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, statement := range []string{
		"CREATE TABLE p (id INTEGER PRIMARY KEY, name TEXT)",
		"INSERT INTO p VALUES (1, '\"one\"'), (2, '\"two\"'), (3, '\"three\"')",
		"CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, p INTEGER NOT NULL, payload TEXT, size AS (length(payload)), [odd \"name] DEFAULT 1, group_id TEXT)",
		"CREATE VIEW v AS SELECT * FROM t",
		"CREATE INDEX parents ON t (p)",
		"INSERT INTO t (p, payload) VALUES (1, 11), (2, 12), (1, 13), (2, 14), (1, 15), (2, 16), (1, 17), (2, 18)",
		"UPDATE t SET group_id = 'another' WHERE id IN (1, 4)",
	} {
		if _, err := b.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// TestShadow: a projection returns what it returns of the whole table, whatever it reads,
// and the table is in the shadow wherever this is certain.
func TestShadow(t *testing.T) {
	t.Parallel()
	// The batch has the events 2, 3, 5, 6.
	const found = "2=12 3=13 5=15 6=16"
	for project, c := range map[string]struct {
		sees sight
		want string
	}{
		"SELECT id, payload FROM t WHERE group_id = ?":                                                                              {batchOnly, found},
		"SELECT e.id, e.payload FROM \"T\" AS e WHERE ?1 = e.group_id":                                                              {batchOnly, found},
		"SELECT * FROM t WHERE group_id IN (?)":                                                                                     {batchOnly, found},
		"SELECT * FROM t WHERE group_id IS ?":                                                                                       {batchOnly, found},
		"SELECT id, payload FROM t WHERE group_id = ? ;; -- main.t ;\n ;":                                                           {batchOnly, found},
		"SELECT id, payload FROM t WHERE group_id = ?; /* ' */ -- v":                                                                {batchOnly, found},
		"-- t\nSELECT id, payload FROM t WHERE group_id = ? /* open":                                                                {batchOnly, found},
		"SELECT id, size AS payload FROM t WHERE group_id = ?":                                                                      {batchOnly, "2=2 3=2 5=2 6=2"},
		"SELECT id, \"odd \"\"name\" AS payload FROM t WHERE group_id = ?":                                                          {batchOnly, "2=1 3=1 5=1 6=1"},
		"SELECT id, '\"main.t, v;--\"' AS payload FROM t WHERE group_id = ?":                                                        {batchOnly, `2="main.t, v;--" 3="main.t, v;--" 5="main.t, v;--" 6="main.t, v;--"`},
		"SELECT e.id, name AS payload FROM t e JOIN p ON p.id = e.p WHERE e.group_id = ? ORDER BY name":                             {batchOnly, `2="two" 3="one" 5="one" 6="two"`},
		"SELECT e.id, name AS payload FROM p LEFT JOIN t e ON e.p = p.id WHERE e.group_id = ?":                                      {batchOnly, `2="two" 3="one" 5="one" 6="two"`},
		"SELECT e.id, count(p.id) AS payload FROM t e LEFT JOIN p ON p.id = e.p AND p.id = 1 WHERE e.group_id = ? GROUP BY e.id":    {batchOnly, "2=0 3=1 5=1 6=0"},
		"WITH mine AS (SELECT * FROM t WHERE group_id = ?) SELECT m.id, name AS payload FROM mine m JOIN p ON p.id = m.p":           {batchOnly, `2="two" 3="one" 5="one" 6="two"`},
		"WITH e AS (SELECT * FROM t) SELECT id, payload FROM e WHERE group_id = ?":                                                  {batchOnly, found},
		"SELECT id, payload FROM t WHERE group_id = ?1 AND p = 1 UNION ALL SELECT id, payload FROM t WHERE group_id = ?1 AND p = 2": {batchOnly, found},
		"SELECT id, (SELECT count(*) FROM t o WHERE o.p = e.p AND o.group_id = ?1) AS payload FROM t e WHERE group_id = ?1":         {batchOnly, "2=2 3=2 5=2 6=2"},
		"SELECT id, (SELECT count(*) FROM main.t o WHERE o.p = e.p) AS payload FROM t e WHERE group_id = ?":                         {batchOnly, "2=4 3=4 5=4 6=4"},
		"SELECT id, (SELECT count(*) FROM v o WHERE o.p = e.p) AS payload FROM t e WHERE group_id = ?":                              {batchOnly, "2=4 3=4 5=4 6=4"},
		"SELECT id, payload FROM (SELECT *, row_number() OVER (PARTITION BY group_id ORDER BY id) AS n FROM t) WHERE group_id = ?":  {batchOnly, found},
		"SELECT rowid AS id, payload FROM t WHERE group_id = ?":                                                                     {batchOnly, found},
		"SELECT e.OID AS id, e._rowid_ AS payload FROM t e WHERE group_id = ?":                                                      {batchOnly, "2=2 3=3 5=5 6=6"},
		"SELECT e.id, (SELECT count(*) FROM t WHERE group_id = ?1 AND rowid + 0 < e.id) AS payload FROM t e WHERE group_id = ?1":    {batchOnly, "2=0 3=1 5=2 6=3"},
		"SELECT e.id, (SELECT count(*) FROM t WHERE group_id = ?1 AND rowid < e.id) AS payload FROM t e WHERE group_id = ?1":        {more, "2=0 3=1 5=2 6=3"},
		// One name, more than the batch.
		"SELECT id, (SELECT count(*) FROM t o WHERE o.p = e.p) AS payload FROM t e WHERE group_id = ?":                                   {more, "2=4 3=4 5=4 6=4"},
		"SELECT id, (SELECT max(id) FROM t) AS payload FROM t e WHERE group_id = ?":                                                      {more, "2=8 3=8 5=8 6=8"},
		"SELECT id, (SELECT count(*) FROM t) AS payload FROM t e WHERE group_id = ?":                                                     {more, "2=8 3=8 5=8 6=8"},
		"SELECT id, (SELECT payload FROM t o WHERE o.id = e.id - 1) AS payload FROM t e WHERE group_id = ?":                              {more, "2=11 3=12 5=14 6=15"},
		"SELECT id, payload FROM t e WHERE group_id = ? AND NOT EXISTS (SELECT 1 FROM t o WHERE o.p = e.p AND o.id = e.id + 2)":          {more, "unprojected"},
		"WITH e AS (SELECT * FROM t) SELECT a.id, count(*) AS payload FROM e a JOIN e b ON a.p = b.p WHERE a.group_id = ? GROUP BY a.id": {more, "2=4 3=4 5=4 6=4"},
		"SELECT id, n AS payload FROM (SELECT id, group_id, row_number() OVER (ORDER BY id) AS n FROM t) WHERE group_id = ?":             {more, "2=2 3=3 5=5 6=6"},
		"SELECT id, payload FROM (SELECT * FROM t ORDER BY id LIMIT 3) WHERE group_id = ?":                                               {more, "unprojected"},
		"SELECT min(id) AS id, count(*) AS payload FROM t GROUP BY p HAVING min(coalesce(group_id, 'z')) = ?":                            {more, "not in the batch"},
		"SELECT id, payload FROM t WHERE group_id = ? OR group_id IS NULL":                                                               {more, "not in the batch"},
		"SELECT id, payload FROM t WHERE group_id >= ?":                                                                                  {more, "not in the batch"},
		"SELECT id, payload FROM t WHERE group_id IN (?, 'another')":                                                                     {more, "not in the batch"},
		"SELECT id, payload FROM t WHERE group_id = CASE ? WHEN '' THEN '' ELSE 'another' END":                                           {more, "not in the batch"},
		"SELECT e.id, e.payload FROM p JOIN t e ON e.group_id = p.name || ? WHERE p.id = 1":                                              {more, "unprojected"},
		"SELECT p.id + 1 AS id, p.name AS payload FROM p LEFT JOIN t e ON e.group_id = p.name WHERE p.id < 3 AND ? <> ''":                {more, "unprojected"},
		"SELECT id, payload FROM t WHERE ? IS NOT NULL":                                                                                  {more, "not in the batch"},
		// What the shadow could not take the place of.
		"SELECT main.t.id, payload FROM t WHERE group_id = ?":                       {more, found},
		"SELECT id, payload FROM t INDEXED BY parents WHERE p > 0 AND group_id = ?": {more, found},
		"SELECT id, payload FROM main.t WHERE group_id = ?":                         {elsewhere, found},
		"SELECT id, payload FROM v WHERE group_id = ?":                              {elsewhere, found},
		"SELECT id + 1 AS id, name AS payload FROM p WHERE id < 3 AND ? <> ''":      {elsewhere, "unprojected"},
	} {
		b := theirTable(t, project)
		batch, err := b.Claim(t.Context(), 4, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if ids := batch.IDs(); !slices.Equal(ids, []int64{2, 3, 5, 6}) {
			t.Fatalf("claimed %v", ids)
		}
		s := b.own.shape.Load()
		if got := sight(s.sees.Load()); got != c.sees {
			t.Errorf("%s: its sight is %d, want %d", project, got, c.sees)
		}
		got := projectedAs(batch)
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", project, got, c.want)
		}
		s.sees.Store(int32(more))
		plain := *batch
		plain.ProjectErr = nil
		for i, e := range plain.Events {
			plain.Events[i] = outbox.Event{ID: e.ID, CreatedAt: e.CreatedAt}
		}
		b.project(t.Context(), &plain, time.Hour)
		if d := cmp.Diff(projectedAs(&plain), got); d != "" {
			t.Errorf("%s: of the whole table (-) and as it runs (+):\n%s", project, d)
		}
	}
}

func projectedAs(batch *buffer.Lease) string {
	if batch.ProjectErr != nil {
		return batch.ProjectErr.Error()
	}
	var all []string
	for _, e := range batch.Events {
		if e.NoProjection {
			all = append(all, e.Identity()+" unprojected")
			continue
		}
		all = append(all, e.Identity()+"="+string(e.Payload))
	}
	return strings.Join(all, " ")
}

// TestShadowFollowsTheSchema: the table's columns may change at any time.
func TestShadowFollowsTheSchema(t *testing.T) {
	t.Parallel()
	b := theirTable(t, "SELECT e.id, later AS payload FROM t e JOIN u ON u.id = e.id WHERE e.group_id = ?")
	for _, c := range []struct{ ddl, want string }{
		{"CREATE TABLE u (id INTEGER PRIMARY KEY, later); INSERT INTO u VALUES (2, 1), (3, 1), (5, 1)", "2=1"},
		{"ALTER TABLE u DROP COLUMN later; ALTER TABLE t ADD COLUMN later DEFAULT 2", "3=2"},
		{"ALTER TABLE t DROP COLUMN later; ALTER TABLE u ADD COLUMN later DEFAULT 3", "5=3"},
	} {
		if _, err := b.db.ExecContext(t.Context(), c.ddl); err != nil {
			t.Fatal(err)
		}
		batch, err := b.Claim(t.Context(), 1, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if got := projectedAs(batch); got != c.want || sight(b.own.shape.Load().sees.Load()) != batchOnly {
			t.Errorf("after %s: got %s, want %s, in the shadow", c.ddl, got, c.want)
		}
	}
}

func TestEnding(t *testing.T) {
	t.Parallel()
	for project, want := range map[string]string{
		"":                              "",
		" ; -- x":                       "",
		"SELECT 1 ; ;\n":                "SELECT 1",
		"SELECT 1 -- it's\n":            "SELECT 1",
		"SELECT 1 /* ; */ ; --":         "SELECT 1",
		"SELECT 1 /* it's":              "SELECT 1",
		"SELECT '-- ;' ;":               "SELECT '-- ;'",
		"SELECT 'it''s; --' ;":          "SELECT 'it''s; --'",
		"SELECT \"/*\" AS `--`; -- */":  "SELECT \"/*\" AS `--`",
		"SELECT [--'] ;":                "SELECT [--']",
		"SELECT 1 - -1 / 2;":            "SELECT 1 - -1 / 2",
		"SELECT 1; DELETE FROM t; -- x": "SELECT 1; DELETE FROM t",
		"SELECT 'é' ;":                  "SELECT 'é'",
		"SELECT é ;":                    "SELECT é",
		"SELECT 'open ;":                "SELECT 'open ;",
	} {
		if got := ending(project); got != want {
			t.Errorf("%q ends as %q, want %q", project, got, want)
		}
	}
}

// TestPlansShadow: a projection walks over no events but those between the batch's first
// and last, whatever is known of the tables, with no index on group_id; and over no parents
// unless these are known to be few.
func TestPlansShadow(t *testing.T) {
	t.Parallel()
	const (
		many    = "INSERT INTO t (p, payload) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i % 3 + 1, i FROM n"
		parents = "INSERT INTO p (name) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT i FROM n"
	)
	for name, c := range map[string]struct {
		statements []string
		few        bool
	}{
		"nothing known":          {nil, false},
		"few parents":            {[]string{many, "ANALYZE"}, true},
		"many parents":           {[]string{many, parents, "ANALYZE"}, false},
		"no index on the parent": {[]string{many, "DROP INDEX parents", "ANALYZE"}, true},
		"many events a parent": {[]string{
			"ANALYZE", "DELETE FROM sqlite_stat1",
			"INSERT INTO sqlite_stat1 VALUES ('t', 'parents', '1000000 500'), ('p', NULL, '2000')", "ANALYZE sqlite_schema",
		}, false},
		"an empty table":       {[]string{"DELETE FROM t", "ANALYZE"}, true},
		"it was empty":         {[]string{"DELETE FROM t", "ANALYZE", many}, true},
		"an index on group_id": {[]string{many, "CREATE INDEX groups ON t (group_id)", "ANALYZE"}, true},
	} {
		for _, project := range []string{
			"SELECT * FROM t WHERE group_id = ?",
			"SELECT e.id, p.name AS payload FROM t e JOIN p ON p.id = e.p WHERE e.group_id = ?",
			"SELECT e.id, p.name AS payload FROM p JOIN t e ON p.id = e.p WHERE e.group_id = ? ORDER BY p.name, e.id",
			"SELECT e.id, p.name AS payload FROM t e LEFT JOIN p ON p.id = e.p AND p.name > '' WHERE e.group_id = ?",
			"WITH mine AS (SELECT * FROM t WHERE group_id = ?) SELECT e.id, p.name AS payload FROM mine e JOIN p ON p.id = e.p GROUP BY e.id",
		} {
			b := theirTable(t, project)
			for _, statement := range c.statements {
				if _, err := b.db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			var steps []string
			err := b.read(t.Context(), "looking at the plan", func(tx transaction) (err error) {
				steps, _, err = (&examination{b: b}).projectionPlan(t.Context(), tx)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			events := 0
			for _, step := range steps {
				switch {
				case strings.Contains(step, "main.t"):
					events++
					if !strings.Contains(step, "rowid>? AND rowid<?)") && !strings.Contains(step, "INDEX groups (group_id=?") {
						t.Errorf("%s, %s: %q", name, project, steps)
					}
				case walk([]string{step}) != "" && !strings.HasPrefix(step, "SCAN (subquery") && (!c.few || !strings.HasPrefix(step, "SCAN p")):
					t.Errorf("%s, %s: %q", name, project, steps)
				}
			}
			if events != 1 {
				t.Errorf("%s, %s: it reads the events %d times: %q", name, project, events, steps)
			}
		}
	}
}

// BenchmarkShadow claims 1,000 of 200,000 events that wait, with no index on group_id.
func BenchmarkShadow(b *testing.B) {
	for name, sees := range map[string]sight{"shadow": batchOnly, "plain": more} {
		b.Run(name, func(b *testing.B) {
			buf := theirTable(b, "SELECT e.id, p.name AS payload FROM t e JOIN p ON p.id = e.p WHERE e.group_id = ?")
			const many = "INSERT INTO t (p, payload) WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT i % 3 + 1, hex(randomblob(150)) FROM n"
			if _, err := buf.db.ExecContext(b.Context(), many); err != nil {
				b.Fatal(err)
			}
			for first := true; b.Loop(); first = false {
				batch, err := buf.Claim(b.Context(), 1000, time.Hour)
				if err != nil || batch == nil || batch.ProjectErr != nil {
					b.Fatal(batch, err)
				}
				if first {
					buf.own.shape.Load().sees.Store(int32(sees))
				}
			}
		})
	}
}
