package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// customBuffer is a buffer on a custom table with a parent table and eight events: those with odd
// ids have parent 1, the others parent 2, and events 1 and 4 are stamped by hand.
func customBuffer(t testing.TB, project, group string) *Buffer {
	t.Helper()
	url := "sqlite://" + filepath.Join(t.TempDir(), "app.db")
	if _, err := Migrate(t.Context(), url, SchemaConfig{Table: "t", Custom: true}); err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{URL: url, Table: "t", Pipeline: "orders", Custom: buffer.CustomTable{ID: "id", Project: project}})
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
		"CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, p INTEGER NOT NULL, payload TEXT, size AS (length(payload)), [odd \"name] DEFAULT 1, group_id " + group + ")",
		"INSERT INTO t (p, payload) VALUES (1, 11), (2, 12), (1, 13), (2, 14), (1, 15), (2, 16), (1, 17), (2, 18)",
		"UPDATE t SET group_id = 'another' WHERE id IN (1, 4)",
	} {
		if _, err := b.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// {events} stands for the rows of the batch wherever it is used, and they are found by their key.
func TestProjection_Events(t *testing.T) {
	t.Parallel()
	// The batch has the events 2, 3, 5 and 6.
	const found = "2=12 3=13 5=15 6=16"
	for project, want := range map[string]string{
		"SELECT id, payload FROM {events} ;":                                                                                                   found,
		"SELECT e.id, e.payload FROM {events} AS e WHERE e.group_id = ?":                                                                       found,
		"SELECT id, size AS payload FROM {events}":                                                                                             "2=2 3=2 5=2 6=2",
		"SELECT id, \"odd \"\"name\" AS payload FROM {events}":                                                                                 "2=1 3=1 5=1 6=1",
		"SELECT e.id, name AS payload FROM {events} e JOIN p ON p.id = e.p ORDER BY name -- last":                                              `2="two" 3="one" 5="one" 6="two"`,
		"SELECT e.id, count(p.id) AS payload FROM {events} e LEFT JOIN p ON p.id = e.p AND p.id = 1 GROUP BY e.id":                             "2=0 3=1 5=1 6=0",
		"SELECT id, (SELECT count(*) FROM {events} o WHERE o.id <= e.id) AS payload FROM {events} e":                                           "2=1 3=2 5=3 6=4",
		"WITH batch AS (SELECT * FROM {events}) SELECT id, payload FROM batch WHERE p = 1 UNION ALL SELECT id, payload FROM batch WHERE p = 2": found,
		"SELECT id, payload FROM t WHERE group_id = ?":                                                                                         found,
	} {
		for _, group := range []string{"TEXT", "BLOB"} {
			b := customBuffer(t, project, group)
			batch, err := b.Claim(t.Context(), 4, time.Hour)
			if err != nil || batch.ProjectErr != nil {
				t.Fatalf("%s: %v, %+v", project, err, batch)
			}
			var got []string
			for _, e := range batch.Events {
				got = append(got, e.Identity()+"="+string(e.Payload))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s: got %v; expected %s", project, got, want)
			}
			if !strings.Contains(project, "{events}") {
				continue
			}
			err = b.read(t.Context(), "", func(tx transaction) error {
				steps, _, err := b.events.(*customTable).projectionPlan(t.Context(), tx)
				for _, step := range steps {
					if strings.HasPrefix(step, "SCAN t") || strings.HasPrefix(step, "SCAN e") || strings.HasPrefix(step, "SCAN o") {
						t.Errorf("%s: the plan reads the whole table: %q", project, steps)
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestProjection_ClassifiesErrors(t *testing.T) {
	t.Parallel()
	for what, data := range map[string]bool{
		"CASE id WHEN 2 THEN json('{no') ELSE payload END":                             true,
		"CASE id WHEN 5 THEN json_extract('{no', '$.a')\n\nELSE payload END":           true,
		"abs(CASE id WHEN 3 THEN -9223372036854775808 ELSE 1 END)":                     true,
		"CASE id WHEN 3 THEN length(zeroblob(2000000000 + id)) ELSE 1 END":             true,
		"(SELECT sum(v) FROM (SELECT 9223372036854775807 AS v UNION ALL SELECT e.id))": true,
		"nonsense":          false,
		"nonsense(payload)": false,
		"abs(payload, 1)":   false,
		"(SELECT":           false,
	} {
		for _, from := range []string{"{events} e", "t e"} {
			b := customBuffer(t, "SELECT id, "+what+" AS payload FROM "+from+" WHERE group_id = ?", "TEXT")
			batch, err := b.Claim(t.Context(), 4, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if err := batch.ProjectErr; err == nil || errors.Is(err, buffer.ErrEventData) != data || errors.Is(err, buffer.ErrDatabaseUnavailable) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s of %s: %v, an event's doing: %t", what, from, err, data)
			}
		}
	}
}

func TestProjection_DatabaseUnavailable(t *testing.T) {
	t.Parallel()
	b := customBuffer(t, "SELECT id, payload FROM t WHERE group_id = ?", "TEXT")
	batch, err := b.Claim(t.Context(), 4, time.Hour)
	if err != nil || batch.ProjectErr != nil {
		t.Fatal(batch, err)
	}
	b.events.(*customTable).reads.SetMaxIdleConns(0)
	if err := os.Rename(b.file, b.file+".away"); err != nil {
		t.Fatal(err)
	}
	b.events.project(t.Context(), batch, time.Hour)
	if !errors.Is(batch.ProjectErr, buffer.ErrDatabaseUnavailable) {
		t.Errorf("without its file: %v", batch.ProjectErr)
	}
}
