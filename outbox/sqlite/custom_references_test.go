package sqlite_test

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// TestCustomTable_ForeignKeys: rows that refer to an event are deleted or lose their reference
// with it, and an event without its parent is not replayed.
func TestCustomTable_ForeignKeys(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, `
		CREATE TABLE p (id INTEGER PRIMARY KEY);
		CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, payload,
			p INTEGER REFERENCES p, late INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED, group_id TEXT);
		CREATE TABLE notes (t INTEGER REFERENCES t ON DELETE CASCADE);
		CREATE TABLE marks (t INTEGER PRIMARY KEY, other INTEGER REFERENCES t (id) ON DELETE SET NULL);
		INSERT INTO p VALUES (1), (2), (3);
		INSERT INTO t (payload, p, late) VALUES (1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 1, 1), (5, 1, 2), (6, NULL, 3), (7, 1, 1);
		INSERT INTO notes VALUES (1), (2), (4);
		INSERT INTO marks VALUES (1, 1), (7, 7)`, sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
	all := func(statement, want string) {
		t.Helper()
		got := query(t, db, statement, func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) })
		if d := cmp.Diff(want, strings.Join(got, " ")); d != "" {
			t.Errorf("%s (-want +got):\n%s", statement, d)
		}
	}
	batch := claimed(t, b)
	testkit.NoError(t, b.Settle(t.Context(), batch, []buffer.Outcome{
		{Verdict: buffer.Delivered, IDs: []int64{1}}, {Verdict: buffer.Dead, IDs: []int64{2, 3, 4, 5, 6, 7}, Error: "refused"},
	}))
	all("SELECT count(*) FROM notes", "0")
	all("SELECT t || coalesce(other, '-') FROM marks", "1- 7-")

	run(t, db, "DELETE FROM p WHERE id = 2") // of a connection that does not enforce it
	refused := map[int64]string{}
	replay := func(limit, want int) {
		t.Helper()
		n, err := b.Replay(t.Context(), buffer.DeadFilter{OnRefused: func(r buffer.Refusal) { refused[r.ID] = r.Reason }}, limit)
		testkit.NoError(t, err)
		if n != want {
			t.Fatalf("replayed %d, want %d", n, want)
		}
	}
	replay(2, 2)
	all("SELECT id FROM t", "4 6")
	replay(10, 1)
	all("SELECT id FROM t", "4 6 7")
	replay(10, 0)
	all("SELECT event_id FROM outbox_dead_letters WHERE closed_at IS NULL", "2 3 5")
	const why = "FOREIGN KEY constraint failed"
	testkit.Equal(t, "refused", refused, map[int64]string{2: why, 3: why, 5: why})
	all("SELECT count(*) FROM pragma_foreign_key_check", "0")
	a, err := b.Audit(t.Context())
	testkit.NoError(t, err)
	if !a.Agrees() {
		t.Fatalf("audit: %+v", a)
	}
	run(t, db, "INSERT INTO p VALUES (2)")
	replay(10, 3)
	all("SELECT id FROM t", "2 3 4 5 6 7")
}

// TestDiagnose_ForeignKeys: doctor names the tables that prevent deletes, and those that are read
// for each delete.
func TestDiagnose_ForeignKeys(t *testing.T) {
	t.Parallel()
	db, b := newCustom(t, `
		CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, payload, group_id TEXT);
		CREATE TABLE fine (t INTEGER REFERENCES T ON DELETE CASCADE);
		CREATE INDEX fine_t ON fine (t);
		CREATE TABLE fine2 (t INTEGER PRIMARY KEY REFERENCES t (id) ON DELETE SET NULL, x REFERENCES fine2 (t));
		CREATE TABLE "hol""ds" (n, t INTEGER REFERENCES t (id), UNIQUE (t));
		CREATE TABLE slow (n, "t x" INTEGER REFERENCES t (id) ON DELETE CASCADE);
		CREATE INDEX slow_n ON slow (n, "t x");
		INSERT INTO t (payload) VALUES (1);
		INSERT INTO "hol""ds" VALUES (1, 1)`, sqlite.Config{Custom: buffer.CustomTable{Project: byKey}})
	var got []string
	for _, found := range b.Diagnose(t.Context()) {
		if found.Subject == "foreign keys" {
			got = append(got, found.Text+" | "+found.Fix)
		}
	}
	want := []string{
		`table "hol""ds" keeps delivered events: an event that a row there refers to cannot be deleted | create that table again with "t" REFERENCES "t" ON DELETE SET NULL, or CASCADE`,
		`table "slow" refers to table "t" by columns without an index, and is read whole for each event that is deleted | CREATE INDEX "slow_t" ON "slow" ("t x")`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("unexpected findings (-want +got):\n%s", d)
	}
	run(t, db, want[1][strings.Index(want[1], "CREATE"):])

	batch := claimed(t, b)
	err := b.Settle(t.Context(), batch, []buffer.Outcome{{Verdict: buffer.Delivered}})
	if err == nil || !strings.Contains(err.Error(), "FOREIGN KEY") {
		t.Fatalf("settling an event that another row references: got %v", err)
	}
	testkit.NoError(t, b.Renew(t.Context(), batch, time.Hour))
}
