package cli

import (
	"testing"
)

// TestDeadEdit_Mark: a row that done: mark keeps is changed in its table, and no editor is opened for it.
func TestDeadEdit_Mark(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("CREATE TABLE notes (id bigserial PRIMARY KEY, body text, sent_at timestamptz, created_at timestamptz DEFAULT now(), group_id uuid)")
	path := write(t, "pipelines:\n  - name: p\n    source: {url: '"+db.url+"', table: notes, where: sent_at IS NULL, done: mark, mark: {sent_at: now()}, project: \"SELECT e.id, to_jsonb(e) - 'group_id' AS payload FROM {events} e\"}\n    sink: {url: 'stdout:'}\n")
	do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
	db.exec("INSERT INTO notes (body, sent_at) VALUES ('a', now())")
	db.bury("p", [3]string{"1", "notes", "bad"})
	db.exec("UPDATE outbox_dead_letters SET event_row = (SELECT to_json(n) FROM notes n)")
	r, left := editing(t, "sed -i s/a/b/", path, "--id", "1")
	r.want(t, 1, "", "event 1 is a row of table notes, which done: mark keeps; expected it to be changed there, by SQL (docs/tables.md#rows-that-stay), and then > relay dead replay -c "+path+" --pipeline p --id 1\n")
	if len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}
