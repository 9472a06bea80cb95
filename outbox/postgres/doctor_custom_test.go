package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// activities is a custom table without payloads, and its parent, which has them.
const activities = `
CREATE SCHEMA app;
CREATE TABLE app.contact_activities (id bigint PRIMARY KEY, lead_id bigint NOT NULL, kind text);
CREATE TABLE app.contact_activity_events (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  contact_activity_id bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  group_id uuid);
CREATE INDEX stamped ON app.contact_activity_events (group_id) WHERE group_id IS NOT NULL;
INSERT INTO app.contact_activities SELECT i, i % 3, 'call' FROM generate_series(1, 8) i;
INSERT INTO app.contact_activity_events (contact_activity_id) SELECT i FROM generate_series(1, 8) i`

const projectActivities = `
SELECT e.id, 'contact.activity' AS topic, a.lead_id::text AS key, to_jsonb(a) AS payload, e.created_at
FROM app.contact_activity_events e JOIN app.contact_activities a ON a.id = e.contact_activity_id
WHERE e.group_id = $1`

// customConfig is a pipeline on that table.
func customConfig(url string) postgres.Config {
	return postgres.Config{
		URL: url, Pipeline: "activities", Table: "app.contact_activity_events", Schema: "relay",
		Custom: buffer.CustomTable{ID: "id", Project: projectActivities},
	}
}

func newCustomDoctorDB(t *testing.T) *doctorDB {
	t.Helper()
	url := testserver.Postgres(t)
	p := &doctorDB{t, url, connect(t, url)}
	p.exec(activities)
	if _, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{Table: "app.contact_activity_events", Schema: "relay", Custom: true}); err != nil {
		t.Fatal(err)
	}
	return p
}

// diagnoseWith opens the buffer afresh.
func diagnoseWith(t *testing.T, c postgres.Config) []buffer.Finding {
	t.Helper()
	b, err := postgres.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	return b.Diagnose(t.Context())
}

// A time without zone is read as UTC, and now() writes it in the zone of the session.
func TestDiagnose_TimeWithoutZone(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	c := customConfig(p.url)
	const says = "column created_at of table app.contact_activity_events has no time zone and is read as UTC, but the database's is Asia/Tokyo"
	warning := func() *buffer.Finding { return find(diagnoseWith(t, c), buffer.LevelWarning, "your table", says) }
	p.exec(`ALTER DATABASE "` + p.conn.Config().Database + `" SET timezone = 'Asia/Tokyo'`)
	if warning() != nil {
		t.Error("a warning about a timestamptz")
	}
	p.exec("SET timezone = 'Asia/Tokyo'; ALTER TABLE app.contact_activity_events ALTER created_at TYPE timestamp")
	p.exec("ALTER TABLE app.contact_activity_events ALTER created_at SET DEFAULT now() AT TIME ZONE 'UTC'")
	if warning() != nil {
		t.Error("a warning about a default in UTC")
	}
	p.exec("ALTER TABLE app.contact_activity_events ALTER created_at SET DEFAULT now(); DELETE FROM app.contact_activity_events")
	p.exec("INSERT INTO app.contact_activity_events (contact_activity_id) VALUES (1)")
	found := warning()
	if found == nil {
		t.Fatal("no warning")
	}
	p.exec(found.Fix)
	if warning() != nil {
		t.Error("a warning after the fix")
	}
	var age float64
	check(t, p.conn.QueryRow(t.Context(), "SELECT extract(epoch FROM now() - created_at)::float FROM app.contact_activity_events").Scan(&age))
	if age < 0 || age > 600 {
		t.Errorf("the fix makes the age %v s", age)
	}
}

