package cli

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// homegrown is the relay's own table with columns of the application.
const homegrown = `
CREATE TABLE outbox (id %s, tenant_id int NOT NULL, topic text NOT NULL, key text, payload json NOT NULL, headers json, sent_at %[2]s,
    created_at %[2]s, group_id %[3]s)`

// A table with the relay's columns and more is a custom table: all of them are sent. So is one whose id does not grow.
func TestInit_OwnColumnsAndMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sqlite bool
		sql    []string
		says   string
	}{
		"postgres": {false, []string{"bigserial PRIMARY KEY", "timestamptz", "uuid"}, "sent: id, tenant_id, topic, key, payload, headers, sent_at, created_at"},
		"sqlite":   {true, []string{"INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT", "TEXT"}, "sent: id, tenant_id, topic, key, payload, headers, sent_at, created_at"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, c.sqlite)
			db.exec(strings.NewReplacer("%s", c.sql[0], "%[2]s", c.sql[1], "%[3]s", c.sql[2]).Replace(homegrown))
			path := filepath.Join(t.TempDir(), "relay.yaml")
			r := do(t, nil, "init", "--source", db.url, "--table", "outbox", "--sink", "stdout:", "-o", path)
			r.want(t, 0, c.says, "")
			r.want(t, 0, "relay marks it after delivery, or as it becomes a dead letter.", "")
			do(t, db.env, "migrate", "-c", path).want(t, 0, ": applied ", "")
			db.exec(`INSERT INTO outbox (tenant_id, topic, payload, sent_at) VALUES (7, 'o.x', '{"a":1}', '2026-01-02'), (8, 'o.x', '{"a":2}', NULL)`)
			do(t, db.env, "preview", "-c", path).want(t, 0, `"tenant_id"`, "")
			d := do(t, db.env, "doctor", "-c", path)
			d.want(t, 0, "has only events", "")
			if strings.Contains(d.stdout, "does not send") || strings.Contains(d.stdout, "look as if a loop had sent them before") {
				t.Errorf("doctor says\n%s", d.stdout)
			}
		})
	}
	db := newAppDatabase(t, false)
	db.exec("CREATE TABLE uo (id uuid PRIMARY KEY, topic text NOT NULL, key text, payload json NOT NULL, headers json, created_at timestamptz, group_id uuid)")
	do(t, nil, "init", "--source", db.url, "--table", "uo", "--sink", "stdout:", "-o", filepath.Join(t.TempDir(), "relay.yaml")).want(t, 0, "sent: id, topic, key, ", "")
}

// Doctor and preview name a column of the relay's own table that is not the relay's.
func TestDoctor_OwnTableWithMore(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]*database{"postgres": newDatabase(t), "sqlite": newFile(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, onePipeline("orders", db.url, "stdout:"))
			do(t, nil, "doctor", "-c", path).want(t, 0, "0 problems, ", "")
			db.exec("ALTER TABLE outbox_events ADD COLUMN tenant text")
			db.exec("INSERT INTO outbox_events (topic, payload, tenant) VALUES ('a', '{}', 't1')")
			do(t, nil, "doctor", "-c", path).want(t, 0, "without source.project the relay does not send tenant of table ", "")
			do(t, nil, "preview", "-c", path).want(t, 0, "not sent: tenant of table outbox_events, whose rows are deleted after delivery\n", "")
		})
	}
}

// Migrate refuses a table of the application that a configuration takes for the relay's own, and changes nothing.
func TestMigrate_NotEvents(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			identity, group := "bigserial PRIMARY KEY", "uuid"
			if sqlite {
				identity, group = "INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT"
			}
			db.exec("CREATE TABLE my_events (id " + identity + ", what text, created_at timestamp, group_id " + group + ")")
			path := write(t, "pipelines:\n  - name: typo\n    source: {url: \""+db.url+"\", table: my_events}\n    sink: {url: \"stdout:\"}\n")
			const says = "my_events exists and is not an event table of the relay: it has no topic, key, payload, headers"
			const fix = "if your application owns it, add source.project, as relay init --table my_events -o other.yaml writes it"
			for _, command := range []string{"migrate", "status"} {
				r := do(t, nil, command, "-c", path)
				if text := strings.ReplaceAll(r.stderr, `"`, ""); r.code != 1 || !strings.Contains(text, says) || !strings.Contains(text, fix) || strings.Contains(text, "ADD COLUMN topic") {
					t.Errorf("%s: exit status %d: %s%s", command, r.code, r.stdout, r.stderr)
				}
			}
			r := do(t, nil, "doctor", "-c", path)
			if text := strings.ReplaceAll(r.stdout, `"`, ""); !strings.Contains(text, says) || strings.Contains(text, "ADD COLUMN topic") {
				t.Errorf("doctor says\n%s", r.stdout)
			}
			if !sqlite {
				if n := connectTo(t, db.url).count("SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal) + (SELECT count(*) FROM pg_tables WHERE schemaname = 'public')"); n != 1 {
					t.Errorf("%d tables and triggers, want 1", n)
				}
			}
		})
	}
}

