package cli

import (
	"strings"
	"testing"
)

// TestDoctor_Where: a row for which source.where is NULL is no event, and a time without zone is compared in the database's.
func TestDoctor_Where(t *testing.T) {
	t.Parallel()
	for name, sqlite := range map[string]bool{"postgres": false, "sqlite": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			id, due, group, times := "bigserial PRIMARY KEY", "run_at <= now()", "uuid", "timestamp"
			if sqlite {
				id, due, group, times = "INTEGER PRIMARY KEY AUTOINCREMENT", "julianday(run_at) <= julianday('now')", "TEXT", "TEXT"
			} else {
				db.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''Asia/Tokyo''', current_database()); END $$`)
			}
			db.exec("CREATE TABLE mails (id " + id + ", body TEXT, sent_at " + times + ", run_at " + times + ", group_id " + group + ")")
			db.exec("INSERT INTO mails (body, run_at) VALUES ('1', NULL), ('2', '2020-01-01 00:00:00'), ('3', '2050-01-01 00:00:00')")
			doctor := func(where string) (said string) {
				t.Helper()
				path := write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: mails\n      where: \""+where+"\"\n      project: |\n        SELECT e.id, '1' AS payload FROM {events} e\n    sink: {url: 'stdout:'}\n")
				if r := do(t, nil, "migrate", "-c", path); r.code != 0 {
					t.Fatal(r.stdout + r.stderr)
				}
				all := doctorJSON(t, path, 0)
				return all.find("p", "warning", "source.where")
			}
			if said := excluded(t, db.url, "body = 'redy'"); !strings.Contains(said, `no event is due; the condition excludes 3 rows of table`) || !strings.Contains(said, `: body = 'redy'`) {
				t.Errorf("doctor says\n%s", said)
			}
			if said := excluded(t, db.url, "body = '1'"); strings.Contains(said, "no event is due") {
				t.Errorf("doctor says\n%s", said)
			}
			const undecided, zone = "the condition is NULL (1 of the last 10000), because a column that it compares is NULL", "and source.where compares it with the time in the database's zone, Asia/Tokyo"
			if said := doctor("sent_at IS NULL AND " + due); !strings.Contains(said, undecided) || strings.Contains(said, "column run_at of table public.mails has no time zone, "+zone) == sqlite || strings.Contains(said, "column sent_at") {
				t.Errorf("doctor says\n%s", said)
			}
			for _, right := range []string{"(run_at IS NULL OR %)", "run_at IS NOT NULL AND %"} {
				due := due
				if !sqlite {
					due += " AT TIME ZONE 'UTC'"
				}
				if said := doctor(strings.Replace(right, "%", due, 1)); strings.Contains(said, "is NULL (") || strings.Contains(said, "zone") {
					t.Errorf("with %s doctor says\n%s", right, said)
				}
			}
		})
	}
}

// excluded returns what doctor says of a condition that is no warning.
func excluded(t *testing.T, url, where string) string {
	t.Helper()
	path := write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+url+"'\n      table: mails\n      where: \""+where+"\"\n      project: |\n        SELECT e.id, '1' AS payload FROM {events} e\n    sink: {url: 'stdout:'}\n")
	do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
	all := doctorJSON(t, path, 0)
	return all.find("p", "ok", "source.where")
}
