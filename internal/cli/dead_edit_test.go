package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// editing runs dead replay --edit with an editor, and returns the files that it leaves.
func editing(t *testing.T, editor, path string, args ...string) (r result, left []string) {
	t.Helper()
	dir := t.TempDir()
	r = do(t, []string{"EDITOR=" + editor, "VISUAL=", "TMPDIR=" + dir}, append([]string{"dead", "replay", "-c", path, "-y", "--edit"}, args...)...)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return r, left
}

func TestDeadEdit(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		path := write(t, onePipeline("p", db.url, "stdout:"))
		db.bury("p", [3]string{"17", "orders", "a"}, [3]string{"18", "orders", "b"})
		db.exec(`UPDATE outbox_dead_letters SET payload = '{"z": 12345678901234567890.10, "a": ["<é>",  1e2], "z2": 1}' WHERE event_id = 17`)
		const sixteen = `SELECT count(*) FROM outbox_events WHERE id = 17 AND CAST(payload AS text) = '{"z":12345678901234567890.20,"a":["<é>",1e2],"z2":1}'`

		for _, c := range []struct {
			editor, args   string
			code           int
			stdout, stderr string
			left           int
		}{
			{"true", "--id 17", 0, "", "not changed; nothing was replayed\n", 0},
			{"sed -i 's/^ *//'", "--id 17", 0, "", "not changed; nothing was replayed\n", 0},
			{"sed -i /^[^#]/d", "--id 17", 0, "", "the file is empty; nothing was replayed\n", 0},
			{"cp /dev/null", "--id 17", 0, "", "the file is empty; nothing was replayed\n", 0},
			{"false", "--id 17", 1, "", `relay: the editor "false" failed: exit status 1; nothing was changed`, 0},
			{"sed -i 's/1e2/1e2x/'", "--id 17", 1, "", ".json:9:8: invalid character 'x' after array element; expected JSON; nothing was changed; the text is kept in ", 1},
			{`printf '"\377"' >`, "--id 17", 1, "", ".json:1:2: the text is not UTF-8; expected JSON", 1},
			{"true", "--id 17 --with-headers", 0, "", "not changed; nothing was replayed\n", 0},
			{"sed -i 's/$/ 1/'", "--id 17 --dry-run", 2, "", "--edit is used together with --dry-run", 0},
			{"true", "--all", 2, "", "2 events match; expected one for --edit, like --pipeline p --id 17", 0},
			{"true", "--id 99", 2, "", "no dead letter that can be replayed matches; expected one event for --edit", 0},
		} {
			r, left := editing(t, c.editor, path, strings.Fields(c.args)...)
			r.want(t, c.code, c.stdout, c.stderr)
			if len(left) != c.left {
				t.Errorf("%s leaves %q", c.editor, left)
			}
			for _, file := range left {
				if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(r.stderr, "VISUAL='cp "+file+"' relay dead replay -c "+path+" --pipeline p --id 17 --edit") {
					t.Errorf("%s: %v, %v; %s", file, info.Mode(), err, r.stderr)
				}
			}
		}
		if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"); n != 2 || db.count("SELECT count(*) FROM outbox_events") != 0 {
			t.Fatalf("%d dead letters are open, want 2", n)
		}

		r, left := editing(t, "sed -i 's/890.10/890.20/'", path, "--id", "17")
		r.want(t, 0, "p: replayed 1 dead letter\n", "-   \"z\": 12345678901234567890.10,\n+   \"z\": 12345678901234567890.20,\n")
		if len(left) > 0 || db.count(sixteen) != 1 {
			t.Errorf("left are %q, and %d events have the new payload", left, db.count(sixteen))
		}

		// Headers too.
		db.exec(`UPDATE outbox_dead_letters SET headers = '{"a":  "1"}' WHERE event_id = 18`)
		for _, c := range []struct{ editor, stderr string }{
			{"true", "not changed; nothing was replayed\n"},
			{`sed -i 's/"1"/1/'`, `headers are not a JSON object of strings`},
			{`sed -i 's/"headers"/"header"/'`, `expected {"headers": {...}, "payload": ...}`},
			{`sed -i 's/"payload"/"headers"/'`, `expected {"headers": {...}, "payload": ...}`},
		} {
			r, _ := editing(t, c.editor, path, "--id", "18", "--with-headers")
			r.want(t, map[bool]int{true: 0, false: 1}[c.editor == "true"], "", c.stderr)
		}
		shownBoth, _ := editing(t, "cat", path, "--id", "18", "--with-headers")
		shownBoth.want(t, 0, "", "# These are headers and payload of event 18 of pipeline p, a dead letter because\n# of:\n# b\n")
		r, _ = editing(t, `sed -i 's/"1"/"<2>"/'`, path, "--id", "18", "--with-headers")
		r.want(t, 0, "p: replayed 1 dead letter\n", "-     \"a\": \"1\"\n+     \"a\": \"<2>\"\n")
		if n := db.count(`SELECT count(*) FROM outbox_events WHERE id = 18 AND CAST(headers AS text) = '{"a":"<2>"}'`); n != 1 {
			t.Errorf("%d events have the new headers", n)
		}
		db.exec("DELETE FROM outbox_events WHERE id = 18")
		db.exec("UPDATE outbox_dead_letters SET closed_at = NULL, closed_as = NULL, headers = NULL WHERE event_id = 18")

		// The file says what it is, and what happens.
		shown, _ := editing(t, "cat", path, "--id", "18")
		shown.want(t, 0, "", `# This is the payload of event 18 of pipeline p, a dead letter because of:
# b
# Correct it, save and quit: the event is replayed with it.
# To cancel, quit without a change. Lines with # above it are ignored.
`)
		for line := range strings.Lines(shown.stderr) {
			if len(line) > 82 {
				t.Errorf("a line is too long: %s", line)
			}
		}

		// While it is edited it is discarded.
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		r, left = editing(t, self+" dead discard -c "+path+" --id 18; sed -i 's/18/19/'", path, "--error", "b", "--older-than", "1h")
		r.want(t, 1, "", "relay: event 18: the dead letter was closed or changed meanwhile; nothing was changed; the text is kept in ")
		if len(left) != 1 {
			t.Errorf("left are %q", left)
		}

		r, _ = editing(t, "true", path, "--id", "18")
		r.want(t, 2, "", "no dead letter that can be replayed matches; 18 was discarded ")

		// Its id is in the buffer.
		db.exec("UPDATE outbox_dead_letters SET closed_at = NULL, closed_as = NULL WHERE event_id = 17")
		r, _ = editing(t, "sed -i 's/890.10/7/; s/890.20/7/'", path, "--id", "17")
		r.want(t, 1, "", "relay: event 17 is still in the buffer")
		if db.count(sixteen) != 1 || db.count("SELECT count(*) FROM outbox_dead_letters WHERE CAST(payload AS text) LIKE '%567%20,%'") != 1 {
			t.Error("a refused edit changed something")
		}
		if db.file != nil { // PostgreSQL's json refuses it
			db.exec("UPDATE outbox_dead_letters SET payload = 'plain', closed_at = NULL WHERE event_id = 18")
			r, _ = editing(t, "false", path, "--id", "18")
			r.want(t, 1, "", "relay: event 18: the payload is not JSON text")
		}
	})
}