func TestDiagnose_CustomTableNothingWrong(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	found := diagnoseWith(t, customConfig(p.url))
	if some := faults(found); len(some) > 0 {
		t.Errorf("got faults %+v", some)
	}
	for about, says := range map[string]string{
		"tables": "", "claim": "by stamp", "claim plan": "contact_activity_events_pkey", "wake-ups": "polling", "autovacuum": "",
		"your table": "claims use a cursor", "projection": "a row for each of the next 8 events", "projection ": "WHERE group_id = $1 finds the rows of a batch by index app.stamped",
	} {
		if find(found, buffer.LevelOK, strings.TrimSpace(about), says) == nil {
			t.Errorf("expected %q about %s: %+v", says, about, found)
		}
	}
	p.exec("DROP INDEX app.stamped")
	expanded := customConfig(p.url)
	expanded.Custom.Project = strings.Replace(strings.Replace(projectActivities, "app.contact_activity_events e", "{events} e", 1), "WHERE e.group_id = $1", "", 1)
	if found := diagnoseWith(t, expanded); len(faults(found)) > 0 || find(found, buffer.LevelOK, "projection", "{events} finds the rows of a batch by column id") == nil {
		t.Errorf("with {events} got %+v", found)
	}
	p.exec("DELETE FROM app.contact_activity_events")
	if find(diagnoseWith(t, customConfig(p.url)), buffer.LevelOK, "projection", "there are no events") == nil {
		t.Errorf("without events got %+v", found)
	}
}

