package cli

import (
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

// The table of a pipeline is renamed. migrate would make an empty one, so first of all the name is asked about.
func TestRenamedTable(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			path := write(t, "admin: {listen: \"127.0.0.1:0\"}\npipelines:\n  - name: payments\n    source: {url: \""+db.url+"\", table: payment_events}\n    sink: {url: \"stdout:\"}\n")
			do(t, nil, "migrate", "-c", path).want(t, 0, "; created table ", "")
			db.exec("INSERT INTO payment_events (topic, payload) VALUES ('t', '1')")
			r := start(t, nil, "run", "-c", path)
			wait(t, time.Minute, func() error {
				if !strings.Contains(r.stdout.String(), `"id":"1"`) {
					return errors.New("nothing is sent")
				}
				return nil
			})
			r.signal(os.Interrupt)
			r.exit()
			expect := func(text, fix string) {
				t.Helper()
				for _, command := range []string{"status", "doctor"} {
					got := do(t, nil, command, "-c", path)
					all := strings.ReplaceAll(got.stdout+got.stderr, `"`, "")
					if got.code != 1 || !strings.Contains(all, text) || !strings.Contains(all, fix) {
						t.Errorf("%s exits with %d and says\n%s\nwant %q and %q", command, got.code, all, text, fix)
					}
				}
			}
			const dropped = "; if it was dropped, to create an empty one: relay migrate -c "
			db.exec("ALTER TABLE payment_events RENAME TO payment_events_old")
			if sqlite {
				expect("table payment_events existed, and pipeline payments owned it: was it renamed? payment_events_old has the same columns",
					"if it was, ALTER TABLE payment_events_old RENAME TO payment_events; if the new name is intended, source.table: payment_events_old"+dropped)
				return
			}
			db.exec("CREATE TABLE payment_events_old_copy (LIKE payment_events_old INCLUDING ALL)") // is not the table that the relay knew
			expect("table public.payment_events, which pipeline payments owns, was renamed: it is public.payment_events_old now",
				"ALTER TABLE public.payment_events_old RENAME TO payment_events; if the new name is intended, source.table: public.payment_events_old")
			db.exec("DROP TABLE payment_events_old_copy")
			db.exec("INSERT INTO payment_events_old (topic, payload) VALUES ('t', '2')")
			do(t, nil, "migrate", "-c", path).want(t, 1, "", "was renamed: it is public.payment_events_old now, and has rows that nobody would send")
			db.exec("DELETE FROM payment_events_old")
			do(t, nil, "migrate", "-c", path).want(t, 0, "; created table public.payment_events", "")
			if r := do(t, nil, "doctor", "-c", path); r.code != 0 { // with an index of delayed events
				t.Error(r.stdout)
			}
			db.exec("DROP TABLE payment_events; CREATE TABLE payment_events_old_copy (LIKE payment_events_old INCLUDING ALL)")
			db.exec("CREATE SCHEMA archive; ALTER TABLE payment_events_old RENAME TO payment_events; ALTER TABLE payment_events SET SCHEMA archive")
			expect("it is archive.payment_events now", "ALTER TABLE archive.payment_events SET SCHEMA public")
			// It was restored under another name, or the relay has not written down yet which one it was.
			db.exec("DROP TABLE archive.payment_events")
			expect("table public.payment_events existed, and pipeline payments owned it: was it renamed? public.payment_events_old_copy has the same columns",
				"if it was, ALTER TABLE public.payment_events_old_copy RENAME TO payment_events; if the new name is intended, source.table: public.payment_events_old_copy"+dropped)
			db.exec("DROP TABLE payment_events_old_copy")
			expect("table public.payment_events existed, and pipeline payments owned it: was it renamed?", "if it was, give it its name back, or correct source.table"+dropped)
		})
	}
}

