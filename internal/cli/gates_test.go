package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestGates: init names all columns that may say which rows may be sent in one warning, and doctor those whose values say so.
func TestGates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sqlite                       bool
		create, insert, init, doctor string
	}{
		"postgres": {
			false,
			`CREATE TABLE notes (id bigserial PRIMARY KEY, kind text, body jsonb, draft boolean NOT NULL DEFAULT true, on_hold boolean, approved boolean, is_gift boolean, review text, valid_from date, outcome text,
				created_at timestamptz DEFAULT now(), group_id uuid)`,
			`INSERT INTO notes (kind, body, draft, on_hold, approved, is_gift, review, outcome) VALUES ('t', '{}', true, true, false, true, 'Pending_Review', 'ok'), ('t', '{}', false, NULL, NULL, false, NULL, 'ok')`,
			"Warning: the relay does not look at draft, on_hold, approved, is_gift, review, valid_from, outcome, and sends all rows. If one of them says which rows may be sent, name it in source.where, such as: " +
				"NOT draft AND on_hold IS NOT TRUE AND approved IS TRUE AND (valid_from IS NULL OR valid_from <= CURRENT_DATE) In",
			`wait that look as if they may not be sent, by draft (1), on_hold (1), approved (1), review (1) of the first 1000; the relay sends them > if they are no events, set source.where: NOT "draft" AND "on_hold" IS NOT TRUE AND ` +
				`"approved" IS TRUE AND (lower("review"::text) IN (`,
		},
		"sqlite": {
			true,
			`CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, body TEXT, draft INTEGER NOT NULL, approved BOOLEAN, gift BOOLEAN, review TEXT, created_at TEXT, group_id TEXT)`,
			`INSERT INTO notes (kind, body, draft, approved, gift, review, created_at) VALUES ('t', '{}', 1, 0, 1, 'pending', datetime('now')), ('t', '{}', 0, NULL, 0, NULL, datetime('now'))`,
			"Warning: the relay does not look at draft, approved, gift, review, and sends all rows.",
			`by draft (1), approved (1), review (1) of the first 1000; the relay sends them > if they are no events, set source.where: NOT "draft" AND "approved" IS TRUE AND (lower("review") IN (`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, c.sqlite)
			db.exec(c.create)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			r := do(t, nil, "init", "--source", db.url, "--table", "notes", "--sink", "stdout:", "-o", path)
			if got := strings.Join(strings.Fields(r.stdout), " "); r.code != 0 || !strings.Contains(got, c.init) {
				t.Errorf("init says\n%s%s\nwant %s", got, r.stderr, c.init)
			}
			doctor := func(source string) string {
				t.Helper()
				path := write(t, "pipelines:\n  - name: p\n    source: {url: '"+db.url+"', table: notes, "+source+"}\n    sink: {url: 'stdout:'}\n")
				do(t, nil, "migrate", "-c", path)
				return strings.Join(strings.Fields(do(t, nil, "doctor", "-c", path).stdout), " ")
			}
			const project = "project: \"SELECT e.id, e.body AS payload FROM {events} e"
			const says = "may not be sent"
			if got := doctor(project + `"`); strings.Contains(got, says) {
				t.Errorf("of an empty table doctor says %s", got)
			}
			db.exec(c.insert)
			if got := doctor(project + `"`); !strings.Contains(got, c.doctor) || strings.Contains(got, "gift (") || strings.Contains(got, "outcome (") {
				t.Errorf("doctor says\n%s\nwant %s", got, c.doctor)
			}
			if got := doctor(project + `\n-- no mark: draft, on_hold, approved, review"`); strings.Contains(got, says) {
				t.Errorf("with a comment doctor says %s", got)
			}
			if got := doctor(project + "\", where: 'NOT draft AND approved IS TRUE'"); strings.Contains(got, says) {
				t.Errorf("with a condition doctor says %s", got)
			}
		})
	}
}
