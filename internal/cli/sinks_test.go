package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testserver"
)

// api is an HTTP API that is away until the test says otherwise.
func api(t *testing.T) (url string, away *atomic.Bool) {
	t.Helper()
	away = new(atomic.Bool)
	away.Store(true)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, away
}

func drained(t *testing.T, db *database) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_events"); n > 0 {
			return fmt.Errorf("%d events are left", n)
		}
		return nil
	})
}

// TestStatus_Sinks: status and log name each sink. One of three is away, and takes its events when it is back.
func TestStatus_Sinks(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, namesEachSink)
}

func namesEachSink(t *testing.T, db *database) {
	t.Helper()
	redis := redisStream(t)
	url, away := api(t)
	path := write(t, fmt.Sprintf(`
log: {format: json}
admin: {listen: ""}
pipelines:
  - name: shop
    source: {url: %q}
    retry: {initial: 1h, max: 1h}
    sinks:
      - {name: stream, url: %q}
      - {name: crm, url: %q, match: [contacts]}
      - {name: mail, url: %q, match: [mail]}
`, db.url, redis.url, url, url+"/mail"))
	do(t, nil, "status", "-c", path).want(t, 0, `PIPELINE  PENDING  OLDEST  LEASED  WAITING  DEAD  PER MIN  LAST  STATE
shop            0       -       0        0     0        0     -
  stream        0       -       0        0     0        0     -  no relay
  crm           0       -       0        0     0        0     -  no relay
  mail          0       -       0        0     0        0     -  no relay
shop: no relay runs. > relay run -c `+path+`
`, "")
	db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('contacts', '{}'), ('contacts', '{}'), ('contacts', '{}')")
	do(t, nil, "status", "-c", path).want(t, 0, "  *             3 ", "")
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'crm' AND error IS NOT NULL"); n == 0 || db.count("SELECT count(*) FROM outbox_batches") > n {
			return fmt.Errorf("crm has not refused all yet")
		}
		if n := db.count("SELECT count(*) FROM outbox_relays WHERE sink = 'crm' AND not_ready_class = 'sink'"); n == 0 {
			return fmt.Errorf("the relay has not reported that crm is unavailable")
		}
		return nil
	})
	for _, text := range []string{
		"shop            3", "  stream        0       -       0        0     0 ", "  crm           3 ", "  sink down ", "\nshop: relay ", ", sink crm has not been ready for ",
		"\nshop/crm: 1 batch waits (3 events), due once the sink takes events (tried every few seconds), in ", "503",
	} {
		testserver.Eventually(t, func() error { // the batch does not wait while it is sent as the probe
			if status := do(t, nil, "status", "-c", path); status.code != 0 || !strings.Contains(status.stdout, text) {
				return fmt.Errorf("the status does not say %q:\n%s", text, status.stdout)
			}
			return nil
		})
	}
	var report struct {
		Pipelines []struct {
			Pending int64
			Sinks   []struct {
				Name    string
				Pending int64
				Next    *float64 `json:"next_try_in_seconds"`
			}
		}
	}
	testserver.Eventually(t, func() error { // the batch does not wait while it is sent as the probe
		report.Pipelines = nil
		if err := json.Unmarshal([]byte(do(t, nil, "status", "-c", path, "--json").stdout), &report); err != nil {
			return err
		}
		shop := report.Pipelines[0]
		if shop.Pending != 3 || len(shop.Sinks) != 3 || shop.Sinks[1].Pending != 3 || shop.Sinks[1].Next == nil || *shop.Sinks[1].Next <= 0 || shop.Sinks[0].Next != nil {
			return fmt.Errorf("status: %+v", shop)
		}
		return nil
	})
	away.Store(false)
	r.signal(syscall.SIGTERM)
	r.exit()
	do(t, nil, "retry", "-c", path, "--now").want(t, 0, "shop: 1 batch is due now\n", "")
	again := start(t, nil, "run", "-c", path)
	drained(t, db)
	again.signal(syscall.SIGTERM)
	again.exit()
	named := map[string]map[string]bool{}
	for line := range strings.Lines(r.stderr.String()) {
		var one struct{ Msg, Pipeline, Sink string }
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if one.Pipeline != "shop" && one.Pipeline != "" {
			t.Errorf("a line of another pipeline: %s", line)
		}
		if named[one.Msg] == nil {
			named[one.Msg] = map[string]bool{}
		}
		named[one.Msg][one.Sink] = true
	}
	every := map[string]bool{"stream": true, "crm": true, "mail": true}
	for message, want := range map[string]map[string]bool{
		"pipeline started": {"": true}, "sink started": every, "pipeline runs": every, "pipeline stopped": every, "delivery failed, will retry": {"crm": true},
	} {
		if diff := cmp.Diff(want, named[message]); diff != "" {
			t.Errorf("%q names the sinks %v, want %v", message, named[message], want)
		}
	}
}

