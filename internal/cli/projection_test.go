package cli

import (
	"fmt"
	"strings"
	"testing"

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
		do(t, nil, "status", "-c", path, "--json").want(t, 0, `"projection_problem": "buffer is not ready: `, "")
		do(t, nil, "dead", "list", "-c", path).want(t, 0, "refused", why)
		do(t, nil, "verify", "-c", path).want(t, 0, "agree\n\n"+why, "")
		do(t, nil, "doctor", "-q", "-c", path).want(t, 1, "extra", "")

		waitFor := func(want int, query string) {
			t.Helper()
			testserver.Eventually(t, func() error {
				if n := db.count(query); n != want {
					return fmt.Errorf("%s: got %d; expected %d", query, n, want)
				}
				return nil
			})
		}
		start(t, nil, "run", "-c", path).waitForLog("waiting until the database is ready")
		waitFor(1, "SELECT count(*) FROM outbox_relays WHERE not_ready LIKE 'stalled: buffer is not ready%'")
		shown("stalled ")
		db.exec("ALTER TABLE things ADD COLUMN extra text")
		waitFor(0, "SELECT count(*) FROM things")
		do(t, nil, "status", "-c", path).want(t, 0, "p               0 ", "")
	})
}
