package relay_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// testCustomTables follows docs/tables.md, with its roles and privileges.
func testCustomTables(t *testing.T, programs string) {
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{}) // roles belong to the server
	database, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, b := range blocks(t, "docs/tables.md") {
		if b.file() == "" {
			t.Errorf("%s: no test runs this block", b.where)
		}
		files[b.file()] = b.text
	}
	_, rest, _ := strings.Cut(database, "@")
	owner := newTerminal(t, programs, "DATABASE_URL="+database)
	role := newTerminal(t, programs, "DATABASE_URL=postgres://outbox_relay:outbox_relay@"+rest)
	for _, term := range []*terminal{owner, role} {
		term.write("relay.yaml", files["relay.yaml"]+"\n")
		term.write("preset.yaml", strings.ReplaceAll(files["preset.yaml"], "redis://localhost:6379/0", "stdout:")+"\n")
	}
	psql := func(statement string) string {
		t.Helper()
		return owner.must("psql \"$DATABASE_URL\" -qAt -v ON_ERROR_STOP=1 <<'SQL'\n" + statement + "\nSQL")
	}
	psql("CREATE ROLE outbox_relay LOGIN PASSWORD 'outbox_relay'")
	psql(files["tables.sql"])
	psql(files["insert.sql"])

	// The owner runs the commands except the last one, which does not end.
	commands := strings.Split(files["commands"], "\n")
	if len(commands) != 3 || commands[2] != "relay run -c relay.yaml" {
		t.Fatalf("the commands are %q", commands)
	}
	if got := owner.must(strings.Join(commands[:2], "\n")); !strings.Contains(got, "it returns a row for each of the next 2 events") || !strings.HasSuffix(got, "\n0 problems, 0 warnings") {
		t.Errorf("migrate and doctor print %s", got)
	}
	if got := owner.must("relay preview -c relay.yaml"); !strings.Contains(got, "contact.activity") {
		t.Errorf("preview prints %s", got)
	}
	psql(files["grants.sql"])
	if got := role.must("relay doctor -c relay.yaml"); !strings.Contains(got, "> GRANT pg_read_all_stats TO ") || !strings.HasSuffix(got, "\n0 problems, 0 warnings") {
		t.Errorf("the role's doctor prints %s", got)
	}

	created := regexp.MustCompile(`,"created_at":"[^"]*"`)
	without := func(text string) string { return created.ReplaceAllString(text, "") }
	run := role.start("relay", "run", "-c", "relay.yaml")
	run.waitFor(&run.stdout, without, files["arrived.ndjson"]+"\n")

	// The event of a deleted activity is buried, and delivered by a replay once the
	// activity exists again.
	psql("INSERT INTO contact_activity_events (contact_activity_id) VALUES (99)")
	run.waitFor(&run.stderr, verbatim, "not projected")
	if got := role.must("relay dead show -c relay.yaml --id 3"); !strings.Contains(got, `"contact_activity_id": 99`) || !strings.Contains(got, "error     not projected\n") {
		t.Errorf("the dead letter is %s", got)
	}
	psql("INSERT INTO contact_activities OVERRIDING SYSTEM VALUE VALUES (99, 9, 'visit')")
	if got := role.must("relay dead replay -c relay.yaml --id 3"); got != "activities: replayed 1 dead letter" {
		t.Errorf("replay prints %q", got)
	}
	run.waitFor(&run.stdout, without, `{"id":"3","topic":"contact.activity","key":"9","payload":{"id": 99, "kind": "visit", "lead_id": 9}}`)
	run.stop(os.Interrupt)
	if got := psql("SELECT count(*) FROM contact_activity_events"); got != "0" {
		t.Errorf("%s events are left", got)
	}

	// With a uuid key doctor warns, unless a cursor column or the index of unclaimed
	// events exists.
	psql(`CREATE TABLE invoice_events (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
		type varchar(255) NOT NULL, payload jsonb, group_id uuid)`)
	psql(`INSERT INTO invoice_events VALUES ('406c07f3-26f0-4eea-a50c-109940064b8f', 'invoice', '7', 'Paid', '{}')`)
	owner.must("relay migrate -c preset.yaml")
	owner.write("alone.yaml", strings.ReplaceAll(files["preset.yaml"], ", cursor: seq", "")+"\n")
	doctor := func(config string) string {
		t.Helper()
		got, err := owner.sh("relay doctor -c " + config)
		if err != nil && !strings.Contains(got, "FAIL  sink") { // Redis may be missing
			t.Errorf("doctor: %v: %s", err, got)
		}
		return got
	}
	if got := doctor("alone.yaml"); !strings.Contains(got, "WARN  your table") {
		t.Errorf("without an index doctor prints %s", got)
	}
	psql(files["unclaimed.sql"])
	if got := doctor("alone.yaml"); strings.Contains(got, "each claim reads") {
		t.Errorf("with an index doctor prints %s", got)
	}
	psql(files["cursor.sql"])
	if got := doctor("preset.yaml"); !strings.Contains(got, "0 problems, ") || !strings.Contains(got, "claims use a cursor") {
		t.Errorf("with a cursor doctor prints %s", got)
	}
	run = owner.start("relay", "run", "-c", "preset.yaml")
	run.waitFor(&run.stdout, verbatim, `{"id":"406c07f3-26f0-4eea-a50c-109940064b8f","topic":"outbox.event.invoice","key":"7","payload":{}`)
	run.stop(os.Interrupt)
}
