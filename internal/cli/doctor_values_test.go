package cli

import (
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
			read_at timestamp, aasm_state text, stage stage, event_type text, created_at timestamptz DEFAULT now(), group_id uuid);
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
		"wait whose publish_on lies in the future (3 of the first 1000): they are sent at once > if it does not delay rows, add a comment to source.project: -- no delay: publish_on; if it does: name the condition as source.where, such as \"publish_on\" <= CURRENT_DATE",
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
}