func TestDiagnose_CustomTableFixes(t *testing.T) {
	t.Parallel()
	const events = "app.contact_activity_events"
	for name, c := range map[string]struct {
		damage      string
		config      func(*postgres.Config)
		level       buffer.Level
		about, says string
		// fix replaces a finding's fix that is not SQL.
		fix string
	}{
		"no group_id":       {damage: "ALTER TABLE " + events + " DROP COLUMN group_id", level: buffer.LevelError, about: "tables", says: "has no column group_id"},
		"group_id of text":  {damage: "ALTER TABLE " + events + " ALTER group_id TYPE text", level: buffer.LevelError, about: "tables", says: "column group_id of table app.contact_activity_events is text"},
		"group_id not null": {damage: "DELETE FROM " + events + "; ALTER TABLE " + events + " ALTER group_id SET NOT NULL", level: buffer.LevelError, about: "tables", says: "may not be NULL"},
		"group_id computed": {damage: "ALTER TABLE " + events + " DROP COLUMN group_id, ADD COLUMN group_id uuid GENERATED ALWAYS AS (NULL) STORED", level: buffer.LevelError, about: "tables", says: "group_id of table app.contact_activity_events is computed"},
		"no key":            {damage: "ALTER TABLE " + events + " DROP CONSTRAINT contact_activity_events_pkey", level: buffer.LevelError, about: "tables", says: "column id of table app.contact_activity_events, which source.id names, is not unique"},
		"nullable key": {
			damage: "ALTER TABLE " + events + " DROP CONSTRAINT contact_activity_events_pkey, ALTER id DROP IDENTITY, ALTER id DROP NOT NULL, ADD UNIQUE (id)",
			level:  buffer.LevelError, about: "tables", says: "may be NULL",
		},
		"no such key": {
			config: func(c *postgres.Config) { c.Custom.ID = "Id" }, level: buffer.LevelError, about: "tables",
			says: `has no column "Id", which source.id names`, fix: "-",
		},
		"a delay of a similar name": {
			damage: "ALTER TABLE " + events + " ADD COLUMN run_at timestamptz", config: func(c *postgres.Config) { c.Custom.AvailableAt = "rum_at" }, level: buffer.LevelError, about: "tables",
			says: `has no column "rum_at", which source.available_at names (did you mean run_at?)`, fix: "-",
		},
		"a key of text": {
			damage: "ALTER TABLE " + events + " ALTER id DROP IDENTITY; ALTER TABLE app.contact_activity_events ALTER id TYPE text", level: buffer.LevelError, about: "tables",
			says: "column id of table app.contact_activity_events is text", fix: "cursor",
		},
		"no cursor column": {
			config: func(c *postgres.Config) { c.Custom.Cursor = "place in line" }, level: buffer.LevelError, about: "tables",
			says: `has no column "place in line", which source.cursor names`,
		},
		"cursor of text": {
			damage: "ALTER TABLE " + events + " ADD COLUMN seq text", config: func(c *postgres.Config) { c.Custom.Cursor = "seq" }, level: buffer.LevelError, about: "tables",
			says: "column seq of table app.contact_activity_events, which source.cursor names, is text", fix: "-",
		},
		"cursor not unique": {
			damage: "ALTER TABLE " + events + " ADD COLUMN seq bigserial", config: func(c *postgres.Config) { c.Custom.Cursor = "seq" }, level: buffer.LevelError, about: "tables",
			says: "column seq of table app.contact_activity_events, which source.cursor names, is not unique",
		},
		"cursor nullable": {
			damage: "CREATE SEQUENCE app.s; ALTER TABLE " + events + " ADD COLUMN seq bigint DEFAULT nextval('app.s') UNIQUE", config: func(c *postgres.Config) { c.Custom.Cursor = "seq" }, level: buffer.LevelError, about: "tables",
			says: "column seq of table app.contact_activity_events, which source.cursor names, may be NULL",
		},
		"a view": {
			damage: "CREATE VIEW app.v AS SELECT * FROM " + events, config: func(c *postgres.Config) { c.Table = "app.v" }, level: buffer.LevelError, about: "tables",
			says: "app.v is not a table", fix: "-",
		},
		"no table": {config: func(c *postgres.Config) { c.Table = "app.nothing" }, level: buffer.LevelError, about: "tables", says: `custom table "app"."nothing" does not exist`, fix: "-"},
		"32 bits":  {damage: "ALTER TABLE " + events + " ALTER id TYPE integer; ALTER SEQUENCE app.contact_activity_events_id_seq AS integer", level: buffer.LevelWarning, about: "your table", says: "is integer; inserts fail after 2147483647"},
		"no sequence": {
			damage: "ALTER TABLE " + events + " ALTER id DROP IDENTITY", level: buffer.LevelWarning, about: "your table",
			says: "has no sequence; claims have no cursor",
		},
		"down":   {damage: "ALTER SEQUENCE app.contact_activity_events_id_seq INCREMENT BY -1 MINVALUE -100", level: buffer.LevelWarning, about: "your table", says: "counts down"},
		"cycles": {damage: "ALTER SEQUENCE app.contact_activity_events_id_seq CYCLE", level: buffer.LevelWarning, about: "your table", says: "id_seq cycles"},
		"uuid": {
			damage: "ALTER TABLE " + events + " ALTER id DROP IDENTITY; ALTER TABLE app.contact_activity_events ALTER id TYPE uuid USING gen_random_uuid()", level: buffer.LevelWarning, about: "your table",
			says: "is a uuid: each claim reads the whole table", fix: "cursor",
		},
		"uuid, indexed": {
			damage: "ALTER TABLE " + events + " ALTER id DROP IDENTITY; ALTER TABLE app.contact_activity_events ALTER id TYPE uuid USING gen_random_uuid(); CREATE INDEX waiting ON " + events + " (id) WHERE group_id IS NULL",
			level:  buffer.LevelOK, about: "your table", says: "claims use index app.waiting; a growing column", fix: "cursor",
		},
		"restricting reference": {
			damage: "CREATE TABLE app.log (event bigint PRIMARY KEY REFERENCES " + events + ")", level: buffer.LevelWarning, about: "foreign keys",
			says: "constraint log_event_fkey of table app.log prevents the delete of delivered events", fix: "ALTER TABLE app.log DROP CONSTRAINT log_event_fkey",
		},
		"unindexed reference": {
			damage: "CREATE TABLE app.log (id int, event bigint REFERENCES " + events + " ON DELETE CASCADE); CREATE INDEX ON app.log (id, event)", level: buffer.LevelWarning,
			about: "foreign keys", says: "table app.log references table app.contact_activity_events by columns without an index",
		},
		"autovacuum": {damage: "ALTER TABLE " + events + " SET (autovacuum_enabled = false)", level: buffer.LevelWarning, about: "autovacuum", says: "autovacuum_enabled is false"},
		"unlogged":   {damage: "ALTER TABLE " + events + " SET UNLOGGED", level: buffer.LevelError, about: "tables", says: "is UNLOGGED"},
		"ledger":     {damage: "DROP TABLE relay.outbox_batches", level: buffer.LevelError, about: "tables", says: `table "relay".outbox_batches does not exist`, fix: "migrate"},
		"no parents": {
			damage: "DELETE FROM app.contact_activities WHERE id IN (2, 3)", level: buffer.LevelWarning, about: "projection",
			says: `of the next 8 events it returns no row for 2, which would be buried as "not projected": 2, 3`, fix: "INSERT INTO app.contact_activities VALUES (2, 2, ''), (3, 0, '')",
		},
		"read for each batch": {
			damage: "DROP INDEX app.stamped", level: buffer.LevelWarning, about: "projection",
			says: "reads all of table app.contact_activity_events for each batch",
		},
		"another index": {
			damage: "DROP INDEX app.stamped; CREATE INDEX ON app.contact_activity_events (group_id) WHERE group_id IS NULL; CREATE INDEX ON app.contact_activity_events (id, group_id)",
			level:  buffer.LevelWarning, about: "projection", says: "for each batch: it has no index on group_id",
		},
		"rows twice": {
			damage: "ALTER TABLE app.contact_activities DROP CONSTRAINT contact_activities_pkey; INSERT INTO app.contact_activities VALUES (4, 9, '')", level: buffer.LevelError,
			about: "projection", says: "1 could not be sent (4): source.project: event 4 is returned twice", fix: "DELETE FROM app.contact_activities WHERE lead_id = 9",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newCustomDoctorDB(t)
			config := customConfig(p.url)
			if c.damage != "" {
				p.exec(c.damage)
			}
			if c.config != nil {
				c.config(&config)
			}
			found := diagnoseWith(t, config)
			f := find(found, c.level, c.about, c.says)
			if f == nil || f.Fix == "" {
				t.Fatalf("got %+v", faults(found))
			}
			checked := checkConfig(t, config)
			if (c.level == buffer.LevelError && c.about == "tables" && name != "unlogged") != errors.Is(checked, buffer.ErrNotReady) || checked != nil && !strings.Contains(checked.Error(), c.says+"") {
				t.Errorf("Check says %v", checked)
			}
			switch c.fix {
			case "-":
				return
			case "cursor":
				p.exec(f.Fix)
				config.Custom.Cursor = "seq"
			case "migrate":
				if _, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Table: config.Table, Schema: "relay", Custom: true}); err != nil {
					t.Fatal(err)
				}
			case "":
				for range 2 { // a second finding may have been behind the first
					for _, f := range faults(diagnoseWith(t, config)) {
						p.exec(f.Fix)
					}
				}
			default:
				p.exec(c.fix)
			}
			if left := faults(diagnoseWith(t, config)); len(left) > 0 {
				t.Errorf("after the fix got %+v", left)
			}
		})
	}
}

