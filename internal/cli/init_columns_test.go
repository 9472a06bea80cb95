package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

// receiver is an API that keeps the events it accepts.
type receiver struct {
	url    string
	mu     sync.Mutex
	events []arrivedEvent
	sizes  []int
}

type arrivedEvent struct {
	ID, Topic, Key string
	Payload        json.RawMessage
	Headers        map[string]string
}

// newReceiver accepts what refuse does not answer.
func newReceiver(t *testing.T, refuse func(w http.ResponseWriter, events []arrivedEvent) bool) *receiver {
	t.Helper()
	r := &receiver{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var body struct{ Events []arrivedEvent }
		if err := json.Unmarshal(readAll(t, request.Body), &body); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sizes = append(r.sizes, len(body.Events))
		if refuse == nil || !refuse(w, body.Events) {
			r.events = append(r.events, body.Events...)
		}
	}))
	t.Cleanup(server.Close)
	r.url = server.URL + "/bulk"
	return r
}

// wait returns the events, once so many have arrived.
func (r *receiver) wait(t *testing.T, n int) (all []arrivedEvent) {
	t.Helper()
	testserver.Eventually(t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if all = r.events; len(all) < n {
			return fmt.Errorf("%d events arrived, want %d", len(all), n)
		}
		return nil
	})
	return all
}

const tickets = `
CREATE TABLE users (id INTEGER PRIMARY KEY, full_name text, email text, password_digest text, api_token text);
CREATE TABLE ticket_events (id INTEGER PRIMARY KEY%s, user_id INTEGER NOT NULL REFERENCES users, subject text NOT NULL, otp text, group_id %s);
INSERT INTO users VALUES (1, 'Ann', 'ann@example.com', 's3cret-digest', 's3cret-token')`

const orderItems = `
CREATE TABLE "orders" (id INTEGER PRIMARY KEY, customer text, "Card Number" text);
CREATE TABLE "orderItems" (id INTEGER PRIMARY KEY%s, "orderId" INTEGER, "unitPrice" numeric NOT NULL, "createdAt" %s, group_id %s);
INSERT INTO "orders" VALUES (7, 'Ann', 's3cret')`

const invoices = `
CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER);
CREATE TABLE invoice_events (id INTEGER PRIMARY KEY%s, invoice_id INTEGER NOT NULL REFERENCES invoices, old_status text, new_status text, occurred_at %s, group_id %s);
INSERT INTO invoices VALUES (3, 42)`

const homemade = `
CREATE TABLE outbox_items (id INTEGER PRIMARY KEY%s, event_type text NOT NULL, aggregate_id text NOT NULL, aggregate_type text NOT NULL, tenant INTEGER,
    access_token text, payload json NOT NULL, "timestamp" %s, group_id %s)`

// wide is a row with so many columns that one call cannot make an object of it.
func wide() string {
	var columns []string
	for i := range 120 {
		columns = append(columns, fmt.Sprintf("c%d INTEGER DEFAULT %d", i, i))
	}
	return "CREATE TABLE rooms (id INTEGER PRIMARY KEY, " + strings.Join(columns, ", ") + "); INSERT INTO rooms (id) VALUES (5);" +
		"CREATE TABLE room_events (id INTEGER PRIMARY KEY%s, room_id INTEGER REFERENCES rooms, created_at %s, group_id %s)"
}

