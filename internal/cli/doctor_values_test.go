package cli

import (
	"os"
	"strings"
	"testing"
)

// TestDoctor_Values: a column that delays or marks rows shows it by its values, whatever its name.
func TestDoctor_Values(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var zone string
	if err := db.conn.QueryRow(t.Context(), "SELECT format('ALTER DATABASE %I SET TimeZone = ''America/New_York''', current_database())").Scan(&zone); err != nil {
		t.Fatal(err)
	}
	db.exec(zone)
	db.exec(`CREATE TYPE stage AS ENUM ('ready', 'delivered');
		CREATE TABLE notes (id bigserial PRIMARY KEY, topic text, visible_after timestamptz, start_time timestamptz, publish_on date, expires_at timestamptz, scheduled_for timestamp,
			read_at timestamp, opens time, aasm_state text, stage stage, event_type text, created_at timestamptz DEFAULT now(), group_id uuid);
		INSERT INTO notes (visible_after, start_time, publish_on, expires_at, scheduled_for, read_at, aasm_state, stage, event_type)
		SELECT now() + interval '1 day', now() + interval '1 day', current_date + 5, now() + interval '1 day', now() AT TIME ZONE 'America/New_York' + h * interval '1 hour',
			now() AT TIME ZONE 'UTC', 'sent', 'delivered', 'sent' FROM unnest(ARRAY[1, 2, 7]) h;
		INSERT INTO notes (visible_after, scheduled_for, aasm_state, stage) VALUES (now(), now() AT TIME ZONE 'America/New_York' - interval '1 minute', 'new', 'ready')`)
	config := func(more string) string {
		return write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: notes\n      project: |\n        SELECT e.id, to_jsonb(e) - 'group_id' AS payload FROM {events} e"+more+"\n    sink: {url: 'stdout:'}\n")
	}
	path := config("")
	do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
	said := doctorJSON(t, path, 0)
	rows := said.find("p", "warning", "rows")
	for _, want := range []string{
		"wait whose visible_after lies in the future (3 of the first 1000): they are sent at once > if it does not delay rows, add a comment to source.project: -- no delay: visible_after; if it does: set source.available_at: visible_after",
		"wait whose start_time lies in the future (3 of",
		"wait whose publish_on lies in the future (3 of the first 1000): they are sent at once > if it does not delay rows, add a comment to source.project: -- no delay: publish_on; if it does: name the condition as source.where, such as \"publish_on\" IS NULL OR \"publish_on\" + coalesce(\"opens\", '00:00') <= localtimestamp",
		"wait whose scheduled_for lies in the future (3 of the first 1000): they are sent at once > set source.available_at: scheduled_for, after: ALTER TABLE",
		"TYPE timestamptz USING \"scheduled_for\" AT TIME ZONE 'America/New_York' -- or 'UTC', if they hold UTC",
		"(3 of the first 1000: lower(\"aasm_state\"::text) IN (",
		"(3 of the first 1000: lower(\"stage\"::text) IN (",
		"-- no mark: aasm_state", "done: mark and mark, and the rows stay (docs/migrating.md#a-loop-that-marks-rows)",
	} {
		if !strings.Contains(rows, want) {
			t.Errorf("doctor does not say %s, but\n%s", want, rows)
		}
	}
	for _, name := range []string{"expires_at", "read_at", "event_type", "topic"} {
		if strings.Contains(rows, name) {
			t.Errorf("doctor warns of %s:\n%s", name, rows)
		}
	}
	said = doctorJSON(t, config(" -- no delay: visible_after, start_time, publish_on -- no mark: aasm_state, stage"), 0)
	if rows := said.find("p", "warning", "rows"); strings.Count(rows, "\n") > 0 || !strings.Contains(rows, "scheduled_for") {
		t.Errorf("with comments, doctor says\n%s", rows)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	delayed := write(t, strings.Replace(string(text), "table: notes\n", "table: notes\n      available_at: scheduled_for\n", 1))
	said = doctorJSON(t, delayed, 1)
	if said := said.find("p", "error", "tables"); !strings.Contains(said, "has no time zone; expected timestamptz > ALTER TABLE") ||
		!strings.Contains(said, "AT TIME ZONE 'America/New_York' -- or 'UTC', if they hold UTC") {
		t.Errorf("with source.available_at, doctor says\n%s", said)
	}
}

// TestDoctor_Numbers: Unix times and spans delay rows, too, and a status says that a row was given up.
func TestDoctor_Numbers(t *testing.T) {
	t.Parallel()
	for name, sqlite := range map[string]bool{"postgres": false, "sqlite": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			id, now, later, more, wants := "bigserial", "extract(epoch FROM now())::bigint", "now() + interval '1 day'", ", wait interval NOT NULL DEFAULT '0'", []string{
				`> if it does not delay rows, add a comment to source.project: -- no delay: due_ms; if it does: name the condition as source.where, such as "due_ms" IS NULL OR to_timestamp("due_ms" / 1000.0) <= now()`,
				`such as "due" IS NULL OR to_timestamp("due") <= now()`, `such as "delay_seconds" IS NULL OR "created_at" + "delay_seconds" * interval '1 second' <= now()`,
				`wait whose wait is greater than 0 (2 of`, `such as "created_at" + "wait" <= now()`,
			}
			if sqlite {
				id, now, later, more, wants = "INTEGER", "CAST(strftime('%s', 'now') AS INTEGER)", "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 day')", "", []string{
					`set source.available_at: due_ms (`, `such as "delay_seconds" IS NULL OR julianday("created_at") + "delay_seconds" / 86400.0 <= julianday('now')`,
					`wait whose visible_after lies in the future (2 of the first 1000): they are sent at once > if it does not delay rows, add a comment to source.project: -- no delay: visible_after; if it does: set source.available_at: visible_after (relay doctor then names the index that it needs)`,
					`(2 of the first 1000: lower("stage") IN (`, "-- no mark: stage",
				}
			}
			group := "uuid"
			if sqlite {
				group = "TEXT"
			}
			db.exec("CREATE TABLE notes (id " + id + " PRIMARY KEY, topic TEXT, due BIGINT, due_ms BIGINT, tick BIGINT, number BIGINT, expires_at BIGINT, delay_seconds INT, visible_after " + map[bool]string{true: "TEXT", false: "timestamptz"}[sqlite] +
				", stage TEXT, aasm_state TEXT, created_at " + map[bool]string{true: "TEXT", false: "timestamptz"}[sqlite] + more + ", group_id " + group + ")")
			db.exec("INSERT INTO notes (topic, due, due_ms, tick, number, expires_at, delay_seconds, visible_after, stage, aasm_state) SELECT 'sent', n, n * 1000, n * 1000, n, n, 3600, " + later + ", 'delivered', 'Failed' FROM (SELECT " + now + " + 3600 AS n) AS x")
			db.exec("INSERT INTO notes (topic, due, due_ms, number, expires_at, delay_seconds, visible_after, stage, aasm_state) SELECT 'sent', n, n * 1000, n, n, 3600, " + later + ", 'delivered', 'Failed' FROM (SELECT " + now + " + 3600 AS n) AS x")
			db.exec("INSERT INTO notes (due, due_ms, delay_seconds, stage) SELECT n, n * 1000, 0, 'new' FROM (SELECT " + now + " AS n) AS x")
			if !sqlite {
				db.exec("UPDATE notes SET wait = interval '1 hour' WHERE topic = 'sent'")
			}
			config := func(comments string) string {
				return write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: notes\n      project: |\n        SELECT e.id, '1' AS payload FROM {events} e"+comments+"\n    sink: {url: 'stdout:'}\n")
			}
			path := config("")
			do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
			said := doctorJSON(t, path, 0)
			rows := said.find("p", "warning", "rows")
			for _, want := range append(wants, "wait whose tick lies in the future (1 of", "wait whose due lies in the future (2 of", "wait whose due_ms lies in the future (2 of", "wait whose delay_seconds is greater than 0 (2 of the first 1000): they are sent at once",
				`given up or withdrawn (2 of the first 1000: NOT (lower("aasm_state"`, "IN ('failed', ", "-- no mark: aasm_state") {
				if !strings.Contains(rows, want) {
					t.Errorf("doctor does not say %s, but\n%s", want, rows)
				}
			}
			for _, name := range []string{"number", "expires_at", "topic"} {
				if strings.Contains(rows, name) {
					t.Errorf("doctor warns of %s:\n%s", name, rows)
				}
			}
			said = doctorJSON(t, config(" -- no delay: due, tick, due_ms, delay_seconds, wait, visible_after -- no mark: stage, aasm_state"), 0)
			if rows := said.find("p", "warning", "rows"); rows != "" {
				t.Errorf("with comments, doctor says\n%s", rows)
			}
		})
	}
}
