package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// A column that delays events by its name becomes source.available_at, or init says that rows are sent at once. Doctor names rows that are
// sent too early.
func TestInit_Delay(t *testing.T) {
	t.Parallel()
	const early = ` lies in the future (1 of the first 1000): they are sent at once`
	for name, c := range map[string]struct {
		sqlite           bool
		id, column, kind string
		later            string // than now
		needs            string // of source.available_at; "" if it becomes that
		fix              string
		where            string // that init proposes
	}{
		"postgres": {false, "bigserial PRIMARY KEY", `"scheduledFor"`, "timestamptz", "now() + interval '1 day'", "", "set source.available_at: scheduledFor", ""},
		"journal":  {false, "bigserial PRIMARY KEY, sent_at timestamptz", "deliver_at", "timestamptz", "now() + interval '1 day'", "", "set source.available_at: deliver_at", ""},
		"after":    {false, "bigserial PRIMARY KEY", "send_after", "timestamptz", "now() + interval '1 day'", "", "set source.available_at: send_after", ""},
		"without zone": {
			false, "bigserial PRIMARY KEY", "run_at", "timestamp", "now() + interval '2 days'", "a timestamptz",
			"set source.available_at: run_at, after: ALTER TABLE public.reminders ALTER COLUMN \"run_at\" TYPE timestamptz USING \"run_at\" AT TIME ZONE 'Asia/Kathmandu' -- or 'UTC', if they hold UTC",
			"such as run_at IS NULL OR run_at <= now() AT TIME ZONE 'UTC' (docs/tables.md). It has no time zone, and the database's is Asia/Kathmandu:",
		},
		"uuid":           {false, "uuid PRIMARY KEY DEFAULT gen_random_uuid()", "send_at", "timestamptz", "now() + interval '1 day'", "an integer that grows, as the primary key or source.cursor", "set source.available_at: send_at", "or name the condition as source.where, such as send_at IS NULL OR send_at <= now() (docs"},
		"sqlite":         {true, "INTEGER PRIMARY KEY AUTOINCREMENT", "not_before", "TEXT", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 day')", "", "set source.available_at: not_before (", ""},
		"sqlite journal": {true, "INTEGER PRIMARY KEY AUTOINCREMENT, sent_at TEXT", "visibleAt", "TEXT", "datetime('now', '+1 day')", "", "set source.available_at: visibleAt (", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, c.sqlite)
			group := "uuid"
			if c.sqlite {
				group = "TEXT"
			}
			db.exec("CREATE TABLE reminders (id " + c.id + ", subject text, " + c.column + " " + c.kind + ", created_at " + c.kind + ", group_id " + group + ")")
			path := filepath.Join(t.TempDir(), "relay.yaml")
			column := strings.Trim(c.column, `"`)
			r := do(t, nil, "init", "--source", db.url, "--table", "reminders", "--sink", "stdout:", "-o", path)
			r.want(t, 0, "Wrote ", "")
			said := strings.Join(strings.Fields(r.stdout), " ")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if c.needs != "" {
				if want := "Warning: " + column + " looks like the time before which a row must not be sent. Rows are sent at once, because source.available_at needs " + c.needs + " ("; !strings.Contains(said, want) || strings.Contains(string(text), "\n      available_at:") {
					t.Errorf("init says %s and writes\n%s", said, text)
				}
				if !strings.Contains(said, c.where) {
					t.Errorf("init does not say %s, but %s", c.where, said)
				}
			} else {
				index := "CREATE INDEX CONCURRENTLY ON reminders (" + c.column + ") WHERE " + c.column + " IS NOT NULL"
				if c.sqlite {
					name := column
					if column != strings.ToLower(column) {
						name = `"` + column + `"`
					}
					index = buffer.SQLiteDelayedIndex("reminders_delayed", "reminders", name)
				}
				if !strings.Contains(said, index+";") || !strings.Contains(said, "No row is sent before the time in "+column+":") || !strings.Contains(string(text), "\n      available_at: "+column+"\n") {
					t.Errorf("init says %s and writes\n%s", said, text)
				}
				db.exec(index)
				if again := do(t, nil, "init", "--source", db.url, "--table", "reminders", "--sink", "stdout:", "-o", path, "--force").stdout; strings.Contains(again, index) {
					t.Errorf("with the index, init says\n%s", again)
				}
			}
			do(t, db.env, "migrate", "-c", path).want(t, 0, ": applied ", "")
			db.exec("INSERT INTO reminders (subject, " + c.column + ") VALUES ('late', " + c.later + "), ('now', NULL)")
			if doctor := do(t, db.env, "doctor", "-c", path).stdout; strings.Contains(doctor, early) != (c.needs != "") {
				t.Errorf("doctor says\n%s", doctor)
			}
			without := strings.Replace(string(text), "\n      available_at: "+column+"\n", "\n", 1)
			if err := os.WriteFile(path, []byte(without), 0o600); err != nil {
				t.Fatal(err)
			}
			doctor := do(t, db.env, "doctor", "-c", path).stdout
			if !strings.Contains(doctor, column+early) || !strings.Contains(doctor, c.fix) {
				t.Errorf("doctor says\n%s", doctor)
			}
		})
	}
}

// A time in the future is not when the row was inserted.
func TestInit_DelayIsNoAge(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec("CREATE TABLE nm (id bigserial PRIMARY KEY, body text, seen timestamptz, send_after timestamptz, group_id uuid)")
	path := filepath.Join(t.TempDir(), "relay.yaml")
	said := strings.Join(strings.Fields(do(t, nil, "init", "--source", db.url, "--table", "nm", "--sink", "stdout:", "-o", path).stdout), " ")
	if !strings.Contains(said, "If one does (seen?), set source.created_at") || !strings.Contains(said, "No row is sent before the time in send_after:") {
		t.Errorf("init says %s", said)
	}
}

// TestDoctor_CreatedAtInTheFuture: whatever a column is called, rows that wait were not inserted in the future.
func TestDoctor_CreatedAtInTheFuture(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("CREATE TABLE notes (id bigserial PRIMARY KEY, body text, leaves timestamptz, group_id uuid)")
	path := write(t, "pipelines:\n  - name: p\n    source: {url: '"+db.url+"', table: notes, created_at: leaves, project: \"SELECT e.id, to_jsonb(e) - 'group_id' AS payload FROM {events} e\"}\n    sink: {url: 'stdout:'}\n")
	do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
	db.exec("INSERT INTO notes (leaves) VALUES (now() - interval '1 day'), (now() + interval '2 seconds')")
	if r := do(t, nil, "doctor", "-c", path); strings.Contains(r.stdout, "lies in the future") {
		t.Errorf("doctor says\n%s", r.stdout)
	}
	db.exec("INSERT INTO notes (leaves) VALUES (now() + interval '1 day')")
	do(t, nil, "doctor", "-c", path).want(t, 0, "wait whose leaves lies in the future (1 of the first 1000): they are sent at once\n", "")
	do(t, nil, "doctor", "-c", path).want(t, 0, "name another column as source.created_at, or none; if it delays rows: set source.available_at: leaves\n", "")
}
