package cli

import (
	"fmt"
	"strings"
	"testing"
)

// Schemas of tenants, with tables of the same columns. A transaction locks one table as a whole, so that nobody can read it.
func TestDoctor_TableLocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const jobs = ".jobs (id bigserial PRIMARY KEY, payload jsonb, group_id uuid, created_at timestamptz DEFAULT now()); "
	db.exec("CREATE SCHEMA acme; CREATE SCHEMA bolt; CREATE SCHEMA core; CREATE TABLE acme" + jobs + "CREATE TABLE core" + jobs)
	path := write(t, fmt.Sprintf(`pipelines:
  - {name: acme, source: {url: %q, table: acme.outbox_events}, sink: {url: "stdout:"}}
  - {name: bolt, source: {url: %[1]q, table: bolt.outbox_events}, sink: {url: "stdout:"}}
  - {name: core, source: {url: %[1]q, table: core.outbox_events}, sink: {url: "stdout:"}}
  - {name: acme-jobs, source: {url: %[1]q, table: acme.jobs, project: "SELECT id, 'jobs' AS topic, payload FROM {events} e"}, sink: {url: "stdout:"}}
  - {name: core-jobs, source: {url: %[1]q, table: core.jobs, project: "SELECT id, 'jobs' AS topic, payload FROM {events} e"}, sink: {url: "stdout:"}}
`, db.url))
	do(t, nil, "migrate", "-c", path).want(t, 0, "; created table ", "")
	db.exec(`INSERT INTO acme.outbox_events (topic, payload) VALUES ('t', '1'); INSERT INTO bolt.outbox_events (topic, payload) VALUES ('t', '1');
		CREATE TABLE bolt.outbox_events_2025 (LIKE bolt.outbox_events); INSERT INTO bolt.outbox_events_2025 SELECT * FROM bolt.outbox_events;
		INSERT INTO acme.jobs (payload, group_id) VALUES ('1', gen_random_uuid()); INSERT INTO acme.outbox_buffers (buffer, claim, pipeline, owned_since) VALUES ('acme.jobs', 'stamp', 'acme-jobs', now())`)
	do(t, nil, "doctor", "-c", path, "--pipeline", "core-jobs").want(t, 0, "0 problems, 0 warnings", "")
	r := do(t, nil, "doctor", "-c", path, "--quiet", "--pipeline", "core")
	if strings.Contains(r.stdout, "outbox_events has the columns of") || !strings.Contains(r.stdout, "table bolt.outbox_events_2025 has the columns of") {
		t.Errorf("of tables of other pipelines doctor says\n%s", r.stdout)
	}

	db.exec("BEGIN; LOCK TABLE acme.outbox_events, bolt.outbox_events_2025")
	r = do(t, nil, "doctor", "-c", path, "--quiet")
	r.want(t, 1, "table acme.outbox_events is locked: statements wait for pid ", "")
	if strings.Count(r.stdout, "FAIL") != 1 || strings.Contains(r.stdout, "did not answer") || strings.Contains(r.stdout, "examining") || strings.Contains(r.stdout, "vacuum horizon") {
		t.Errorf("doctor says\n%s", r.stdout)
	}
	db.exec("ROLLBACK")
	do(t, nil, "doctor", "-c", path).want(t, 0, "0 problems", "")
}