func checkConfig(t *testing.T, c postgres.Config) error {
	t.Helper()
	b, err := postgres.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	return b.Check(t.Context())
}

// Triggers that the relay's statements fire are reported, others are not.
func TestDiagnose_CustomTriggers(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	if _, err := p.conn.Exec(t.Context(), "CREATE FUNCTION app.f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"); err != nil {
		t.Fatal(err)
	}
	for name, when := range map[string]string{
		"audited": "AFTER UPDATE OR DELETE", "stamped": "AFTER UPDATE OF group_id", "inserted": "AFTER INSERT", "moved": "AFTER UPDATE OF contact_activity_id",
	} {
		p.exec("CREATE TRIGGER " + name + " " + when + " ON app.contact_activity_events FOR EACH ROW EXECUTE FUNCTION app.f()")
	}
	found := diagnoseWith(t, customConfig(p.url))
	var triggers []string
	for _, f := range found {
		if f.Subject == "triggers" && f.Level == buffer.LevelOK {
			triggers = append(triggers, f.Text)
		}
	}
	if len(triggers) != 2 || !strings.Contains(triggers[0], "trigger audited fires on UPDATE and DELETE:") || !strings.Contains(triggers[1], "trigger stamped fires on UPDATE:") {
		t.Errorf("got %q", triggers)
	}
}

