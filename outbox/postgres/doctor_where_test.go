package postgres_test

import (
	"strings"
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestDiagnose_Where: the fix makes a claim read events alone, and what cannot be in an index is named.
func TestDiagnose_Where(t *testing.T) {
	t.Parallel()
	o := newJournal(t, 1)
	o.exec(t, "DROP INDEX journal_id_idx; INSERT INTO journal (body, status) SELECT 'history', 'sent' FROM generate_series(1, 5000)")
	o.exec(t, "CREATE TABLE parts (journal bigint REFERENCES journal); ANALYZE journal")
	o.exec(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE DELETE ON journal FOR EACH ROW EXECUTE FUNCTION keep()`)
	const about = "source.where"
	findings := o.Diagnose(t.Context())
	warning := find(findings, buffer.LevelWarning, about, "no partial index of table relay.journal on id has only events")
	if warning == nil {
		t.Fatalf("got %+v", findings)
	}
	if some := faults(findings); len(some) != 1 { // nothing about deletes, which do not happen
		t.Errorf("got %+v", some)
	}
	costs := find(findings, buffer.LevelOK, "source.mark", "sets attempts, processed_at, status, and writes a new version of the row and an entry in each of its indexes that have all rows (1)")
	if costs == nil {
		t.Fatalf("nothing says what a mark costs: %+v", findings)
	}
	o.exec(t, costs.Fix)
	if costs := find(o.Diagnose(t.Context()), buffer.LevelOK, "source.mark", ""); costs == nil || costs.Fix != "" {
		t.Errorf("after the fix: %+v", costs)
	}
	o.exec(t, warning.Fix)
	o.exec(t, "ANALYZE journal")
	if findings := o.Diagnose(t.Context()); len(faults(findings)) > 0 || find(findings, buffer.LevelOK, about, "a claim finds events by partial index journal_id_idx") == nil {
		t.Errorf("after the fix: %+v", findings)
	}
	o.exec(t, "DROP INDEX journal_id_idx; CREATE INDEX ON journal (id) WHERE body = 'event'")
	if find(o.Diagnose(t.Context()), buffer.LevelWarning, about, "the planner does not use partial index relay.journal_id_idx for a claim") == nil {
		t.Error("an index of other rows is not named")
	}
	o.exec(t, "DROP INDEX journal_id_idx")

	timed := o.config
	timed.Custom.Where = "status = 'new' AND created_at <= now()"
	warning = find(diagnoseWith(t, timed), buffer.LevelWarning, about, "functions in index predicate must be marked IMMUTABLE")
	if warning == nil || !strings.Contains(warning.Fix, "without that part") {
		t.Fatalf("got %+v", warning)
	}
	if got := o.text(t, "SELECT count(*)::text FROM pg_class WHERE relname LIKE 'relay_where%'"); got != "0" {
		t.Errorf("%s tables are left", got)
	}
	o.exec(t, "CREATE INDEX ON journal (id) WHERE status = 'new'; ANALYZE journal")
	if find(diagnoseWith(t, timed), buffer.LevelOK, about, "a claim finds events by partial index") == nil {
		t.Error("an index of a part of the condition is not used")
	}
}
