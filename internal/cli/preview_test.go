package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
)

var groupID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Preview shows the requests without secrets, and writes nothing.
func TestPreview_Request(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(4)
	path := write(t, onePipeline("orders", db.url, "http://bob:s3cret-1@127.0.0.1:1/{topic}?key=s3cret-2", "    batch_size: 2")+
		"    retry: {max_attempts: 1}\n")
	before := db.count("SELECT sum(xmin::text::bigint) FROM outbox_events")
	r := do(t, nil, "preview", "-c", path)
	r.want(t, 0, "orders: postgres://***@127.0.0.1:", "")
	_, shown, _ := strings.Cut(r.stdout, "\n")
	shown = created.ReplaceAllString(groupID.ReplaceAllString(shown, "GROUP"), `"created_at": "NOW"`)
	event := func(n int) string {
		return fmt.Sprintf(`    {
      "id": "%d",
      "topic": "orders",
      "key": "k%d",
      "payload": {
        "n": %d
      },
      "created_at": "NOW"
    }`, n, n, n)
	}
	request := func(i int, events string, bodies ...string) string {
		return fmt.Sprintf(`
request %d of 2: %s
POST http://127.0.0.1:1/{topic}?*** (orders)
Authorization: Basic ***
Content-Type: application/json
Idempotency-Key: GROUP
User-Agent: relay

{
  "pipeline": "orders",
  "group_id": "GROUP",
  "events": [
%s
  ]
}
`, i, events, strings.Join(bodies, ",\n"))
	}
	want := "3 events read; nothing was claimed or sent.\n" +
		request(1, "events 1, 2", event(1), event(2)) + request(2, "event 3", event(3))
	if shown != want {
		t.Errorf("preview shows\n%s\nwant %s", shown, want)
	}
	if after := db.count("SELECT sum(xmin::text::bigint) FROM outbox_events"); after != before || db.count("SELECT count(*) FROM outbox_batches") != 0 {
		t.Error("preview changed the database")
	}
	do(t, nil, "preview", "-c", path, "-n", "1").want(t, 0, "1 event read", "")
}

var created = regexp.MustCompile(`"created_at": "[^"]+"`)

// A URL that is one environment variable shows its host; the Content-Type is not masked.
func TestPreview_URLFromEnvironment(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1)
	path := write(t, "pipelines:\n- name: orders\n  source: {url: '"+db.url+"'}\n  sink: {url: '${HOOK}', headers: {Content-Type: application/vnd.api+json, X-Key: s3cret-3}}\n")
	r := do(t, []string{"HOOK=http://127.0.0.1:1/services/s3cret-4"}, "preview", "-c", path)
	r.want(t, 0, "POST http://127.0.0.1:1/***\nContent-Type: application/vnd.api+json\n", "")
	r.want(t, 0, "X-Key: ***\n", "")
}

// Preview shows the events that would not be sent, and the reasons.
func TestPreview_NotSent(t *testing.T) {
	t.Parallel()
	db := newAppDatabase(t, false)
	db.exec(strings.Replace(activities, "REFERENCES contact_activities", "", 1))
	source := "{url: \"" + db.url + "\", table: contact_activity_events, schema: relay, project: \"SELECT e.id, 't' AS topic, a.lead_id::text AS key, to_jsonb(a) AS payload FROM contact_activity_events e JOIN contact_activities a ON a.id = e.contact_activity_id WHERE e.group_id = $1\"}"
	yaml := "pipelines:\n  - name: orders\n    source: " + source + "\n    sink: {url: \"http://127.0.0.1:1/{key}\"}\n"
	path := write(t, yaml)
	do(t, nil, "migrate", "-c", path).want(t, 0, "applied", "")
	do(t, nil, "preview", "-c", path).want(t, 0, "The buffer has no events. Insert one and run preview again:\n\n  INSERT INTO contact_activity_events ...", "")
	db.exec(`INSERT INTO contact_activities (lead_id, kind) VALUES (7, 'opened'); INSERT INTO contact_activity_events (contact_activity_id) VALUES (1), (99), (98)`)
	r := do(t, nil, "preview", "-c", path)
	r.want(t, 0, "3 events read", "")
	for _, want := range []string{"request 1 of 1: event 1\nPOST http://127.0.0.1:1/{key} (7)\n", "not sent: events 2, 3\nsource.project returns no row. They become dead letters"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is not in\n%s", want, r.stdout)
		}
	}

	broken := write(t, strings.Replace(yaml, "a.lead_id::text", "(1 / (a.lead_id - 7))::text", 1))
	do(t, nil, "preview", "-c", broken).want(t, 0, "not sent: events 2, 3\nsource.project returns no row", "")
	do(t, nil, "preview", "-c", broken).want(t, 0, "not sent: event 1\nprojection failed on event data: source.project failed: ERROR: division by zero", "")
	do(t, nil, "preview", "-c", broken, "-n", "1").want(t, 1, "source.project fails for event 1, so nothing would be sent:\nprojection failed on event data: source.project failed: ERROR: division by zero", "")

	plain := newDatabase(t)
	plain.exec("INSERT INTO outbox_events (topic, payload) VALUES ('orders', '{}'), ('orders', '1')")
	refuses := write(t, onePipeline("orders", plain.url, "http://127.0.0.1:1/{key}"))
	do(t, nil, "preview", "-c", refuses).want(t, 0, "\nnot sent: event 1\n", "")
	do(t, nil, "preview", "-c", refuses).want(t, 0, "\nnot sent: event 2\n", "")
}