// Findings name the fault in a projection, and its place.
func TestDiagnose_Projection(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	const from = " FROM app.contact_activity_events e WHERE e.group_id = $1"
	for name, c := range map[string]struct{ project, says string }{
		"syntax":         {"SELECT e.id,\n  'ü' AS topic,\n  e.id AS payload FORM app.contact_activity_events", `source.project is not right at line 3, column 19: syntax error at or near "FORM"`},
		"after {events}": {"SELECT e.id,\n  '{}' AS payload FROM {events} e,\n  {events} f, nowhere", `at line 3, column 15: relation "nowhere" does not exist`},
		"no column":      {"SELECT e.id, e.bodi AS payload" + from, "at line 1, column 14: column e.bodi does not exist"},
		"hint":           {"SELECT e.id, '{}' AS payload, e.contact_activityid AS key" + from, `(Perhaps you meant to reference the column "e.contact_activity_id")`},
		"no table":       {"SELECT id, payload FROM nowhere WHERE group_id = $1", `at line 1, column 25: relation "nowhere" does not exist`},
		"uuid as text":   {"SELECT id, '{}' AS payload FROM app.contact_activity_events WHERE group_id::text = $1", "operator does not exist: text = uuid"},
		"two of them":    {"SELECT 1; SELECT 2", "cannot insert multiple commands"},
		"no SELECT":      {"DELETE FROM app.contact_activity_events WHERE group_id = $1", "returns nothing; expected a SELECT"},
		"deletes":        {"DELETE FROM app.contact_activity_events WHERE group_id = $1 RETURNING id, '{}'::jsonb AS payload", "source.project writes (INSERT, UPDATE, DELETE or MERGE)"},
		"deletes first":  {"WITH gone AS (DELETE FROM app.contact_activity_events WHERE group_id = $1 RETURNING id) SELECT id, '{}' AS payload FROM gone", "source.project writes"},
		"locks":          {"SELECT id, '{}' AS payload" + from + " FOR UPDATE", "source.project locks rows"},
		"no parameter":   {"SELECT id, '{}' AS payload FROM app.contact_activity_events", "uses neither {events} nor $1"},
		"two of those":   {"SELECT id, $2::text AS payload" + from, "has 2 parameters"},
		"no id":          {"SELECT '{}' AS payload" + from, "expected a column id"},
		"no payload":     {"SELECT id" + from, "expected a column payload"},
		"id twice":       {"SELECT *, id, '{}' AS payload" + from, "returns column id twice"},
		"another id":     {"SELECT e.created_at AS id, '{}' AS payload" + from, "returns column id of type timestamptz; the key id is bigint"},
		"a payload":      {"SELECT id, 3 AS payload" + from, "returns column payload of type int4; expected jsonb, json, bytea, or text that is JSON"},
		"headers":        {"SELECT id, '{}' AS payload, 7 AS headers" + from, "returns column headers of type int4; expected json or jsonb"},
		"created_at":     {"SELECT id, '{}' AS payload, 'now' AS created_at" + from, "returns column created_at of type text; expected timestamptz"},
		"a domain's id":  {"SELECT id, '{}'::jsonb AS payload, now() AS created_at, '{}'::json AS headers, 3 AS key, true AS other" + from, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := customConfig(p.url)
			config.Custom.Project = c.project
			err := checkConfig(t, config)
			if c.says == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			if !errors.Is(err, buffer.ErrNotReady) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
			if f := find(diagnoseWith(t, config), buffer.LevelError, "projection", c.says); f == nil || f.Fix == "" {
				t.Errorf("doctor finds %+v", f)
			}
		})
	}
}