// source.table names another table than before, by mistake: nothing is pending there, and the events of the other one are not sent. While the old table is
// drained by a relay of its own, and when it is empty, all is well.
func TestEventsLeftBehind(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	config := func(table string) string {
		return write(t, "admin: {listen: \"127.0.0.1:0\"}\npipelines:\n  - name: payments\n    source: {url: \""+db.url+"\", table: "+table+"}\n    sink: {url: \"stdout:\"}\n")
	}
	before, after := config("payment_events"), config("new_events")
	for _, path := range []string{before, after} {
		do(t, nil, "migrate", "-c", path).want(t, 0, "; created table ", "")
		do(t, nil, "doctor", "-c", path).want(t, 0, "0 problems", "")
	}
	db.exec("UPDATE outbox_buffers SET pipeline = 'payments'")
	run := func(path string) *relay {
		t.Helper()
		r := start(t, nil, "run", "-c", path)
		r.waitForLog("pipeline runs")
		return r
	}
	const says = "pipeline payments also owns table public.payment_events, which has events (1) that this configuration does not send: it names public.new_events, and no relay runs"
	expect := func(what string, code int, problem bool) {
		t.Helper()
		for _, command := range []string{"doctor", "status"} {
			r := do(t, nil, command, "-c", after)
			want := code
			if command == "status" {
				want = 0
			}
			if r.code != want || strings.Contains(r.stdout, says) != problem {
				t.Errorf("%s: %s exits with %d and says\n%s%s", what, command, r.code, r.stdout, r.stderr)
			}
		}
	}
	expect("both are empty", 0, false)
	db.exec("INSERT INTO payment_events (topic, payload, available_at) VALUES ('t', '1', now() + interval '1 day')")
	expect("nobody sends them", 1, true)
	mistaken := run(after)
	expect("the relay sends from the new one", 1, true)
	mistaken.waitForLog("also owns table public.payment_events")
	old := run(before)
	wait(t, time.Minute, func() error {
		if r := do(t, nil, "doctor", "-c", after); r.code != 0 {
			return errors.New(r.stdout)
		}
		return nil
	})
	expect("the old table is drained", 0, false)
	old.signal(os.Interrupt)
	old.exit()
	expect("nobody sends them any more", 1, true)
	db.exec("ALTER TABLE payment_events ADD COLUMN sent_at timestamptz") // perhaps a custom table whose rows stay
	expect("rows that may be no events", 0, true)
	db.exec("DELETE FROM payment_events")
	expect("the old table is empty", 0, false)
}

// source.table names a table of the application: doctor says that, and nothing that would be wrong about it only if it were a table of events.
func TestDoctor_TableOfTheApplication(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	config := func(table string) string {
		return write(t, "pipelines:\n  - name: payments\n    source: {url: \""+db.url+"\", table: "+table+"}\n    sink: {url: \"stdout:\"}\n")
	}
	do(t, nil, "migrate", "-c", config("payment_events")).want(t, 0, "; created table ", "")
	// The relay's tables have another owner than the application's.
	for _, table := range []string{"payment_events", "outbox_batches", "outbox_dead_letters", "outbox_buffers", "outbox_sinks", "outbox_relays", "outbox_rates"} {
		db.exec("ALTER TABLE " + table + " OWNER TO pg_monitor")
	}
	db.exec("CREATE TABLE truth (id bigint, what jsonb)")
	r := do(t, nil, "doctor", "-c", config("truth"))
	r.want(t, 1, "table public.truth exists and is not an event table of the relay: it has no topic, key, payload", "")
	if strings.Count(r.stdout, "FAIL") != 1 || !strings.Contains(r.stdout, "1 problem") || strings.Contains(r.stdout, "public.outbox_") || strings.Contains(r.stdout, "ALTER TABLE") {
		t.Errorf("doctor says more than that:\n%s", r.stdout)
	}
}