// Preview says why no row of a table is an event that is due.
func TestPreview_NoEventDue(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		group, at, available := "uuid", "timestamptz", "      available_at: send_at\n"
		if db.file != nil {
			group, at, available = "text", "text", ""
		}
		db.exec("CREATE TABLE mails (id integer PRIMARY KEY, body text, sent_at " + at + ", send_at " + at + ", group_id " + group + ")")
		db.exec("CREATE INDEX mails_send_at ON mails (send_at) WHERE send_at IS NOT NULL")
		path := write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: mails\n      where: sent_at IS NULL\n"+available+
			"      project: SELECT e.id, 'mail' AS topic, e.body AS payload FROM {events} e\n    sink: {url: 'stdout:'}\n")
		do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
		shows := func(want ...string) {
			t.Helper()
			r := do(t, nil, "preview", "-c", path)
			r.want(t, 0, "p: ", "")
			if got := r.stdout; len(want) == 0 != strings.Contains(got, "The buffer has no events. Insert one") {
				t.Errorf("preview prints %s", got)
			}
			for _, w := range want {
				if !strings.Contains(r.stdout, w) {
					t.Errorf("%q is not in\n%s", w, r.stdout)
				}
			}
		}
		shows()
		db.exec("INSERT INTO mails (id, body, sent_at) VALUES (1, '{}', '2026-01-02T03:04:05.000Z'), (2, '{}', '2026-01-02T03:04:05.000Z')")
		shows("Table mails has 2 rows that source.where excludes: sent_at IS NULL\n", "with group_id NULL, and sent_at IS NULL\n")
		if available == "" {
			return
		}
		db.exec("INSERT INTO mails (id, body, send_at) VALUES (3, '{}', clock_timestamp() + interval '40 days')")
		delayed := "No event is due yet. Delayed: 1, the next until " + time.Now().Add(40*24*time.Hour).UTC().Format("2006-01-")
		shows(delayed, "Table mails has 2 rows that source.where excludes: sent_at IS NULL\n")
		db.exec("DELETE FROM mails WHERE id < 3")
		shows(delayed)
	})
}

// Preview describes the waiting batches if no event is unclaimed.
func TestPreview_WaitingBatches(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not today", http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	for _, sqlite := range []bool{false, true} {
		t.Run(map[bool]string{true: "sqlite", false: "postgres"}[sqlite], func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, sqlite)
			path := write(t, onePipeline("orders", db.url, server.URL))
			do(t, nil, "migrate", "-c", path).want(t, 0, "applied", "")
			do(t, nil, "preview", "-c", path).want(t, 0, "The buffer has no events. Insert one", "")
			db.exec(`INSERT INTO outbox_events (topic, payload) VALUES ('orders', '{"n": 1}'), ('orders', '{"n": 2}')`)
			start(t, nil, "run", "-c", path)
			testserver.Eventually(t, func() error {
				r := do(t, nil, "preview", "-c", path)
				if !retries.MatchString(r.stdout) || r.code != 0 {
					return fmt.Errorf("preview exits with %d and prints %q", r.code, r.stdout)
				}
				return nil
			})
			// The request of one that waits.
			file := write(t, `{"id": "2", "topic": "orders", "key": null, "payload": {"n": 2}, "headers": null, "created_at": "2026-11-26T12:00:00+01:00"}`)
			r := do(t, nil, "preview", "-c", path, "--events-file", file)
			r.want(t, 0, "1 event read; nothing was claimed or sent.\n\nrequest 1 of 1: event 2\nPOST "+server.URL+"\n", "")
			r.want(t, 0, `"n": 2`, "")
		})
	}
}

var retries = regexp.MustCompile(`\nAll events are claimed: 2 events wait in 1 batch for a retry\.\n\n[^\n]*POST http[^\n]*503 Service Unavailable: not today[^\n]*\n\n` +
	`Fix the cause\. A running relay retries within 5m0s\. Preview shows unclaimed events only\.\nTo see the request of an event that waits, write its envelope to a file, .*\nsays, and run: relay preview -c relay.yaml --events-file FILE\n$`)