// TestDiagnose_CustomTablePrivileges: findings name the missing privileges, and those that only replay
// needs.
func TestDiagnose_CustomTablePrivileges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare, says, sequence string
		cursor                  string
	}{
		"an integer": {"SELECT 1", "may not read the last value of sequence app.contact_activity_events_id_seq", "SELECT", ""},
		"a uuid":     {"ALTER TABLE app.contact_activity_events ALTER id DROP IDENTITY; ALTER TABLE app.contact_activity_events ALTER id TYPE uuid USING gen_random_uuid(); CREATE INDEX ON app.contact_activity_events (id) WHERE group_id IS NULL", `may not use sequence "relay".outbox_numbers`, "USAGE", ""},
		"a cursor":   {"ALTER TABLE app.contact_activity_events ALTER id DROP IDENTITY; ALTER TABLE app.contact_activity_events ALTER id TYPE uuid USING gen_random_uuid(), ADD COLUMN seq bigserial UNIQUE", "may not read the last value of sequence app.contact_activity_events_seq_seq", "SELECT", "seq"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newCustomDoctorDB(t)
			p.exec(c.prepare)
			poor := customConfig(p.as("poor_", "GRANT USAGE ON SCHEMA app, relay", "GRANT pg_read_all_stats"))
			poor.Custom.Cursor = c.cursor
			found := faults(diagnoseWith(t, poor))
			for _, says := range []string{"may not SELECT, UPDATE (group_id), DELETE on table app.contact_activity_events", c.says} {
				if find(found, buffer.LevelError, "tables", says) == nil {
					t.Errorf("expected %q in %+v", says, found)
				}
			}
			for _, f := range found {
				if strings.HasPrefix(f.Fix, "GRANT") {
					p.exec(f.Fix)
				}
			}
			// Now the projection can be read, but for its parents.
			found = faults(diagnoseWith(t, poor))
			if len(found) != 1 || !strings.Contains(found[0].Text, "permission denied for table contact_activities") || !strings.HasPrefix(found[0].Fix, "GRANT SELECT ON ") {
				t.Fatalf("after the first grants got %+v", found)
			}
			p.exec("GRANT SELECT ON app.contact_activities TO " + roleOf(found[0].Fix))
			found = faults(diagnoseWith(t, poor))
			if len(found) != 1 || found[0].Level != buffer.LevelWarning || !strings.Contains(found[0].Text, "only relay dead replay needs it") {
				t.Fatalf("after the grants got %+v", found)
			}
			p.exec(found[0].Fix)
			if left := faults(diagnoseWith(t, poor)); len(left) > 0 {
				t.Errorf("after all grants got %+v", left)
			}
		})
	}
}

// roleOf returns the role at the end of a GRANT.
func roleOf(grant string) string { return grant[strings.LastIndex(grant, " TO ")+len(" TO "):] }

// Findings name the schemas that the role may not use, and all other missing privileges.
func TestDiagnose_ForbiddenSchemas(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	p.exec("CREATE SCHEMA elsewhere; ALTER TABLE app.contact_activities SET SCHEMA elsewhere")
	poor := customConfig(p.as("shut_out_", "GRANT USAGE ON SCHEMA app", "GRANT pg_read_all_stats", "GRANT ALL ON ALL TABLES IN SCHEMA relay, elsewhere",
		"GRANT ALL ON ALL SEQUENCES IN SCHEMA app, relay"))
	poor.Custom.Project = strings.ReplaceAll(projectActivities, "app.contact_activities a", "elsewhere.contact_activities a")
	found := faults(diagnoseWith(t, poor))
	if len(found) != 2 || find(found, buffer.LevelError, "tables", "may not use schema relay") == nil || find(found, buffer.LevelError, "tables", "may not SELECT, UPDATE (group_id), DELETE on table app.contact_activity_events") == nil {
		t.Errorf("got %+v", found)
	}
	if err := checkConfig(t, poor); !errors.Is(err, buffer.ErrNotReady) || strings.Count(err.Error(), "GRANT USAGE ON SCHEMA relay TO ") != 1 {
		t.Errorf("Check says %v", err)
	}
	for _, f := range found {
		p.exec(f.Fix)
	}
	p.exec("REVOKE ALL ON SCHEMA app FROM " + strings.Fields(found[0].Fix)[len(strings.Fields(found[0].Fix))-1])
	found = faults(diagnoseWith(t, poor))
	if len(found) != 1 || find(found, buffer.LevelError, "tables", "may not use schema app") == nil {
		t.Errorf("of the table's own schema got %+v", found)
	}
	p.exec(found[0].Fix)
	found = faults(diagnoseWith(t, poor))
	if len(found) != 1 || !strings.Contains(found[0].Text, "permission denied for schema elsewhere") {
		t.Fatalf("of what the projection reads got %+v", found)
	}
	p.exec("GRANT USAGE ON SCHEMA elsewhere TO " + roleOf(found[0].Fix))
	for _, f := range faults(diagnoseWith(t, poor)) {
		if f.Level == buffer.LevelError {
			t.Errorf("after the fix got %+v", f)
		}
	}
}

