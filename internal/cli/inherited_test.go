package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// A SELECT from a table returns the rows of those that inherit from it, without their own columns.
func TestInheritedTable(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec("CREATE TABLE msg (id bigserial PRIMARY KEY, payload jsonb, created_at timestamptz, group_id uuid)")
	path := filepath.Join(t.TempDir(), "relay.yaml")
	init := func(code int, stdout, stderr string) {
		t.Helper()
		do(t, nil, "init", "--source", db.url, "--table", "msg", "--sink", "stdout:", "-o", path, "--force").want(t, code, stdout, stderr)
	}
	init(0, "Wrote ", "")
	do(t, db.env, "migrate", "-c", path).want(t, 0, ": applied ", "")
	const says = "sub_msg inherits from table public.msg: its rows are events, too, are sent without its own columns, and deleted"
	if said := do(t, db.env, "doctor", "-c", path).stdout; strings.Contains(said, "inherits") {
		t.Errorf("doctor says\n%s", said)
	}
	db.exec("CREATE TABLE sub_msg (extra text) INHERITS (msg)")
	do(t, db.env, "doctor", "-c", path).want(t, 0, says, "")
	init(2, "", "table msg cannot hold events: other tables inherit from it")
}
