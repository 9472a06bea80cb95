package cli

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
)

// Tables of applications, and a statement that adds an event to each.
const (
	activities = `
CREATE TABLE leads (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL, first_name text);
CREATE TABLE contact_activities (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lead_id bigint NOT NULL, kind text NOT NULL);
CREATE TABLE contact_activity_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, contact_activity_id bigint NOT NULL REFERENCES contact_activities,
    created_at timestamptz NOT NULL DEFAULT now(), group_id uuid)`
	addActivity = `
WITH l AS (INSERT INTO leads (email) VALUES ('ann@example.com') RETURNING id),
     a AS (INSERT INTO contact_activities (lead_id, kind) SELECT id, 'opened' FROM l RETURNING id)
INSERT INTO contact_activity_events (contact_activity_id) SELECT id FROM a`
	debeziums = `
CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)`
	addDebezium = `
INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', '7', 'OrderCreated', '{"total": 42}')`
	rails = `
CREATE TABLE outboxes (id bigserial PRIMARY KEY, identifier uuid NOT NULL, event text NOT NULL, payload jsonb,
    aggregate text NOT NULL, aggregate_identifier uuid NOT NULL, created_at timestamp NOT NULL, updated_at timestamp NOT NULL)`
	addRails = `
INSERT INTO outboxes (identifier, event, payload, aggregate, aggregate_identifier, created_at, updated_at)
VALUES (gen_random_uuid(), 'USER_CREATED', '{"after": {"id": 1}}', 'User', '0a0a0a0a-0000-4000-8000-000000000000', now(), now())`
	uuids = `
CREATE TABLE domain_events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), position bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    event_type text NOT NULL, entity_id text NOT NULL, data jsonb NOT NULL, occurred_at timestamp NOT NULL DEFAULT now(), group_id uuid)`
	addUUID = `
INSERT INTO domain_events (event_type, entity_id, data) VALUES ('user.renamed', 'u1', '{"name": "Ann"}')`
	uuidsAlone = `
CREATE TABLE user_events (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id int NOT NULL, what text)`
	addUUIDAlone = `
INSERT INTO user_events (user_id, what) VALUES (3, 'left')`
	marked = `
CREATE TABLE order_log (id bigserial PRIMARY KEY, kind text NOT NULL, data jsonb NOT NULL, status text, sent_at timestamp, created_at timestamptz NOT NULL DEFAULT now())`
	addMarked = `
INSERT INTO order_log (kind, data, sent_at) VALUES ('order.placed', '{"n": 1}', now()), ('order.placed', '{"n": 2}', NULL)`
	markedInFile = `
CREATE TABLE order_log (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, payload TEXT NOT NULL, processed_at DATETIME, created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')))`
	addMarkedInFile = `
INSERT INTO order_log (topic, payload, processed_at) VALUES ('order.placed', '{"n": 1}', '2026-01-02'), ('order.placed', '{"n": 2}', NULL)`
	odd = `
CREATE SCHEMA "My Shop";
CREATE TABLE "My Shop"."order" ("the ""key""" int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "user" text, "${HOME}" int DEFAULT 5);
CREATE TABLE "My Shop"."Odd.Events" ("Event Id" int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    "Order" int NOT NULL REFERENCES "My Shop"."order", group_id uuid)`
	addOdd = `
INSERT INTO "My Shop"."order" ("user") VALUES ('o''neill');
INSERT INTO "My Shop"."Odd.Events" ("Order") VALUES (1)`
	inFile = `
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, photo BLOB, settings JSON);
CREATE TABLE customer_events (id INTEGER PRIMARY KEY AUTOINCREMENT, customer_id INTEGER NOT NULL REFERENCES customer,
    "order" TEXT, created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')), group_id TEXT)`
	addInFile = `
INSERT INTO customer (name, photo, settings) VALUES ('Ann', x'00ff', '{"a":1}');
INSERT INTO customer_events (customer_id) VALUES (1)`
)

