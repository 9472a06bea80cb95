package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDeadList_NewestFirst(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	db.bury("orders", [3]string{"1", "a", "x"}, [3]string{"2", "a", "x"}, [3]string{"3", "a", "x"})
	db.exec("UPDATE outbox_dead_letters SET died_at = clock_timestamp() - interval '1 minute' WHERE event_id = 2")
	db.exec("UPDATE outbox_dead_letters SET died_at = clock_timestamp() - interval '1 day' WHERE event_id = 3")
	r := do(t, nil, "dead", "list", "-c", path, "--limit", "2")
	r.want(t, 0, "orders    2   a      k2 ", "1 more; use --limit 0 to show all, or --by error to count them by error")
	if lines := strings.Split(r.stdout, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[1], "orders    2 ") || !strings.HasPrefix(lines[2], "orders    1 ") {
		t.Errorf("list shows\n%s", r.stdout)
	}
}

func TestDeadList_ByError(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	do(t, nil, "dead", "list", "-c", path, "--by", "topic").want(t, 2, "", `--by is "topic"; expected error or time`)
	do(t, nil, "dead", "list", "-c", path, "--by", "error", "--json").want(t, 0, "[]", "")
	db.bury("orders", [3]string{"1", "a", "422 Unprocessable Entity: no tenant 17"}, [3]string{"2", "b", "400 Bad Request: no"},
		[3]string{"3", "a", "422 Unprocessable Entity: no tenant 0198c0de-0000-7000-8000-000000000001"})
	db.exec("UPDATE outbox_dead_letters SET died_at = clock_timestamp() - interval '5 minutes' WHERE event_id = 1")
	db.exec("UPDATE outbox_dead_letters SET died_at = clock_timestamp() - interval '3 minutes' WHERE event_id = 2")
	do(t, nil, "dead", "list", "-c", path, "--by", "error").want(t, 0, `COUNT  PIPELINE  NEWEST  ID  ERROR
2      orders    5m 0s   1   422 Unprocessable Entity: no tenant 17
1      orders    3m 0s   2   400 Bad Request: no
`, "")
	do(t, nil, "dead", "list", "-c", path, "--by", "error", "--json", "--topic", "b").want(t, 0, `"count": 1,`, "")
	do(t, nil, "dead", "list", "-c", path, "--by", "error", "--limit", "1").want(t, 0, "422", "1 dead letter more with other errors; use --limit 0 to show all")
}

func TestDeadList_ByTime(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	do(t, nil, "dead", "list", "-c", path, "--by", "time", "--json").want(t, 0, "[]", "")
	db.bury("orders", [3]string{"1", "a", "x"}, [3]string{"2", "a", "y"}, [3]string{"3", "b", "x"})
	db.exec("UPDATE outbox_dead_letters SET died_at = '2026-03-01T23:30:00Z' WHERE event_id = 1")
	db.exec("UPDATE outbox_dead_letters SET died_at = '2026-03-02T03:04:05Z' WHERE event_id = 2")
	db.exec("UPDATE outbox_dead_letters SET died_at = '2026-03-02T03:14:15Z' WHERE event_id = 3")
	do(t, nil, "dead", "list", "-c", path, "--by", "time").want(t, 0, `COUNT  PIPELINE  HOUR (UTC)        FIRST     LAST
2      orders    2026-03-02 03:00  03:04:05  03:14:15
1      orders    2026-03-01 23:00  23:30:00  23:30:00
`, "")
	do(t, nil, "dead", "list", "-c", path, "--by", "time", "--limit", "1").want(t, 0, `COUNT  PIPELINE  DAY (UTC)   FIRST     LAST
2      orders    2026-03-02  03:04:05  03:14:15
`, "others died earlier; use --limit 0 to show all")
	do(t, nil, "dead", "list", "-c", path, "--by", "time", "--json", "--topic", "b").want(t, 0, `"begin": "2026-03-02T03:00:00Z",`, "")
	within := []string{"--newer-than", "2026-03-02T03:00:00Z", "--older-than", "2026-03-02T04:00:00Z"}
	do(t, nil, append([]string{"dead", "discard", "-c", path, "--dry-run"}, within...)...).want(t, 0, "would discard 2 dead letters", "")
	for _, wrong := range []string{"-1h", "yesterday", "0s", "1969-01-01T00:00:00Z"} {
		do(t, nil, "dead", "list", "-c", path, "--newer-than="+wrong).want(t, 2, "", "; expected a duration like 24h, or a time like 2026-01-02T15:00:00Z")
	}
}

// At 80 columns the error has the room, and no word of it is broken.
func TestErrorTable_80Columns(t *testing.T) {
	t.Parallel()
	head := []string{"PIPELINE", "ID", "TOPIC", "KEY", "ATTEMPTS", "DIED", "NOTIFIED", "ERROR"}
	reason := "POST https://api.example: 422 Unprocessable Entity: the address of this customer is on the suppression list"
	row := []string{"orders", "17", "orders.created", "customer-7", "3", "2h 0m", "yes", reason}
	text := errorTable([][]string{head, row}, 80)
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	if got := strings.Join(strings.Fields(text), " "); !strings.Contains(got, reason) {
		t.Errorf("the error is not whole in\n%s", text)
	}
	if got := errorTable([][]string{head, row}, 0); strings.Count(got, "\n") != 2 || !strings.Contains(got, reason) {
		t.Errorf("without a terminal the table is\n%s", got)
	}
	row[7] = strings.Repeat("word ", 100)
	if n := strings.Count(errorTable([][]string{head, row}, 80), "\n"); n != 2+1+maxErrorLines {
		t.Errorf("the table has %d lines", n)
	}
}