// In a custom table the row is edited, all but its key.
func TestDeadEdit_Row(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		db.exec("CREATE TABLE things (id integer PRIMARY KEY, topic varchar(3), body text, group_id " + map[bool]string{true: "text", false: "uuid"}[db.file != nil] + ")")
		path := write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: things\n"+
			"      project: SELECT e.id, e.topic, e.body AS payload FROM {events} e\n    sink: {url: 'stdout:'}\n")
		do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
		db.bury("p", [3]string{"5", "t", "refused"})
		db.exec(`UPDATE outbox_dead_letters SET event_row = '{"id":5,"topic":"t","body":"{\"n\": 1.0}","group_id":null}'`)
		things := func(topic string) int {
			return db.count(`SELECT count(*) FROM things WHERE id = 5 AND body = '{"n": 1.0}' AND topic = '` + topic + "'")
		}
		r, left := editing(t, "sed -i 's/5/6/'", path, "--all")
		r.want(t, 1, "", "relay: the row's id is 6; expected 5, because an event keeps its identity; nothing was changed; the text is kept in ")
		if len(left) != 1 {
			t.Errorf("left are %q", left)
		}
		r, _ = editing(t, `sed -i 's/"id"/"ide"/'`, path, "--all")
		r.want(t, 1, "", "relay: the row has no id; expected 5, because an event keeps its identity;")
		r, _ = editing(t, "true", path, "--all", "--with-headers")
		r.want(t, 2, "", "--with-headers: event 5 is a row of a custom table")
		shown, _ := editing(t, "cat", path, "--all")
		shown.want(t, 0, "", "# This is the row of event 5 of pipeline p, a dead letter because of:\n# refused\n# Correct it, save and quit: a replay inserts it into the table again, and the\n")
		r, left = editing(t, `sed -i 's/"topic"/"topc"/'`, path, "--all")
		r.want(t, 1, "", "relay: table things has no column topc (did you mean topic?); nothing was changed; the text is kept in ")
		if len(left) != 1 {
			t.Errorf("left are %q", left)
		}
		r, _ = editing(t, "echo '[]' >", path, "--all")
		r.want(t, 1, "", "relay: the row is not a JSON object; nothing was changed")
		db.exec("ALTER TABLE things ADD COLUMN late text")
		if db.file == nil {
			r, left = editing(t, `sed -i 's/"t"/"too long"/'`, path, "--all")
			r.want(t, 1, "p: replayed 0 dead letters; skipped 1: refused by the table (value too long for type character varying(3))\n",
				"relay: 5: the table refuses its row: value too long for type character varying(3)\nrelay: event 5 was changed, but not replayed > relay dead replay -c "+path+" --pipeline p --id 5 --edit\n")
			if len(left) > 0 {
				t.Errorf("left are %q", left)
			}
			db.exec(`UPDATE outbox_dead_letters SET event_row = replace(event_row::text, 'too long', 't')::json`)
		}
		r, _ = editing(t, `sed -i 's/"t"/"u", "late": "x"/'`, path, "--all")
		r.want(t, 0, "p: replayed 1 dead letter\n", "-   \"topic\": \"t\",\n+   \"topic\": \"u\",\n+   \"late\": \"x\",\n")
		if things("u") != 1 {
			t.Error("the row is not as it was edited")
		}
	})
}

func TestChangedLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ a, b, want string }{
		{"a b c", "a b c", ""},
		{"a b c", "a x c", "- b|+ x"},
		{"a b c", "a b c d", "+ d"},
		{"a b c", "b c", "- a"},
		{"a b c d e", "a x c e f", "- b|+ x|- d|+ f"},
	} {
		if got := strings.Join(changedLines(strings.Fields(c.a), strings.Fields(c.b)), "|"); got != c.want {
			t.Errorf("%s, %s: got %s, want %s", c.a, c.b, got, c.want)
		}
	}
	var many, others []string
	for i := range 2000 {
		many, others = append(many, fmt.Sprint(i)), append(others, fmt.Sprint(-i-1))
	}
	changed := changedLines(many, others)
	if diff := cmp.Diff([]string{"- 0", "+ -2000"}, []string{changed[0], changed[len(changed)-1]}); diff != "" || len(changed) != 4000 {
		t.Errorf("%d lines\n%s", len(changed), diff)
	}
}