// Every kind of sink supports preview, and an unavailable pipeline does not block the others.
func TestPreview_AllSinks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(2)
	for name, try := range map[string]struct{ sink, want string }{
		"redis": {testserver.SharedRedis(t), "XADD orders"},
		"list":  {testserver.SharedRedis(t) + `", mode: list, list: "l`, "RPUSH l"},
		"nats":  {"nats://127.0.0.1:1", "PUB orders"},
		"file":  {"stdout:", `{"id":"1","topic":"orders","key":"k1","payload":{"n": 1},`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, onePipeline("orders", db.url, try.sink)+
				"  - {name: down, source: {url: '"+unreachable+"'}, sink: {url: 'stdout:'}}\n")
			do(t, nil, "preview", "-c", path).want(t, 1, try.want, "relay: down: ")
			do(t, nil, "preview", "-c", path, "--pipeline", "orders").want(t, 0, try.want, "")
		})
	}
}

func TestPreview_Errors(t *testing.T) {
	t.Parallel()
	path := write(t, onePipeline("orders", unreachable, "stdout:"))
	do(t, nil, "preview", "-c", path, "-n", "0").want(t, 2, "", "-n is 0; expected 1 to 1000")
	do(t, nil, "preview", "-c", path, "--pipeline", "other").want(t, 2, "", `--pipeline is "other"; expected orders`)
	do(t, nil, "preview", "-c", path).want(t, 1, "", "relay: orders: ")
}

// Preview and doctor warn of headers that the request program ignores.
func TestPreview_HeadersNotSent(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`INSERT INTO outbox_events (topic, payload, headers) VALUES ('t', '{"a": 1}', '{"tenant": "7"}'), ('t', '{"a": 2}', NULL)`)
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()
	with := func(program string) string {
		return write(t, onePipeline("orders", db.url, api.URL+`", request: "`+program))
	}
	for program, warns := range map[string]bool{"[.events[].payload]": true, ".events": false, "[.events[] | .payload + {h: .headers}]": false} {
		path := with(program)
		preview, doctor := do(t, nil, "preview", "-c", path), doctorJSON(t, path, 0)
		if got := strings.Contains(preview.stdout, "\nnot sent: the headers of event 1\n"); got != warns || preview.code != 0 {
			t.Errorf("%s: preview says\n%s%s", program, preview.stdout, preview.stderr)
		}
		if got := doctor.find("orders", "warning", "sink"); strings.Contains(got, "the headers, which 1 of the next 2 events have") != warns {
			t.Errorf("%s: doctor says %s", program, got)
		}
	}
}

// TestPreview_QuotedTable: the statement that preview prints can be copied, whatever the table is called; a sentence about one event is one about one.
func TestPreview_QuotedTable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`CREATE TABLE "orderItems" (id bigserial PRIMARY KEY, n int, group_id uuid)`)
	path := write(t, "pipelines:\n  - name: p\n    source: {url: '"+db.url+"', table: orderItems, project: 'SELECT e.id, to_jsonb(e.n) AS payload FROM {events} e'}\n    sink: {url: 'stdout:'}\n")
	do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
	do(t, nil, "preview", "-c", path).want(t, 0, `  INSERT INTO "orderItems" ...; COMMIT;   -- with group_id NULL`, "")
	db.exec(`INSERT INTO "orderItems" (n) VALUES (7)`)
	do(t, nil, "doctor", "-c", path).want(t, 0, "it returns a row for the next event\n", "")
}

// Preview and doctor name the events whose data makes the projection fail, and preview shows the others.
func TestPreview_BadData(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		db.exec("CREATE TABLE notes (id integer PRIMARY KEY, body text, group_id " + map[bool]string{true: "text", false: "uuid"}[db.file != nil] + ")")
		field := "(e.body::jsonb->>'a')"
		if db.file != nil {
			field = "json_extract(e.body, '$.a')"
		}
		path := write(t, "pipelines:\n  - name: p\n    source:\n      url: '"+db.url+"'\n      table: notes\n      project: \"SELECT e.id, 'note' AS topic, '{}' AS payload, "+
			field+" AS key FROM {events} e\"\n    sink: {url: 'http://127.0.0.1:1/{key}'}\n")
		do(t, nil, "migrate", "-c", path).want(t, 0, "p: ", "")
		db.exec(`INSERT INTO notes (id, body) VALUES (1, '{"a": "x"}'), (2, '{no'), (3, '{"a": "y"}'), (4, '{"a": "y"}'), (5, '[')`)
		r := do(t, nil, "preview", "-c", path, "-n", "5")
		r.want(t, 0, "5 events read", "")
		for _, want := range []string{"event 1\n", "events 3, 4\n", "not sent: event 2\nprojection failed on event data: source.project failed: ", "not sent: event 5\nprojection failed on event data: source.project failed: "} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%q is not in\n%s", want, r.stdout)
			}
		}
		if db.file == nil {
			do(t, nil, "doctor", "-c", path).want(t, 1, "of the next 5 events, 2 could not be sent (2, 5): projection failed on event data: source.project failed: ", "")
		}
	})
}