// TestDead_Sinks: the dead letters of one sink are listed, shown and changed by its name, by command and over HTTP.
func TestDead_Sinks(t *testing.T) {
	t.Parallel()
	db, listen := newDatabase(t), freeAddress(t)
	path := write(t, fmt.Sprintf(`
admin: {listen: %q}
pipelines:
  - name: shop
    source: {url: %q}
    sinks:
      - {name: stream, url: "file://%s/stream"}
      - {name: crm, url: "file://%s/crm", match: [contacts]}
  - {name: solo, source: {url: %q, table: solo.outbox_events}, sink: {url: "stdout:"}}
`, listen, db.url, t.TempDir(), t.TempDir(), db.url))
	db.exec("CREATE SCHEMA solo")
	do(t, nil, "migrate", "-c", path).want(t, 0, "solo: applied", "")
	db.bury("shop", [3]string{"1", "contacts", "no such tenant"}, [3]string{"2", "contacts", "no such tenant"}, [3]string{"3", "orders", "too large"},
		[3]string{"4", "other", "no sink takes topic other"}, [3]string{"5", "contacts", "of a sink that is gone"}, [3]string{"6", "contacts", "of crm when it was older"})
	db.exec("UPDATE outbox_dead_letters SET sink = (ARRAY['crm', 'crm', 'stream', '*', 'old', 'older'])[event_id]")
	db.exec(`INSERT INTO outbox_sinks (buffer, sink, batch_size, formerly)
		SELECT 'public.outbox_events', * FROM (VALUES ('stream', 10, '{}'::text[]), ('crm', 10, '{older}')) s`) // as a relay does
	db.exec("INSERT INTO outbox_buffers (buffer, pipeline, claim, routed) VALUES ('public.outbox_events', 'shop', 'range', true)")
	list := do(t, nil, "dead", "list", "-c", path)
	for _, text := range []string{
		"PIPELINE  SINK    ID  TOPIC     KEY  ATTEMPTS  DIED   NOTIFIED  ERROR\n", "shop      crm     1   contacts", "shop      stream  3   orders", "shop      *       4   other",
	} {
		list.want(t, 0, text, "")
	}
	do(t, nil, "dead", "list", "-c", path, "--pipeline", "solo").want(t, 0, "PIPELINE  ID  TOPIC", "")
	ids := func(args ...string) string {
		t.Helper()
		var letters []struct {
			ID   int `json:"event_id"`
			Sink string
		}
		text := do(t, nil, append([]string{"dead", "list", "-c", path, "--json"}, args...)...).stdout
		if err := json.Unmarshal([]byte(text), &letters); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var all []string
		for _, l := range letters {
			all = append(all, fmt.Sprint(l.Sink, l.ID))
		}
		return strings.Join(all, " ")
	}
	for args, want := range map[string]string{
		"--sink crm": "crm1 crm2 crm6", "--sink stream": "stream3", "--sink *": "*4", "--sink old": "old5", "--sink crm --id 2,3": "crm2", "--sink crm --topic orders": "",
	} {
		if got := ids(strings.Fields(args)...); got != want {
			t.Errorf("%s lists %q, want %q", args, got, want)
		}
	}
	do(t, nil, "dead", "show", "-c", path, "--sink", "*").want(t, 0, "shop 4\n  sink      *\n  topic     other\n", "")
	for args, says := range map[string]string{
		"list --sink crmm":                  `relay: --sink is "crmm"; expected stream, crm or *` + "\n",
		"discard --sink default":            `relay: --sink is "default"; expected stream, crm or *` + "\n",
		"replay --sink crm --pipeline solo": `relay: --sink is "crm", and the pipeline has a single sink; expected no sink` + "\n",
	} {
		do(t, nil, append([]string{"dead", "-c", path}, strings.Fields(args)...)...).want(t, 2, "", says)
	}
	do(t, nil, "dead", "discard", "-c", path, "--sink", "crm", "--dry-run").want(t, 0, "shop: would discard 3 dead letters\n", "")
	do(t, nil, "dead", "replay", "-c", path, "--sink", "crm", "--id", "2,3").want(t, 1, "shop: replayed 1 dead letter\n", "relay: 3: no dead letter has this id")
	if sinks := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'crm'"); sinks != 1 || db.count("SELECT count(*) FROM outbox_batches") != 1 {
		t.Errorf("%d batches are for crm, want 1 and none for others", sinks)
	}

	r := start(t, nil, "run", "-c", path)
	r.waitForLog("admin endpoint listening")
	request := func(method, path, body string, code int, text string) {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), method, "http://"+listen+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		got, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != code || !strings.Contains(string(got), text) {
			t.Errorf("%s %s %s: %d %s, %v; want %d %s", method, path, body, answer.StatusCode, got, err, code, text)
		}
	}
	request("GET", "/api/dead?sink=stream", "", 200, `"sink": "stream",`)
	request("GET", "/api/dead?sink=crmm", "", 404, `sink is \"crmm\"; expected stream, crm or *`)
	request("GET", "/api/dead?sink=crm&pipeline=solo", "", 404, "the pipeline has a single sink")
	request("POST", "/api/dead/discard", `{"pipeline": "solo", "ids": "all", "sink": "crm"}`, 404, "the pipeline has a single sink")
	request("POST", "/api/dead/discard", `{"pipeline": "shop", "ids": "all", "sink": "crmm"}`, 404, "expected stream, crm or *")
	request("POST", "/api/dead/discard", `{"pipeline": "shop", "ids": "all", "sink": "crm"}`, 200, `"changed": 2,`)
	if open := db.open("shop"); open != "3 4 5" {
		t.Errorf("the dead letters %s are open, want 3 4 5", open)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
}