// initCases are tables for init, and the event that arrives.
var initCases = []struct {
	name, tables, insert string
	args                 []string
	arrives              string
}{
	{
		name: "activities", tables: activities, insert: addActivity, args: []string{"--table", "contact_activity_events"},
		arrives: `{"id":"1","topic":"contact_activity_events","key":"1","payload":{"id": 1, "created_at": "`,
	},
	{
		name: "debezium", tables: debeziums, insert: addDebezium, args: []string{"--table", "outbox"},
		arrives: `"topic":"outbox.event.order","key":"7","payload":{"total": 42},`,
	},
	{
		name: "rails", tables: rails, insert: addRails, args: []string{"--table", "outboxes"},
		arrives: `"topic":"USER_CREATED","key":"0a0a0a0a-0000-4000-8000-000000000000","payload":{"after": {"id": 1}},`,
	},
	{
		name: "uuids", tables: uuids, insert: addUUID, args: []string{"--table", "domain_events"},
		arrives: `"topic":"user.renamed","key":"u1","payload":{"name": "Ann"},"headers":{"position": "1"},"created_at":"`,
	},
	{
		name: "uuids-alone", tables: uuidsAlone, insert: addUUIDAlone, args: []string{"--table", "user_events", "--name", "leavers"},
		arrives: `"topic":"user_events","payload":{"id": "`,
	},
	{
		name: "marked", tables: marked, insert: addMarked, args: []string{"--table", "order_log"},
		arrives: `{"id":"2","topic":"order_log"`,
	},
	{
		name: "sqlite-marked", tables: markedInFile, insert: addMarkedInFile, args: []string{"--table", "order_log"},
		arrives: `{"id":"2","topic":"order.placed"`,
	},
	{
		name: "odd", tables: odd, insert: addOdd, args: []string{"--table", `"My Shop"."Odd.Events"`},
		arrives: `{"id":"1","topic":"Odd.Events","key":"1","payload":{"Order": 1, "Event Id": 1, "Order_row": {"user": "o'neill", "${HOME}": 5, "the \"key\"": 1}}`,
	},
	{
		name: "relays", insert: `INSERT INTO outbox_events (topic, payload) VALUES ('orders', '{"n": 1}')`, args: []string{"-y"},
		arrives: `{"id":"1","topic":"orders","payload":{"n": 1},`,
	},
	{
		name: "sqlite", tables: inFile, insert: addInFile, args: []string{"--table", "customer_events"},
		arrives: `{"id":"1","topic":"customer_events","key":"1","payload":{"id":1,"customer_id":1,"order":null,"created_at":"`,
	},
	{
		name: "sqlite-relays", insert: `INSERT INTO outbox_events (topic, payload) VALUES ('orders', '{"n": 1}')`,
		tables: `CREATE TABLE orders (id INTEGER PRIMARY KEY)`, args: []string{"-y"},
		arrives: `{"id":"1","topic":"orders","payload":{"n": 1},`,
	},
}

// appDatabase is an application's database without the relay's tables.
type appDatabase struct {
	t    *testing.T
	url  string
	env  []string // for a configuration that init wrote, with the sink stdout:
	exec func(sql string)
}

func newAppDatabase(t *testing.T, sqlite bool) *appDatabase {
	t.Helper()
	if sqlite {
		path := filepath.Join(t.TempDir(), "app.db")
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return &appDatabase{t: t, url: "sqlite://" + path, env: initEnv("sqlite://"+path, "stdout:"), exec: func(sql string) {
			t.Helper()
			if _, err := db.ExecContext(t.Context(), sql); err != nil {
				t.Fatal(sql, err)
			}
		}}
	}
	return appDatabaseAt(t, testserver.Postgres(t))
}

func appDatabaseAt(t *testing.T, server string) *appDatabase {
	t.Helper()
	return &appDatabase{t: t, url: server, env: initEnv(server, "stdout:"), exec: func(sql string) {
		t.Helper()
		c, err := pgx.ParseConfig(server)
		if err != nil {
			t.Fatal(err)
		}
		c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // several statements at once
		conn, err := pgx.ConnectConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(sql, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}}
}

// initEnv has the variables of a configuration that init wrote.
func initEnv(source, sink string) []string {
	return []string{"RELAY_SOURCE_URL=" + source, "RELAY_SINK_URL=" + sink}
}

// TestURL_ParameterOfADriver: a parameter that only the application's driver knows is named.
func TestURL_ParameterOfADriver(t *testing.T) {
	t.Parallel()
	url := newDatabase(t).url
	sign := "?"
	if strings.Contains(url, "?") {
		sign = "&"
	}
	url += sign + "pool=5"
	do(t, nil, "init", "--source", url, "--sink", "stdout:", "-o", filepath.Join(t.TempDir(), "relay.yaml")).want(t, 1, "", `unrecognized configuration parameter "pool" (SQLSTATE 42704); remove that parameter from the URL`)
	do(t, nil, "status", "-c", write(t, onePipeline("orders", url, "stdout:"))).want(t, 1, "", "PostgreSQL does not know a parameter of source.url, which is perhaps one of the application's driver, such as pool or schema; remove it: ")
}