// relay migrate says of a table of the application, which has another owner than the relay's tables, that source.table is wrong, and never to drop it.
func TestMigrate_TableOfTheApplication(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec("DO $$ BEGIN CREATE ROLE shop_of_migrate; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
	db.exec("DO $$ BEGIN CREATE ROLE relay_of_migrate LOGIN PASSWORD 'secret'; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
	db.exec("GRANT CREATE, USAGE ON SCHEMA public TO relay_of_migrate")
	u, err := url.Parse(db.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("relay_of_migrate", "secret")
	for _, c := range []struct{ table, columns, want string }{
		{"invoices", "id bigint, amount numeric", "invoices exists and is not an event table of the relay: it has no topic, key, payload"},
		{
			"shop_events", "id bigint, topic text, key text, payload json, headers json, created_at timestamptz, group_id uuid, available_at timestamptz",
			"correct source.table, or archive.table, if an application uses it; if shop_of_migrate made it for the relay, ALTER table public.shop_events OWNER TO",
		},
	} {
		db.exec("CREATE TABLE " + c.table + " (" + c.columns + ")")
		db.exec("ALTER TABLE " + c.table + " OWNER TO shop_of_migrate")
		path := write(t, "pipelines:\n  - name: feed\n    source: {url: \""+u.String()+"\", table: "+c.table+"}\n    sink: {url: \"stdout:\"}\n")
		r := do(t, nil, "migrate", "-c", path)
		if says := strings.ReplaceAll(r.stderr, `"`, ""); r.code != 1 || !strings.Contains(says, c.want) || strings.Contains(says, "drop") {
			t.Errorf("migrate exits with %d and says\n%s", r.code, r.stderr)
		}
	}
}

// source.table names a home-made outbox. To add the columns that it lacks would send its rows and delete them, so nothing says how.
func TestHomeMadeOutbox(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			config := func(table string) string {
				return write(t, "admin: {listen: \"\"}\npipelines:\n  - name: crm\n    source: {url: \""+db.url+"\", table: "+table+"}\n    sink: {url: \"stdout:\"}\n")
			}
			do(t, nil, "migrate", "-c", config("crm_events")).want(t, 0, "; created table ", "")
			id, schema := "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", "public."
			if sqlite {
				id, schema = "INTEGER PRIMARY KEY AUTOINCREMENT", ""
			}
			db.exec("CREATE TABLE home_outbox (id " + id + ", topic text NOT NULL, payload text NOT NULL, sent_at text)")
			db.exec("CREATE INDEX of_the_application ON home_outbox (sent_at)")
			const lacks = "home_outbox exists and is not an event table of the relay: it has no key, headers, created_at, group_id"
			expect := func(table, has, fix string) {
				t.Helper()
				for _, command := range []string{"status", "doctor"} {
					r := do(t, nil, command, "-c", config(table))
					text := strings.ReplaceAll(r.stdout+r.stderr, `"`, "")
					if r.code != 1 || !strings.Contains(text, has) || !strings.Contains(text, fix) || strings.Contains(text, "ALTER") || strings.Contains(text, "CREATE") ||
						strings.Contains(text, "DROP") || command == "doctor" && strings.Count(text, "FAIL") != 1 {
						t.Errorf("%s exits with %d and says\n%s\nwant %q and %q only", command, r.code, text, has, fix)
					}
				}
			}
			const foreign = "if your application owns it, add source.project, as relay init --table "
			expect("home_outbox", "; it has columns that are not the relay's (sent_at)", foreign+"home_outbox -o other.yaml")
			db.exec("INSERT INTO home_outbox (topic, payload, sent_at) VALUES ('old', '{}', '2020-01-01')")
			expect("home_outbox", "; it has 1 row and columns that are not", foreign)
			const doubled = "INSERT INTO home_outbox (topic, payload) SELECT topic, payload FROM home_outbox"
			for range 4 {
				db.exec(doubled)
			}
			db.exec("INSERT INTO crm_events (topic, payload) VALUES ('t', '1')")
			r := start(t, nil, "run", "-c", config("crm_events"))
			wait(t, time.Minute, func() error {
				if !strings.Contains(r.stdout.String(), `"id":"1"`) {
					return errors.New("nothing is sent")
				}
				return nil
			})
			r.signal(os.Interrupt)
			r.exit()
			expect("home_outbox", "; it has 16 rows and columns that are not the relay's (sent_at); pipeline crm owns table "+schema+"crm_events",
				"correct source.table, if "+schema+"crm_events is meant; "+foreign)
			mistaken := start(t, nil, "run", "-c", config("home_outbox"))
			mistaken.waitForLog("it has 16 rows")
			if log := mistaken.stderr.String(); !strings.Contains(strings.ReplaceAll(log, `\"`, ""), lacks) || strings.Contains(log, "ALTER") {
				t.Errorf("run says\n%s", log)
			}
			mistaken.signal(os.Interrupt)
			mistaken.exit()
			for range 6 {
				db.exec(doubled)
			}
			expect("home_outbox", "; it has more than 1000 rows and", foreign)

			// Without rows, or with rows alone.
			db.exec("CREATE TABLE plain (id " + id + ", topic text NOT NULL, payload text NOT NULL)")
			add := map[bool]string{true: "ADD COLUMN ", false: "ADD COLUMN IF NOT EXISTS "}[sqlite]
			do(t, nil, "doctor", "-c", config("plain")).want(t, 1, add+"group_id", "")
			db.exec("INSERT INTO plain (topic, payload) VALUES ('t', '1')")
			expect("plain", "; it has 1 row; pipeline crm owns table", foreign+"plain")

			// The relay's own that lost a column, or comes from an older version.
			column := "headers"
			if !sqlite {
				column = "available_at"
				db.exec("ALTER TABLE crm_events ADD COLUMN tenant text")
			}
			db.exec("INSERT INTO crm_events (topic, payload) VALUES ('t', '1')")
			db.exec("ALTER TABLE crm_events DROP COLUMN " + column)
			do(t, nil, "doctor", "-c", config("crm_events")).want(t, 1, add+column, "")
		})
	}
}