// TestVerify_Sinks: verify finds batches of different claims that hold the same events, and joins the claims; it tells what no relay sends.
func TestVerify_Sinks(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, findsSplitClaims)
}

func findsSplitClaims(t *testing.T, db *database) {
	t.Helper()
	redis := redisStream(t)
	url, away := api(t)
	path := write(t, fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: shop
    source: {url: %q}
    retry: {initial: 1h, max: 1h}
    sinks:
      - {name: crm, url: %q, match: [relay.*, contacts]}
      - {name: stream, url: %q, match: [relay.verify]}
`, db.url, url, redis.url))
	do(t, nil, "verify", "-c", path, "--json").want(t, 0, `      "sinks": {
        "split": 0,
        "doubled": 0,
        "unserved": {`, "")
	do(t, nil, "verify", "-c", path, "--events", "2", "--topic", "orders").want(t, 2, "", `--topic is "orders", which no sink of shop takes; expected one that matches`)
	r := start(t, nil, "run", "-c", path)
	do(t, nil, "verify", "-c", path, "--events", "3", "--timeout", "3s").want(t, 1, "  waiting           3  sink crm: POST http://127.0.0.1", "")
	away.Store(false)
	do(t, nil, "retry", "-c", path, "--now").want(t, 0, "shop: ", "")
	drained(t, db)
	do(t, nil, "verify", "-c", path, "--events", "3").want(t, 0, "  every delivered probe is in Redis stream relay.verify exactly once\n", "")
	r.signal(syscall.SIGTERM)
	r.exit()

	db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('relay.verify', '{}'), ('relay.verify', '{}'), ('relay.verify', '{}'), ('relay.verify', '{}')")
	split := `INSERT INTO outbox_batches (group_id, buffer, sink, claim_id, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, newest_at, members)
		SELECT gen_random_uuid(), 'public.outbox_events', sink, gen_random_uuid(), 'range', 'waiting', 0, now(), '', 0, 0, 0, 4, min(id), max(id), now(), now() + interval '1 hour', range_agg(int8range(id, id, '[]'))
		FROM outbox_events, unnest('{crm,stream}'::text[]) sink GROUP BY sink`
	if db.file != nil {
		split = `INSERT INTO outbox_batches (group_id, buffer, sink, claim_id, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, newest_at, members)
		SELECT '00000000-0000-7000-8000-00000000000' || i.value, 'outbox_events', i.key, '00000000-0000-7000-8000-0000000000a' || i.value, 'range', 'waiting', 0, min(created_at), '', 0, 0, 0, 4, min(e.id), max(e.id),
		       min(created_at), max(created_at), json_array(json_array(min(e.id), max(e.id)))
		FROM outbox_events AS e, json_each('{"crm": 1, "stream": 2}') AS i GROUP BY i.key`
	}
	db.exec(split)
	do(t, nil, "verify", "-c", path).want(t, 1, "\nshop: 4 events in batches of different claims: when one sink has an event, another may lose it (run relay verify --repair)\n", "")
	do(t, nil, "verify", "-c", path, "--repair").want(t, 0, "\nshop: joined the claims of 1 batch that hold the same events\n", "")
	db.exec("UPDATE outbox_batches SET sink = 'gone' WHERE sink = 'crm'")
	do(t, nil, "verify", "-c", path).want(t, 1, "\nshop: 4 events in 1 batch for sinks that are not in table outbox_sinks, so no relay sends them; configure the sinks again, or run relay sinks drop\n", "")
}

// TestPreview_Sinks: each sink shows the requests of its own events, and a topic that no sink takes is named.
func TestPreview_Sinks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, fmt.Sprintf(`
pipelines:
  - name: shop
    source: {url: %q}
    sinks:
      - {name: stream, url: "redis://127.0.0.1:1/0", match: [orders.*]}
      - {name: crm, url: "http://127.0.0.1:1/batch", match: [contacts, orders.paid]}
      - {name: mail, url: "http://127.0.0.1:1/mail", match: [mail]}
`, db.url))
	db.exec("INSERT INTO outbox_events (topic, payload) SELECT topic, '{}' FROM unnest('{orders.new,contacts,orders.paid,other,other}'::text[]) topic")
	r := do(t, nil, "preview", "-c", path, "-n", "10")
	for _, text := range []string{
		"(stream {topic})\n5 events read, 2 for this sink; nothing was claimed or sent.\n\nrequest 1 of 2: event 1\nXADD orders.new *\n",
		"(POST json)\n5 events read, 2 for this sink; nothing was claimed or sent.\n\nrequest 1 of 1: events 2, 3\n",
		"(POST json)\n5 events read, none for this sink; nothing was claimed or sent.\n\nshop: no sink takes topic other\n",
	} {
		r.want(t, 0, text, "")
	}

	// What is claimed is told of each sink.
	db.exec(`INSERT INTO outbox_batches (group_id, buffer, sink, claim_id, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, newest_at, error, members)
		SELECT gen_random_uuid(), 'public.outbox_events', sink, '00000000-0000-7000-8000-000000000001', 'range', 'waiting', 0, now(), '', 0, 0, 0, 5, min(id), max(id), now(), now() + interval '1 hour', '503 of ' || sink,
		       range_agg(int8range(id, id, '[]'))
		FROM outbox_events, unnest('{crm,stream}'::text[]) sink GROUP BY sink`)
	r = do(t, nil, "preview", "-c", path)
	r.want(t, 0, "All events are claimed: 5 events wait in 1 batch for a retry.\n\n503 of crm\n", "")
	r.want(t, 0, "(POST json)\nAll events are claimed, and none waits for this sink.\n", "")
}

// TestInit_SeveralSinks: several --sink make a file with several sinks, which check accepts and run runs.
func TestInit_SeveralSinks(t *testing.T) {
	t.Parallel()
	db, path, one, two := newDatabase(t), filepath.Join(t.TempDir(), "relay.yaml"), t.TempDir(), t.TempDir()
	do(t, nil, "init", "--source", db.url, "-o", path, "--sink", "file://"+one+"/all", "--sink", "https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert", "--sink", "file://"+two+"/all").
		want(t, 0, "  export RELAY_FILE2_URL=...   # the URL of the sink file2\n", "")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"    sinks:\n      - name: file   # in metrics, logs and dead letters\n        url: ${RELAY_FILE_URL}\n", "        batch_size: 100   # the limit of a HubSpot request\n",
		"        bearer: ${HUBSPOT_TOKEN}\n", "#   RELAY_HUBSPOT_URL  the URL of the sink hubspot\n", "      - name: file2 ",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the file has no %s:\n%s", want, text)
		}
	}
	env := []string{
		"RELAY_SOURCE_URL=" + db.url, "RELAY_FILE_URL=file://" + one + "/all", "RELAY_FILE2_URL=file://" + two + "/all",
		"RELAY_HUBSPOT_URL=http://127.0.0.1:1/crm/v3/objects/contacts/batch/upsert", "HUBSPOT_TOKEN=s3cret",
	}
	do(t, env, "check", path).want(t, 0, "ok  events/hubspot: ", "")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"one target": {[]string{"--sink", "stdout:", "--sink", "stdout:"}, "sinks.url is the target of the sink on line"},
		"no URL":     {[]string{"--sink", "stdout:", "--sink", "cache"}, "sink.url is not a URL"},
		"empty":      {[]string{"--sink", ""}, "init asks questions on a terminal only; expected --sink"},
	} {
		got := do(t, nil, append([]string{"init", "--source", db.url, "-o", filepath.Join(t.TempDir(), "relay.yaml")}, c.args...)...)
		if got.code != 2 || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%s: exit status %d: %s", name, got.code, got.stderr)
		}
	}
}
