package cli

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

// The application drops a column that the projection reads. What waits and what died is shown all the same, with the reason, before a relay runs
// and while one waits for the column.
func TestProjection_Broken(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		db.exec("CREATE TABLE things (id integer PRIMARY KEY, body text, extra text, group_id " + map[bool]string{true: "text", false: "uuid"}[db.file != nil] + ")")
		path := write(t, "admin: {listen: ''}\npipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: things\n"+
			"      project: SELECT e.id, e.extra AS topic, e.body AS payload FROM {events} e\n    sink: {url: 'file://"+t.TempDir()+"/out'}\n")
		do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
		db.exec(`INSERT INTO things (id, body, extra) VALUES (1, '{}', 't'), (2, '{}', 't'), (3, '{}', 't')`)
		db.bury("p", [3]string{"5", "t", "refused"})
		db.exec("ALTER TABLE things DROP COLUMN extra")

		const why = "p: nothing is sent: buffer is not ready: "
		shown := func(state string) {
			t.Helper()
			status := do(t, nil, "status", "-c", path)
			status.want(t, 0, "p               3 ", "")
			for _, text := range []string{why, "extra", "correct source.project", "p: 1 dead letter. > ", state} {
				status.want(t, 0, text, "")
			}
			if n := strings.Count(status.stdout, "correct source.project"); n != 1 {
				t.Errorf("the reason is there %d times:\n%s", n, status.stdout)
			}
		}
		shown("p: no relay runs")
		do(t, nil, "status", "-c", path, "--json").want(t, 0, `"nothing_is_sent": "buffer is not ready: `, "")
		do(t, nil, "dead", "list", "-c", path).want(t, 0, "refused", why)
		do(t, nil, "verify", "-c", path).want(t, 0, "agree\n\n"+why, "")
		do(t, nil, "doctor", "-q", "-c", path).want(t, 1, "extra", "")

		start(t, nil, "run", "-c", path).waitForLog("waiting until the database is ready")
		waitForCount(t, db, 1, "SELECT count(*) FROM outbox_relays WHERE not_ready LIKE 'stalled: buffer is not ready%'")
		shown("stalled ")
		db.exec("ALTER TABLE things ADD COLUMN extra text")
		waitForCount(t, db, 0, "SELECT count(*) FROM things")
		do(t, nil, "status", "-c", path).want(t, 0, "p               0 ", "")
	})
}

// waitForCount waits until a query that counts returns so many.
func waitForCount(t *testing.T, db *database, want int, query string) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if n := db.count(query); n != want {
			return fmt.Errorf("%s: got %d; expected %d", query, n, want)
		}
		return nil
	})
}

// A database that takes no writes, as one whose disk is full, is shown as far as it can be read, with the reason. No relay can write there that it runs.
func TestStatus_NoWrites(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	file := filepath.Join(t.TempDir(), "out")
	path := write(t, "admin: {listen: '127.0.0.1:0', token: s3cret-token}\npipelines:\n  - name: orders\n    source: {url: '"+db.url+"'}\n    sink: {url: 'file://"+file+"'}\n")
	db.insert(3)
	name := db.text("SELECT quote_ident(current_database())")
	db.exec("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("waiting for the database")
	for _, text := range []string{
		"orders          3 ", "  db error\n", "\norders: nothing is sent: the database takes no writes: ERROR: cannot execute ", "(SQLSTATE 25006)\n",
	} {
		do(t, nil, "status", "-c", path).want(t, 0, text, "")
	}
	if status := do(t, nil, "status", "-c", path); strings.Contains(status.stdout, "no relay") {
		t.Errorf("a relay runs, and the status is\n%s", status.stdout)
	}
	do(t, nil, "dead", "list", "-c", path).want(t, 0, "PIPELINE", "orders: nothing is sent: the database takes no writes")
	page := func(path string) string { return adminPage(t, r, path, "s3cret-token") }
	for path, says := range map[string]string{
		"/readyz":  `"reason": "database: the database takes no writes: ERROR: cannot execute `,
		"/metrics": `relay_not_ready{class="database",pipeline="orders"} 1`,
	} {
		if text := page(path); !strings.Contains(text, says) {
			t.Errorf("%s does not say %s:\n%s", path, says, text)
		}
	}
	ages := regexp.MustCompile(`"oldest_pending_seconds": [0-9.]+`)
	command, endpoint := do(t, nil, "status", "-c", path, "--json").stdout, page("/api/status")
	if diff := cmp.Diff(ages.ReplaceAllString(command, ""), ages.ReplaceAllString(endpoint, "")); diff != "" || !strings.Contains(endpoint, `"state": "db error"`) {
		t.Errorf("the status of the command and that of the endpoint (-command +endpoint):\n%s", diff)
	}
	db.exec("ALTER DATABASE " + name + " SET default_transaction_read_only = off")
	waitForCount(t, db, 0, "SELECT count(*) FROM outbox_events")
	do(t, nil, "status", "-c", path).want(t, 0, "orders          0 ", "")
}
