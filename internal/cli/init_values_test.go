package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInit_Values: a column that delays or marks rows shows it by its values, whatever its name.
func TestInit_Values(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sqlite                bool
		create, insert, empty string
		want                  []string
	}{
		"postgres": {
			false,
			`CREATE TYPE stage AS ENUM ('ready', 'delivered');
			CREATE TABLE "Notes" (id bigserial PRIMARY KEY, event_type text, data jsonb, visible_after timestamptz, "startTime" timestamp, publish_on date, due bigint, tick bigint, delay_seconds int,
				aasm_state text DEFAULT 'pending', stage stage, expires_at timestamptz, number bigint, read_by timestamptz, group_id uuid)`,
			`INSERT INTO "Notes" (event_type, visible_after, "startTime", publish_on, due, tick, delay_seconds, aasm_state, stage, expires_at, number, read_by)
			SELECT 'sent', now() + interval '1 day', now() + interval '2 days', current_date + 5, extract(epoch FROM now()) + 3600, extract(epoch FROM now()) * 1000 + 3600000, 3600, 'sent', 'delivered', now() + interval '1 day',
				extract(epoch FROM now()) + 3600, now() FROM generate_series(1, 3)`,
			`INSERT INTO "Notes" (data, delay_seconds) VALUES ('{}', 0)`,
			[]string{
				"Warning: 3 of the newest 4 rows have a visible_after in the future, and are sent at once. If it delays rows, add to source (relay doctor then names the index that it needs): available_at: visible_after ",
				"3 of the newest 4 rows have a startTime in the future, and are sent at once. If it delays rows, name the condition as source.where",
				"rows have a publish_on in the future", "rows have a due in the future", "rows have a tick in the future", "rows have a delay_seconds greater than 0",
				"by the values of aasm_state. The relay does not look at it, and would send them again. If it says which rows are events, add to source, with your values: where: 'aasm_state = ''pending''' done: mark mark: {aasm_state: '''sent'''}",
				"by the values of stage.",
				"3 of the newest 4 rows have no data, which is the payload. An event without payload becomes a dead letter. If they are events, send something else for them, such as coalesce(e.data, '{}') AS payload;",
			},
		},
		"sqlite": {
			true,
			`CREATE TABLE "Notes" (id INTEGER PRIMARY KEY AUTOINCREMENT, event_type TEXT, data TEXT, visible_after TEXT, due INTEGER, due_ms INTEGER, delay_seconds INT,
				aasm_state TEXT DEFAULT 'pending', expires_at TEXT, number INTEGER, read_by TEXT, group_id TEXT)`,
			`INSERT INTO "Notes" (event_type, visible_after, due, due_ms, delay_seconds, aasm_state, expires_at, number, read_by)
			SELECT 'sent', datetime('now', '+1 day'), n, n * 1000, 3600, 'sent', datetime('now', '+1 day'), n, datetime('now')
			FROM (SELECT CAST(strftime('%s', 'now') AS INTEGER) + 3600 AS n UNION ALL SELECT CAST(strftime('%s', 'now') AS INTEGER) + 3601)`,
			`INSERT INTO "Notes" (data, delay_seconds) VALUES ('{}', 0)`,
			[]string{
				"2 of the newest 3 rows have a visible_after in the future, and are sent at once. If it delays rows, add to source (relay doctor then names the index that it needs): available_at: visible_after",
				"rows have a due in the future", "rows have a due_ms in the future", "rows have a delay_seconds greater than 0", "by the values of aasm_state.", "where: 'aasm_state = ''pending'''",
				"rows have no data, which is the payload.",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, c.sqlite)
			db.exec(c.create)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			said := func() string {
				t.Helper()
				r := do(t, nil, "init", "--source", db.url, "--table", "Notes", "--sink", "stdout:", "-o", path, "--force")
				r.want(t, 0, "Wrote ", "")
				text, err := os.ReadFile(path)
				if err != nil || !strings.Contains(string(text), "A row whose data is NULL becomes a dead letter") {
					t.Errorf("the file is\n%s, %v", text, err)
				}
				return strings.Join(strings.Fields(r.stdout), " ")
			}
			db.exec(c.empty)
			if got := said(); strings.Contains(got, "of the newest") {
				t.Errorf("of a row with nothing odd init says %s", got)
			}
			db.exec(c.insert)
			got := said()
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("init does not say %s, but %s", want, got)
				}
			}
			for _, not := range []string{"expires_at in", "number in", "values of event_type", "read_by in", "could not"} {
				if strings.Contains(got, not) {
					t.Errorf("init says %s: %s", not, got)
				}
			}
		})
	}
}

// TestInit_EncodedValues: JSON in a text column is sent as a string, unless the projection is written as init says.
func TestInit_EncodedValues(t *testing.T) {
	t.Parallel()
	for name, sqlite := range map[string]bool{"postgres": false, "sqlite": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			id, group := "bigserial PRIMARY KEY", "uuid"
			if sqlite {
				id, group = "INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT"
			}
			db.exec("CREATE TABLE order_events (id " + id + `, "Details" TEXT, note TEXT, group_id ` + group + ")")
			db.exec(`INSERT INTO order_events ("Details", note) VALUES ('{"a": 1}', '[urgent] call {name}'), ('[1]', NULL), (' [{"a": 1}]', '{name}'), (NULL, '')`)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			r := do(t, nil, "init", "--source", db.url, "--table", "order_events", "--sink", "stdout:", "-o", path)
			r.want(t, 0, "Wrote ", "")
			said := strings.Join(strings.Fields(r.stdout), " ")
			rows, change := "2 of the newest 4 rows", `add || jsonb_build_object('Details', e."Details"::jsonb) to the payload in source.project`
			if sqlite {
				rows, change = "3 of the newest 4 rows", `write json(e."Details") in place of e."Details" in source.project`
			}
			if want := "Warning: " + rows + " have JSON in the text column Details. It is sent as a string that contains JSON. To send it as JSON, " + change; !strings.Contains(said, want) || strings.Contains(said, "column note") {
				t.Errorf("init does not say %s, but %s", want, said)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			config := strings.Replace(string(text), "to_jsonb(e) - 'group_id'", `to_jsonb(e) - 'group_id' || jsonb_build_object('Details', e."Details"::jsonb)`, 1)
			if sqlite {
				config = strings.Replace(string(text), `e."Details"`, `json(e."Details")`, 1)
			}
			env := []string{"RELAY_SOURCE_URL=" + db.url, "RELAY_SINK_URL=stdout:"}
			path = write(t, config)
			do(t, env, "migrate", "-c", path).want(t, 0, ": ", "")
			for _, want := range []string{`"Details":{"a":1}`, `"Details":null`} {
				if got := do(t, env, "preview", "-c", path, "-n", "4").stdout; !strings.Contains(strings.ReplaceAll(got, " ", ""), want) {
					t.Errorf("%s is not in %s", want, got)
				}
			}
		})
	}
}