// TestDiagnose_PartitionedTable: PostgreSQL enforces uniqueness only within a
// partition.
func TestDiagnose_PartitionedTable(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	p.exec(`CREATE TABLE app.by_time (id bigserial, created_at timestamptz DEFAULT now(), group_id uuid, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at);
CREATE TABLE app.by_id (id bigserial, group_id uuid) PARTITION BY RANGE (id)`)
	for table, want := range map[string]string{
		"by_time": "column id of table app.by_time, which source.id names, is not unique, and cannot be in a table that is partitioned by RANGE (created_at): " +
			"use a table that is not partitioned, or partitioned by id alone, as source.table",
		"by_id": "column id of table app.by_id, which source.id names, is not unique: ALTER TABLE app.by_id ADD UNIQUE (id)",
	} {
		config := customConfig(p.url)
		config.Table = "app." + table
		if err := checkConfig(t, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %s it says %v", table, err)
		}
	}
	p.exec("ALTER TABLE app.by_id ADD UNIQUE (id)")
}

// TestDiagnose_SharedRate: a shared rate needs outbox_rates, and privileges on it.
func TestDiagnose_SharedRate(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	config := customConfig(p.as("rated_", "GRANT USAGE ON SCHEMA app, relay", "GRANT pg_read_all_stats", "GRANT ALL ON ALL TABLES IN SCHEMA app, relay", "GRANT ALL ON ALL SEQUENCES IN SCHEMA app, relay"))
	config.SharedRate = true
	if left := faults(diagnoseWith(t, config)); len(left) > 0 {
		t.Fatalf("before got %+v", left)
	}
	role := strings.Split(strings.TrimPrefix(config.URL, "postgres://"), ":")[0]
	p.exec(`REVOKE ALL ON relay.outbox_rates FROM "` + role + `"`)
	f := find(diagnoseWith(t, config), buffer.LevelError, "tables", "may not SELECT, INSERT, UPDATE on table relay.outbox_rates")
	if f == nil {
		t.Fatal("no finding about the missing privileges")
	}
	p.exec(f.Fix)
	if left := faults(diagnoseWith(t, config)); len(left) > 0 {
		t.Errorf("after the fix got %+v", left)
	}
	p.exec("DROP TABLE relay.outbox_rates")
	f = find(diagnoseWith(t, config), buffer.LevelError, "tables", `table "relay".outbox_rates does not exist`)
	if f == nil || f.Fix != "relay migrate -c relay.yaml" {
		t.Errorf("of the missing table it says %+v", f)
	}
	config.SharedRate = false
	if left := faults(diagnoseWith(t, config)); len(left) > 0 {
		t.Errorf("without a shared rate got %+v", left)
	}
}

// TestDiagnose_CustomTableRowSecurity: a policy hides rows, which are never sent.
func TestDiagnose_CustomTableRowSecurity(t *testing.T) {
	t.Parallel()
	p := newCustomDoctorDB(t)
	poor := customConfig(p.as("secured_", "GRANT USAGE ON SCHEMA app, relay", "GRANT pg_read_all_stats", "GRANT ALL ON ALL TABLES IN SCHEMA app, relay", "GRANT ALL ON ALL SEQUENCES IN SCHEMA app, relay"))
	if left := faults(diagnoseWith(t, poor)); len(left) > 0 {
		t.Fatalf("before got %+v", left)
	}
	p.exec("ALTER TABLE app.contact_activity_events ENABLE ROW LEVEL SECURITY")
	f := find(diagnoseWith(t, poor), buffer.LevelError, "row security", "hides rows of table app.contact_activity_events")
	if f == nil {
		t.Fatal("no finding about the policy")
	}
	p.exec(f.Fix)
	if left := faults(diagnoseWith(t, poor)); len(left) > 0 {
		t.Errorf("after the fix got %+v", left)
	}
}