// Migrate makes no second ledger for a custom table that a pipeline owns in another schema.
func TestMigrate_OtherLedger(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec("CREATE TABLE my_events (id bigserial PRIMARY KEY, what text, created_at timestamptz, group_id uuid); INSERT INTO my_events (what) VALUES ('a')")
	config := func(schema string) string {
		return write(t, "admin: {listen: \"\"}\npipelines:\n  - name: good\n    source: {url: \""+db.url+"\", table: my_events, schema: "+schema+
			", project: \"SELECT e.id, to_jsonb(e) AS payload FROM {events} e\"}\n    sink: {url: \"stdout:\"}\n")
	}
	good := config("relay")
	do(t, nil, "migrate", "-c", good).want(t, 0, "applied schema relay", "")
	r := start(t, nil, "run", "-c", good)
	testserver.Eventually(t, func() error {
		if !strings.Contains(r.stdout.String(), `"what"`) {
			return errors.New("nothing arrived")
		}
		return nil
	})
	do(t, nil, "migrate", "-c", config("public")).want(t, 1, "",
		"pipeline good owns table public.my_events in another ledger, that of relay.outbox_buffers; two ledgers would each send all of its events")
	if n := connectTo(t, db.url).count("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"); n != 1 {
		t.Errorf("%d tables in public, want 1", n)
	}
}

// A table that a wrong name makes stands out in what migrate prints, and doctor names the one that may be meant.
func TestMigrate_WrongName(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			config := func(table, more string) string {
				return write(t, "pipelines:\n  - name: payments\n    source: {url: \""+db.url+"\", table: "+table+more+"}\n    sink: {url: \"stdout:\"}\n")
			}
			do(t, nil, "migrate", "-c", config("payment_events", "")).want(t, 0, "; created table ", "")
			typo := config("payment_evnts", "")
			r := do(t, nil, "doctor", "-c", typo)
			if text := strings.ReplaceAll(r.stdout, `"`, ""); !strings.Contains(text, "table payment_evnts does not exist (did you mean payment_events?)") ||
				!strings.Contains(text, "> correct source.table, or, to create it: relay migrate -c "+typo) {
				t.Errorf("doctor says\n%s", r.stdout)
			}
			do(t, nil, "migrate", "-c", typo).want(t, 0, "; created table ", "")
			do(t, nil, "migrate", "-c", typo).want(t, 0, "payments: up to date\n", "")
			if sqlite {
				return
			}
			do(t, nil, "migrate", "-c", config("payment_event", "")).want(t, 0, "if you meant that one, correct source.table and drop the new one", "")
			// The table that the pipeline sent before has events.
			do(t, nil, "doctor", "-c", config("payment_events", "")).want(t, 0, "0 problems", "")
			db.exec("UPDATE outbox_buffers SET pipeline = 'payments' WHERE buffer = 'public.payment_events'")
			db.exec("INSERT INTO payment_events (topic, payload) VALUES ('t', '{}'), ('t', '{}')")
			do(t, nil, "doctor", "-c", typo).want(t, 1, "pipeline payments also owns table public.payment_events, which has events (2) that this configuration does not send", "")
			do(t, nil, "status", "-c", typo).want(t, 0, "payments: pipeline payments also owns table public.payment_events, which has events (2) that this configuration does not send", "")
			custom := config("paymnt_events", ", project: \"SELECT e.id, to_jsonb(e) AS payload FROM {events} e\"")
			do(t, nil, "doctor", "-c", custom).want(t, 1, "does not exist (did you mean payment_events?)", "")
		})
	}
}

// Init takes a table named outbox_events that is not the relay's, and guesses no table without a word.
func TestInit_WhichTable(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	initialize := func(args ...string) result {
		t.Helper()
		return do(t, nil, append([]string{"init", "--source", db.url, "--sink", "stdout:", "-o", filepath.Join(t.TempDir(), "relay.yaml")}, args...)...)
	}
	db.exec("CREATE TABLE outbox_events (id bigserial PRIMARY KEY, event_type text, payload jsonb)")
	initialize("-y").want(t, 0, "from outbox_events to stdout:", "")
	db.exec("CREATE TABLE ticket_events (id bigserial PRIMARY KEY, what text); CREATE TABLE users (id bigserial PRIMARY KEY); CREATE VIEW v_events AS SELECT 1 AS id")
	initialize("-y").want(t, 0, "there are also: ticket_events\n", "")
	initialize().want(t, 2, "", "init asks questions on a terminal only; expected --table ticket_events, or --table outbox_events")
	initialize("--table", "v_events").want(t, 2, "", "v_events is a view; expected a table")
	initialize("--table", "ticket_evnts").want(t, 2, "", "table ticket_evnts does not exist (did you mean ticket_events?)")
}
