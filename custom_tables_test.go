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

	// Only the rows that fulfil the condition are sent; they are deleted, or stay and are marked.
	psql(`CREATE TABLE orders_log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text NOT NULL, sent_at timestamptz, sends int NOT NULL DEFAULT 0,
		created_at timestamptz NOT NULL DEFAULT now(), group_id uuid)`)
	psql("INSERT INTO orders_log (status) SELECT 'sent' FROM generate_series(1, 3000); ANALYZE orders_log")
	for _, file := range []string{"where.yaml", "mark.yaml"} {
		owner.write(file, strings.ReplaceAll(files[file], "redis://localhost:6379/0", "stdout:")+"\n")
	}
	owner.must("relay migrate -c where.yaml")
	if got := doctor("where.yaml"); !strings.Contains(got, "WARN  source.where") || !strings.Contains(got, "> "+strings.Replace(strings.TrimSuffix(files["where.sql"], ";"), " ON ", " ON relay.", 1)) {
		t.Errorf("without a partial index doctor prints %s, want %s", got, files["where.sql"])
	}
	psql(files["where.sql"])
	psql("ANALYZE orders_log; INSERT INTO orders_log (status) VALUES ('ready'), ('draft')")
	for file, want := range map[string]string{"where.yaml": "0", "mark.yaml": "sent 1 t"} {
		if got := doctor(file); !strings.Contains(got, "a claim finds events by partial index") {
			t.Errorf("%s: doctor prints %s", file, got)
		}
		id := psql("INSERT INTO orders_log (status) VALUES ('ready') RETURNING id")
		run := owner.start("relay", "run", "-c", file)
		run.waitFor(&run.stdout, verbatim, `{"id":"`+id+`","topic":"orders_log","payload":{"id": `+id)
		run.stop(os.Interrupt)
		if got := psql("SELECT coalesce((SELECT concat_ws(' ', status, sends, sent_at IS NOT NULL AND group_id IS NULL) FROM orders_log WHERE id = " + id + "), '0')"); got != want {
			t.Errorf("%s: the row is %q", file, got)
		}
	}
	if got := psql("SELECT count(*) FROM orders_log WHERE status IN ('ready', 'draft')"); got != "1" {
		t.Errorf("%s rows are no events, want the draft", got)
	}
}