// Every column of the event and of the row that it refers to arrives, but none that looks secret, and none that the other table
// got later. Init lists them.
func TestInit_Columns(t *testing.T) {
	t.Parallel()
	wideRow := map[string]any{"id": 5}
	for i := range 120 {
		wideRow[fmt.Sprintf("c%d", i)] = i
	}
	fill := func(sql, identity string, types ...any) string {
		return fmt.Sprintf(sql, append([]any{identity}, types...)...)
	}
	postgres := func(sql string) string {
		types := []any{"timestamptz DEFAULT now()", "uuid"}
		return fill(sql, " GENERATED ALWAYS AS IDENTITY", types[2-strings.Count(sql, "%s")+1:]...)
	}
	sqlite := func(sql string) string {
		types := []any{"TEXT DEFAULT CURRENT_TIMESTAMP", "TEXT"}
		return fill(sql, " AUTOINCREMENT", types[2-strings.Count(sql, "%s")+1:]...)
	}
	type object = map[string]any
	cases := []struct {
		name, table, sql, insert string
		want                     object
		key, topic               string
		headers                  map[string]string
		sent, unsent             string
		aged                     bool
		postgres                 string // instead of sql
	}{
		{
			name: "tickets", table: "ticket_events", sql: tickets, insert: "INSERT INTO ticket_events (user_id, subject, otp) VALUES (1, 'It rains', 's3cret-otp'); ALTER TABLE users ADD COLUMN birthday text DEFAULT 's3cret'",
			want: object{"id": 1, "user_id": 1, "subject": "It rains", "user": object{"id": 1, "full_name": "Ann", "email": "ann@example.com"}}, key: "1", topic: "ticket_events",
			sent: "sent: id, user_id, subject, user (id, full_name, email)", unsent: "not sent: ticket_events.otp, users.password_digest, users.api_token (the names suggest secrets)",
		},
		{
			name: "items", table: `"orderItems"`, sql: orderItems, insert: `INSERT INTO "orderItems" ("orderId", "unitPrice") VALUES (7, 12.5), (NULL, 3)`,
			want: object{"id": 1, "orderId": 7, "unitPrice": 12.5, "order": object{"id": 7, "customer": "Ann"}}, key: "7", topic: "orderItems",
			sent: `sent: id, orderId, unitPrice, createdAt, order (id, customer) joins orders by orderId, guessed from the name; no foreign key not sent: `, unsent: "not sent: orders.Card Number", aged: true,
		},
		{
			name: "invoices", table: "invoice_events", sql: invoices, insert: "INSERT INTO invoice_events (invoice_id, old_status, new_status) VALUES (3, 'open', 'paid')",
			want: object{"id": 1, "invoice_id": 3, "old_status": "open", "new_status": "paid", "invoice": object{"id": 3, "total": 42}}, key: "3", topic: "invoice_events",
			sent: "sent: id, invoice_id, old_status, new_status, occurred_at, invoice (id, total)", aged: true,
		},
		{
			name: "homemade", table: "outbox_items", sql: homemade, insert: `INSERT INTO outbox_items (event_type, aggregate_id, aggregate_type, tenant, access_token, payload) VALUES ('paid', 'i3', 'invoice', NULL, 's3cret', '{"n": 1}')`,
			want: object{"n": 1}, key: "i3", topic: "paid", headers: map[string]string{"aggregate_type": "invoice"},
			sent: "sent: id, event_type, aggregate_id, aggregate_type, tenant, payload, timestamp not sent", unsent: "not sent: outbox_items.access_token (", aged: true,
		},
		{
			name: "wide", table: "room_events", sql: wide(), insert: "INSERT INTO room_events (room_id) VALUES (5)",
			want: object{"id": 1, "room_id": 5, "room": wideRow}, key: "5", topic: "room_events", sent: "sent: id, room_id, created_at, room (id, c0, c1,", aged: true,
		},
		{
			name: "uuids", table: `"app-logs".audit`, postgres: `CREATE SCHEMA "app-logs"; CREATE TABLE "app-logs".people (id uuid PRIMARY KEY, name text);
				CREATE TABLE "app-logs".audit (id uuid PRIMARY KEY DEFAULT '0a0a0a0a-0000-4000-8000-000000000001', person_id uuid REFERENCES "app-logs".people, "What" text, inserted_at timestamptz DEFAULT now(), group_id uuid);
				INSERT INTO "app-logs".people VALUES ('0a0a0a0a-0000-4000-8000-000000000000', 'Ann')`,
			insert: `INSERT INTO "app-logs".audit (person_id, "What") VALUES ('0a0a0a0a-0000-4000-8000-000000000000', 'left')`,
			want: object{
				"id": "0a0a0a0a-0000-4000-8000-000000000001", "person_id": "0a0a0a0a-0000-4000-8000-000000000000", "What": "left",
				"person": object{"id": "0a0a0a0a-0000-4000-8000-000000000000", "name": "Ann"},
			}, key: "0a0a0a0a-0000-4000-8000-000000000000", topic: "audit", sent: "sent: id, person_id, What, inserted_at, person (id, name)", aged: true,
		},
	}
	for _, try := range cases {
		for _, driver := range []string{"postgres", "sqlite"} {
			if try.postgres != "" && driver == "sqlite" {
				continue
			}
			t.Run(try.name+"/"+driver, func(t *testing.T) {
				t.Parallel()
				db := newAppDatabase(t, driver == "sqlite")
				switch {
				case try.postgres != "":
					db.exec(try.postgres)
				case driver == "sqlite":
					db.exec(sqlite(try.sql))
				default:
					db.exec(postgres(try.sql))
				}
				api := newReceiver(t, nil)
				path := filepath.Join(t.TempDir(), "relay.yaml")
				wrote := do(t, nil, "init", "--source", db.url, "--sink", api.url, "--table", try.table, "-o", path)
				wrote.want(t, 0, "Wrote ", "")
				said := strings.Join(strings.Fields(wrote.stdout), " ")
				for _, want := range []string{try.sent, try.unsent, "A 2xx answer counts as accepted for all events of its request. "} {
					if !strings.Contains(said, want) {
						t.Errorf("init says %s, want %s", said, want)
					}
				}
				if warns := strings.Contains(said, "Warning: no column of "+try.table+" says when a row was inserted, so the age of"); warns == try.aged || strings.Contains(said, " not sent: ") == (try.unsent == "") {
					t.Errorf("init says %s", said)
				}
				env := initEnv(db.url, api.url)
				do(t, env, "migrate", "-c", path).want(t, 0, ": applied ", "")
				db.exec(try.insert)
				pending := do(t, env, "status", "-c", path, "--json")
				if unknown := strings.Contains(pending.stdout, `"oldest_pending_seconds": null`); unknown == try.aged {
					t.Errorf("the age is unknown: %t, in %s", unknown, pending.stdout)
				}
				if said := strings.Join(strings.Fields(do(t, env, "status", "-c", path).stdout), " "); strings.Contains(said, " unknown ") == try.aged {
					t.Errorf("status says %s", said)
				}
				doctor := do(t, env, "doctor", "-c", path)
				if warns := strings.Contains(doctor.stdout, "the age of waiting events is unknown"); warns == try.aged || strings.Contains(doctor.stdout, "it does not send") {
					t.Errorf("doctor says\n%s", doctor.stdout)
				}
				quiet(t, path)
				r := start(t, env, "run", "-c", path)
				got := api.wait(t, strings.Count(try.insert, "),")+1)[0]
				r.signal(syscall.SIGTERM)
				if code := r.exit(); code != 0 {
					t.Errorf("exit status %d", code)
				}
				var payload object
				if err := json.Unmarshal(got.Payload, &payload); err != nil {
					t.Fatal(err)
				}
				for _, at := range []string{"createdAt", "occurred_at", "created_at", "inserted_at"} {
					delete(payload, at)
				}
				want, gotten := mustJSON(t, try.want), mustJSON(t, payload)
				if diff := cmp.Diff(want, gotten); diff != "" {
					t.Errorf("payload:\n%s", diff)
				}
				if got.Key != try.key || got.Topic != try.topic || cmp.Diff(try.headers, got.Headers) != "" {
					t.Errorf("topic %s, key %s, headers %v; want %s, %s, %v", got.Topic, got.Key, got.Headers, try.topic, try.key, try.headers)
				}
			})
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The example of results that init writes gets along with answers that name no event: 422 with one error for the whole request.
func TestInit_ResultsExample(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	api := newReceiver(t, func(w http.ResponseWriter, events []arrivedEvent) bool {
		for _, e := range events {
			if strings.Contains(string(e.Payload), "bad") {
				w.WriteHeader(http.StatusUnprocessableEntity)
				fmt.Fprint(w, `{"error": "email is not a valid address"}`)
				return true
			}
		}
		fmt.Fprint(w, `{"errors": []}`)
		return false
	})
	path := filepath.Join(t.TempDir(), "relay.yaml")
	do(t, nil, "init", "--source", db.url, "--sink", api.url, "--batch-size", "20", "-o", path).want(t, 0, "Wrote ", "")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`(?m)^      #(results: \|)\n      #(  if .*)\n      #(  else .*)$`)
	if !example.Match(text) {
		t.Fatalf("no example in\n%s", text)
	}
	text = example.ReplaceAll(text, []byte("      $1\n      $2\n      $3"))
	text = []byte(strings.Replace(string(text), "initial: 1s", "initial: 100ms", 1))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	quiet(t, path)
	env := initEnv(db.url, api.url)
	do(t, env, "migrate", "-c", path).want(t, 0, ": applied ", "")
	db.exec(`INSERT INTO outbox_events (topic, payload) SELECT 'contacts', json_build_object('email', CASE n WHEN 17 THEN 'bad' ELSE 'good' END) FROM generate_series(1, 50) n`)
	start(t, env, "run", "-c", path)
	if got := api.wait(t, 49); len(got) != 49 {
		t.Errorf("%d events arrived, want 49", len(got))
	}
	testserver.Eventually(t, func() error {
		if list := do(t, env, "dead", "list", "-c", path, "--json").stdout; !strings.Contains(list, "email is not a valid address") || !strings.Contains(list, `"event_id": 17,`) {
			return fmt.Errorf("the dead letters are %s", list)
		}
		return nil
	})
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, n := range api.sizes {
		if n > 20 {
			t.Errorf("a request has %d events, want at most 20", n)
		}
	}
}

// Init -y takes the table that is meant for events, and what else it would propose.
func TestInit_Yes(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(activities + "; CREATE TABLE orders (id int PRIMARY KEY)")
	path := filepath.Join(t.TempDir(), "relay.yaml")
	do(t, []string{"RELAY_SOURCE_URL=" + db.url}, "init", "-y", "-o", path).want(t, 0, "from contact_activity_events to stdout:", "")
	do(t, db.env, "check", "-c", path).want(t, 0, "ok  contact_activity_events: ", "")
	do(t, nil, "init", "-y", "-o", filepath.Join(t.TempDir(), "relay.yaml")).want(t, 2, "", "expected --source\n")
}

// Doctor names a column of the event's table that the projection drops, until it is sent or named in a comment.
func TestDoctor_Unsent(t *testing.T) {
	t.Parallel()
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{false: "postgres", true: "sqlite"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			identity, group, row := "GENERATED ALWAYS AS IDENTITY", "uuid", "to_jsonb(p)"
			if sqlite {
				identity, group, row = "AUTOINCREMENT", "TEXT", "json_object('id', p.id)"
			}
			db.exec("CREATE TABLE users (id INTEGER PRIMARY KEY); CREATE TABLE ticket_events (id INTEGER PRIMARY KEY " + identity +
				", user_id INTEGER, subject text, otp text, happened timestamp, group_id " + group + ")")
			config := func(more string) string {
				return write(t, "pipelines:\n  - name: tickets\n    source:\n      url: "+db.url+"\n      table: ticket_events\n      created_at: happened\n      project: |\n"+
					"        SELECT e.id, "+row+" AS payload FROM {events} e JOIN users p ON p.id = e.user_id"+more+"\n    sink: {url: \"stdout:\"}\n")
			}
			path := config("")
			do(t, nil, "migrate", "-c", path).want(t, 0, ": applied ", "")
			do(t, nil, "doctor", "-c", path).want(t, 0, "it does not send subject of table ", "")
			if said := do(t, nil, "doctor", "-c", config(" -- not sent: subject")).stdout; strings.Contains(said, "it does not send") {
				t.Errorf("doctor says\n%s", said)
			}
		})
	}
}