// source.table names a table of another owner next to the relay's tables. The owner that is odd is its own.
func TestDoctor_OwnerOfTheTable(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	config := func(table string) string {
		return write(t, "pipelines:\n  - name: payments\n    source: {url: \""+db.url+"\", table: "+table+"}\n    sink: {url: \"stdout:\"}\n")
	}
	do(t, nil, "migrate", "-c", config("payment_events")).want(t, 0, "; created table ", "")
	db.exec(`CREATE TABLE notifications (LIKE payment_events INCLUDING ALL, read_by text);
		ALTER TABLE notifications OWNER TO pg_read_all_stats; ALTER TABLE payment_events OWNER TO pg_monitor;
		DO $$ DECLARE name text; BEGIN
			FOR name IN SELECT oid::regclass FROM pg_class WHERE relname LIKE 'outbox\_%' AND relkind = 'r' OR relname = 'outbox_numbers' LOOP
				EXECUTE 'ALTER TABLE ' || name || ' OWNER TO pg_monitor';
			END LOOP;
			FOR name IN SELECT oid::regprocedure FROM pg_proc WHERE proname LIKE 'outbox\_%' LOOP
				EXECUTE 'ALTER FUNCTION ' || name || ' OWNER TO pg_monitor';
			END LOOP;
		END $$`)
	do(t, nil, "doctor", "-c", config("payment_events")).want(t, 0, "0 problems", "")
	r := do(t, nil, "doctor", "-c", config("notifications"))
	r.want(t, 1, "table public.notifications belongs to pg_read_all_stats, and the relay's tables next to it to pg_monitor", "")
	if strings.Count(r.stdout, "FAIL") != 1 || !strings.Contains(r.stdout, "correct source.table, if your application owns public.notifications") || strings.Contains(r.stdout, "drop it") {
		t.Errorf("doctor says\n%s", r.stdout)
	}
}

// Another table got the name of a pipeline's table, and rows that a relay claimed are in the old one.
func TestReplacedTable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, sqlite bool }{"own": {true, false}, "custom": {false, false}, "SQLite": {true, true}, "SQLite, custom": {false, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := c.own
			db := newAppDatabase(t, c.sqlite)
			source := "url: '" + db.url + "', table: mails"
			const columns = "topic text, payload text, group_id text, created_at text"
			create, like, second, prefix := "id bigserial PRIMARY KEY, topic text, payload jsonb, group_id uuid, created_at timestamptz DEFAULT now()", "LIKE mails", "LIKE mails_old INCLUDING ALL", "public."
			stamp := "gen_random_uuid()"
			if c.sqlite {
				create, prefix, stamp = "id INTEGER PRIMARY KEY AUTOINCREMENT, "+columns, "", "'11111111-1111-4111-8111-111111111111'"
			}
			if !own {
				db.exec("CREATE TABLE mails (" + create + ")")
				source += ", project: 'SELECT e.id, e.payload FROM {events} e'"
			}
			path := write(t, "pipelines:\n  - name: p\n    source: {"+source+"}\n    sink: {url: 'stdout:'}\n")
			if r := do(t, nil, "migrate", "-c", path); r.code != 0 {
				t.Fatal(r.stdout + r.stderr)
			}
			if c.sqlite && own {
				db.exec("CREATE TABLE others AS SELECT * FROM mails; INSERT INTO others (id, topic, payload) VALUES (1, 't', '1')")
				db.exec("INSERT INTO mails (topic, payload) VALUES ('t', '1'), ('t', '2'); ALTER TABLE mails RENAME TO mails_old")
				do(t, nil, "migrate", "-c", path) // makes an empty one
			} else {
				if c.sqlite {
					like, second = create, create
				}
				db.exec("CREATE TABLE others (" + like + "); INSERT INTO others (id, topic, payload, created_at) VALUES (1, 't', '1', '2026-01-01')") // no relay claimed it
				db.exec("INSERT INTO mails (topic, payload) VALUES ('t', '1'), ('t', '2'); ALTER TABLE mails RENAME TO mails_old; CREATE TABLE mails (" + second + ")")
			}
			if !own {
				if r := do(t, nil, "doctor", "-c", path); strings.Contains(r.stdout, "another table got its name") {
					t.Errorf("of rows that no relay claimed doctor says\n%s", r.stdout)
				}
				db.exec("UPDATE mails_old SET group_id = " + stamp + " WHERE id = 1")
			}
			for _, command := range []string{"doctor", "status"} {
				r := do(t, nil, command, "-c", path)
				said := strings.ReplaceAll(r.stdout+r.stderr, `"`, "")
				if !strings.Contains(said, "table "+prefix+"mails_old has the columns of "+prefix+"mails and rows (2 of the first 10000") || strings.Contains(said, "table "+prefix+"others") {
					t.Errorf("%s says\n%s", command, r.stdout+r.stderr)
				}
			}
		})
	}
}
