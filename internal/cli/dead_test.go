package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// bury inserts dead letters of a pipeline: id, topic and error of each.
func (d *database) bury(pipeline string, dead ...[3]string) {
	d.t.Helper()
	for _, l := range dead {
		if d.file != nil {
			d.exec(`INSERT INTO outbox_dead_letters (pipeline, event_id, topic, key, payload, headers, created_at, group_id, attempts, error, died_at)
				VALUES (?1, CAST(?2 AS INTEGER), ?3, 'k' || ?2, json_object('id', ?2), '{"a": "b"}', '2026-01-02T03:04:05.123Z', ?5, 3, ?4,
				        strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-2 hours'))`, pipeline, l[0], l[1], l[2], uuid.NewString())
			continue
		}
		d.exec(`INSERT INTO outbox_dead_letters (pipeline, event_id, topic, key, payload, headers, created_at, group_id, attempts, error, died_at)
			VALUES ($1, $2::text::bigint, $3, 'k' || $2, jsonb_build_object('id', $2::text), '{"a": "b"}', '2026-01-02 03:04:05.123456Z', gen_random_uuid(), 3, $4,
			        clock_timestamp() - interval '2 hours')`, pipeline, l[0], l[1], l[2])
	}
}

// open returns the ids of open dead letters, in order.
func (d *database) open(pipeline string) string {
	d.t.Helper()
	var ids string
	err := d.conn.QueryRow(d.t.Context(), `SELECT coalesce(string_agg(event_id::text, ' ' ORDER BY event_id), '')
		FROM outbox_dead_letters WHERE pipeline = $1 AND closed_at IS NULL`, pipeline).Scan(&ids)
	if err != nil {
		d.t.Fatal(err)
	}
	return ids
}

// An id as an argument is an error that names the right command.
func TestDead_PositionalIDs(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"show 51":        "relay: unexpected argument 51; expected relay dead show --id 51\n",
		"replay 51 52":   "relay: unexpected argument 51 52; expected relay dead replay --id 51,52\n",
		"discard 51":     "expected relay dead discard --id 51\n",
		"show something": "relay: unexpected argument something; relay dead show takes none",
	} {
		do(t, nil, append([]string{"dead"}, strings.Fields(args+" -c relay.yaml")...)...).want(t, 2, "", says)
	}
}

func TestDeadList(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	do(t, nil, "dead", "list", "-c", path, "--json").want(t, 0, "[]\n", "")
	do(t, nil, "dead", "list", "-c", path).want(t, 0, "PIPELINE  ID  TOPIC  KEY  ATTEMPTS  DIED  NOTIFIED  ERROR\n", "")

	db.bury("orders", [3]string{"17", "orders.created", "422: no such tenant\n\x1b[31mred"}, [3]string{"9007199254740993", "orders.paid", "400"})
	db.bury("others", [3]string{"18", "x", "y"})
	db.exec("UPDATE outbox_dead_letters SET group_id = '0198c0de-0000-7000-8000-000000000001', died_at = '2026-02-03 04:05:06Z', payload = E'{\"a\":  \"<é>\",\n    \"headers\": 0,\"payload\": 0 }' WHERE event_id = 17")
	do(t, nil, "dead", "list", "-c", path, "--topic", "orders.created", "--json").want(t, 0, `[
  {
    "pipeline": "orders",
    "event_id": 17,
    "topic": "orders.created",
    "key": "k17",
    "payload": {"a":  "<é>",
    "headers": 0,"payload": 0 },
    "headers": {"a": "b"},
    "created_at": "2026-01-02T03:04:05.123456Z",
    "group_id": "0198c0de-0000-7000-8000-000000000001",
    "attempts": 3,
    "error": "422: no such tenant\n\u001b[31mred",
    "died_at": "2026-02-03T04:05:06.000000Z",
    "notified_at": null,
    "closed_at": null,
    "closed_as": null,
    "closed_by": null,
    "closed_reason": null
  }
]
`, "")
	r := do(t, nil, "dead", "list", "-c", path)
	r.want(t, 0, "orders    9007199254740993  orders.paid     k9007199254740993  3         2h 0m", "")
	if strings.Contains(r.stdout, "\x1b") || strings.Count(r.stdout, "\n") != 3 {
		t.Errorf("stdout is %q", r.stdout)
	}
	for _, c := range []struct {
		args string
		ids  []int64
	}{
		{"", []int64{17, 9007199254740993}},
		{"--all", []int64{17, 9007199254740993}},
		{"--id 17", []int64{17}},
		{"--id 17,9007199254740993 --limit 1", []int64{17}},
		{"--error TENANT", []int64{17}},
		{"--older-than 1h --newer-than 3h", []int64{9007199254740993}},
		{"--older-than 3h", []int64{17}},
		{"--newer-than 1h", nil},
	} {
		if got := listed(t, path, strings.Fields(c.args)...); !cmp.Equal(got, c.ids) {
			t.Errorf("list %s shows %v, want %v", c.args, got, c.ids)
		}
	}
	db.exec("UPDATE outbox_dead_letters SET closed_at = clock_timestamp(), closed_as = 'discarded', closed_by = 'somebody', closed_reason = 'no tenant' WHERE event_id = 17")
	if got := listed(t, path); !cmp.Equal(got, []int64{9007199254740993}) {
		t.Errorf("list shows %v", got)
	}
	if got := listed(t, path, "--closed"); len(got) != 2 {
		t.Errorf("list --closed shows %v", got)
	}
	do(t, nil, "dead", "list", "-c", path, "--closed").want(t, 0, " ago by somebody", "")
	do(t, nil, "dead", "list", "-c", path, "--closed", "--json").want(t, 0, "\"closed_as\": \"discarded\",\n    \"closed_by\": \"somebody\",\n    \"closed_reason\": \"no tenant\"", "")
	do(t, nil, "dead", "show", "-c", path, "--closed", "--id", "17").want(t, 0, " ago) by somebody\n  reason    no tenant\n", "")
}

// listed returns the ids in list --json.
func listed(t *testing.T, path string, args ...string) []int64 {
	t.Helper()
	r := do(t, nil, append([]string{"dead", "list", "-c", path, "--json"}, args...)...)
	if r.code != 0 {
		t.Errorf("list %v exits with %d: %s", args, r.code, r.stderr)
	}
	var dead []struct {
		ID int64 `json:"event_id"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &dead); err != nil {
		t.Errorf("%q is not JSON: %v", r.stdout, err)
	}
	var ids []int64
	for _, l := range dead {
		ids = append(ids, l.ID)
	}
	return ids
}

// list --json is complete; a table shows the first ones.
func TestDeadList_Pages(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	db.exec(`INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error)
		SELECT 'orders', i, 't', '{}', now(), gen_random_uuid(), 1, 'no' FROM generate_series(1, 1001) i`)
	ids := listed(t, path)
	if len(ids) != 1001 || ids[0] != 1 || ids[1000] != 1001 {
		t.Errorf("list shows %d: %v", len(ids), ids)
	}
	r := do(t, nil, "dead", "list", "-c", path)
	r.want(t, 0, "\norders    1001", "901 more; use --limit 0 to show all")
	if n := strings.Count(r.stdout, "\n"); n != 101 {
		t.Errorf("the table has %d lines", n)
	}
	if n := strings.Count(do(t, nil, "dead", "list", "-c", path, "--limit", "0").stdout, "\n"); n != 1002 {
		t.Errorf("the whole table has %d lines", n)
	}
}

func TestDeadShow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	db.bury("orders", [3]string{"17", "orders.created", "422: no"})
	r := do(t, nil, "dead", "show", "-c", path, "--id", "17", "--id", "18")
	r.want(t, 1, "orders 17\n  topic     orders.created\n  key       k17\n", "relay: 18: no dead letter has this id")
	r.want(t, 1, "  payload\n    {\n      \"id\": \"17\"\n    }\n", "relay: 18: ")
	do(t, nil, "dead", "show", "-c", path, "--topic", "orders.created", "--json").want(t, 0, `"event_id": 17,`, "")
	db.exec(`UPDATE outbox_dead_letters SET history = '[{"at":"2026-01-02T03:04:05Z","relay":"host/7/orders","error":"one","group_id":"0198c0de-0000-7000-8000-000000000001","events":40},
		{"at":"2026-01-02T03:05:05Z","relay":"host/7/orders","error":"gr\u00f6\u00dfe","group_id":"0198c0de-0000-7000-8000-000000000002","events":1,"omitted":3}]' WHERE event_id = 17`)
	do(t, nil, "dead", "show", "-c", path, "--id", "17").want(t, 0, " by host/7/orders, batch 0198c0de-0000-7000-8000-000000000001 of 40 events\n      one\n    3 more attempts\n    2026-01-02T03:05:05Z", "")
	do(t, nil, "dead", "show", "-c", path, "--id", "17", "--json").want(t, 0, `"error": "größe",`, "")
	do(t, nil, "dead", "show", "-c", path).want(t, 2, "", "no dead letters are selected; expected --id, another filter or --all")
}

// Of several pipelines, those without a dead letter that matches have no line.
func TestDeadReplay_SeveralPipelines(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		one := func(name, table string) string {
			return fmt.Sprintf("  - {name: %s, source: {url: %q, table: %s}, sink: {url: 'stdout:'}}\n", name, db.url, table)
		}
		path := write(t, "pipelines:\n"+one("a", "outbox_events")+one("b", "b_events")+one("c", "c_events"))
		do(t, nil, "migrate", "-c", path).want(t, 0, "b: applied", "")
		change := func(command string, args ...string) result {
			t.Helper()
			return do(t, nil, append([]string{"dead", command, "-c", path, "--all"}, args...)...)
		}
		change("replay", "--dry-run").want(t, 0, "all 3 pipelines: would replay 0 dead letters\n", "")
		change("discard").want(t, 0, "all 3 pipelines: discarded 0 dead letters\n", "")
		change("replay", "--dry-run", "--pipeline", "a").want(t, 0, "a: would replay 0 dead letters\n", "")
		db.bury("b", [3]string{"101", "orders", "a"})
		change("replay", "--dry-run").want(t, 0, "b: would replay 1 dead letter\n", "")
		change("discard").want(t, 0, "b: discarded 1 dead letter\n", "")
		var all []struct{ Pipeline string }
		if err := json.Unmarshal([]byte(change("replay", "--json").stdout), &all); err != nil || len(all) != 3 {
			t.Errorf("the JSON has %d pipelines: %v", len(all), err)
		}
	})
}

// A running relay sends replayed events under their old ids. Replay gives the reason for each --id that it skips.
func TestDeadReplay(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	path := write(t, onePipeline("p", db.url, url, "    batch_size: 2"))
	db.bury("p", [3]string{"101", "orders", "a"}, [3]string{"102", "orders", "b"}, [3]string{"103", "orders", "c"},
		[3]string{"104", "orders", "d"}, [3]string{"105", "orders", "e"}, [3]string{"106", "orders", "f"})
	db.exec("UPDATE outbox_dead_letters SET closed_at = clock_timestamp() WHERE event_id = 105")
	db.exec("INSERT INTO outbox_events (id, topic, payload) VALUES (106, 'orders', '{}')")

	do(t, nil, "dead", "replay", "-c", path).want(t, 2, "", "no dead letters are selected")
	do(t, nil, "dead", "replay", "-c", path, "--all", "--dry-run").want(t, 0, "p: would replay 5 dead letters\n", "")
	if n := db.count("SELECT count(*) FROM outbox_events"); n != 1 || db.open("p") != "101 102 103 104 106" {
		t.Errorf("a dry run changed something: %d events, open %s", n, db.open("p"))
	}
	r := do(t, nil, "dead", "replay", "-c", path, "--reason", "it exists now", "--id", "101,102,103", "--id", "105", "--id", "106", "--id", "999")
	r.want(t, 1, "p: replayed 3 dead letters; skipped 1: already in the buffer", "relay: 105: it was ")
	r.want(t, 1, "p: ", "relay: 106: its id is already in the buffer")
	r.want(t, 1, "p: ", "relay: 999: no dead letter has this id")
	if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE closed_as = 'replayed' AND closed_by LIKE '_%@_%' AND closed_reason = 'it exists now'"); n != 3 {
		t.Errorf("%d dead letters say who replayed them, want 3", n)
	}
	if strings.Contains(r.stderr, "101") || db.open("p") != "104 106" {
		t.Errorf("open are %s, stderr %s", db.open("p"), r.stderr)
	}
	if n := db.count("SELECT count(*) FROM outbox_batches WHERE state = 'waiting' AND due_at <= clock_timestamp()"); n != 2 {
		t.Errorf("%d batches are due, want 2 of at most two events", n)
	}
	start(t, nil, "run", "-c", path)
	arrive(t, client, 4)
	ids := map[string]int{}
	for _, entry := range client.XRange(t.Context(), "orders", "-", "+").Val() {
		ids[entry.Values["id"].(string)]++
	}
	if diff := cmp.Diff(map[string]int{"101": 1, "102": 1, "103": 1, "106": 1}, ids); diff != "" {
		t.Error(diff)
	}
}

// Of two dead letters of one event, one is replayed, and what becomes of the other is said: also by a later command, when the event is not in the buffer any more.
func TestDeadReplay_OneEventTwice(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, func(t *testing.T, db *database) {
		path := write(t, onePipeline("p", db.url, "stdout:"))
		db.bury("p", [3]string{"101", "orders", "a"}, [3]string{"101", "orders", "a"}, [3]string{"102", "orders", "b"})
		do(t, nil, "dead", "replay", "-c", path, "--all").want(t, 0, "p: replayed 2 dead letters; skipped 1: already in the buffer, or another dead letter of the event was replayed\n", "")
		r := start(t, nil, "run", "-c", path)
		testkit.Eventually(t, func() error {
			if n := db.count("SELECT count(*) FROM outbox_events"); n > 0 {
				return fmt.Errorf("%d events are left", n)
			}
			return nil
		})
		do(t, nil, "dead", "replay", "-c", path, "--id", "101").want(t, 1, "p: replayed 0 dead letters; skipped 1: already in the buffer, or another dead letter of the event was replayed\n",
			"relay: 101: another dead letter of the event was replayed since")
		do(t, nil, "dead", "discard", "-c", path, "--id", "101").want(t, 0, "p: discarded 1 dead letter\n", "")
		r.signal(syscall.SIGTERM)
		testkit.Equal(t, "exit status", r.exit(), 0)
	})
}

// Events that die again while the command goes on do not take the place of the other dead letters.
func TestDeadReplay_DieAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("p", db.url, "stdout:", "    batch_size: 2"))
	db.bury("p", [3]string{"1", "bad", "x"}, [3]string{"2", "bad", "x"}, [3]string{"3", "good", "x"}, [3]string{"4", "good", "x"}, [3]string{"5", "good", "x"})
	db.exec(`CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$ BEGIN
		DELETE FROM outbox_events WHERE id = NEW.id;
		INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at)
			VALUES ('p', NEW.id, NEW.topic, NEW.payload, NEW.created_at, gen_random_uuid(), 1, 'again', clock_timestamp() + interval '1 second');
		RETURN NULL; END $$;
		CREATE TRIGGER dies AFTER INSERT ON outbox_events FOR EACH ROW WHEN (NEW.topic = 'bad') EXECUTE FUNCTION dies()`)
	do(t, nil, "dead", "replay", "-c", path, "--all", "--yes").want(t, 0, "p: replayed 5 dead letters; 2 more died meanwhile: run it again\n", "")
	testkit.Equal(t, "open", db.open("p"), "1 2")
	testkit.Equal(t, "events", db.count("SELECT count(*) FROM outbox_events"), 3)
}

func TestDeadDiscard(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("p", db.url, "stdout:", "    batch_size: 1"))
	db.bury("p", [3]string{"1", "a", "x"}, [3]string{"2", "b", "x"}, [3]string{"3", "b", "y"})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	do(t, []string{"SUDO_USER=ann"}, "dead", "discard", "-c", path, "--error", "X", "--json", "--reason", " the tenant is gone ").want(t, 0, `"changed": 2,`, "")
	if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE closed_by = 'ann@" + host + "' AND closed_reason = 'the tenant is gone'"); n != 2 {
		t.Errorf("%d dead letters say who closed them and why, want 2", n)
	}
	if db.open("p") != "3" || db.count("SELECT count(*) FROM outbox_dead_letters") != 3 {
		t.Errorf("open are %s", db.open("p"))
	}
	do(t, nil, "dead", "discard", "-c", path, "--all", "--reason", "two\nlines").want(t, 2, "", "--reason: the reason has a line break")
	do(t, nil, "dead", "discard", "-c", path, "--all", "--reason", strings.Repeat("x", 501)).want(t, 2, "", "--reason: the reason has 501 characters; expected at most 500")
	do(t, nil, "dead", "discard", "-c", path, "--all").want(t, 0, "p: discarded 1 dead letter\n", "")
	do(t, nil, "dead", "discard", "-c", path, "--all").want(t, 0, "p: discarded 0 dead letters\n", "")
	do(t, nil, "dead", "discard", "-c", path, "--all", "--id", "1").want(t, 2, "", "--all is used together with --id")
	do(t, nil, "dead", "discard", "-c", path, "--id", "one").want(t, 2, "", `--id: id is "one"; expected a number or a uuid`)
}

// One id may identify events of two pipelines.
func TestDead_SeveralPipelines(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, "pipelines:\n"+
		"  - {name: p, source: {url: '"+db.url+"'}, sink: {url: 'stdout:'}}\n"+
		"  - {name: q, source: {url: '"+db.url+"', table: other_events}, sink: {url: 'stdout:'}}\n")
	do(t, nil, "migrate", "-c", path).want(t, 0, "q: applied", "")
	db.bury("p", [3]string{"1", "a", "x"}, [3]string{"2", "a", "x"})
	db.bury("q", [3]string{"1", "a", "x"}, [3]string{"3", "a", "x"})
	do(t, nil, "dead", "discard", "-c", path, "--id", "1").want(t, 2, "", "several pipelines have a dead letter 1; expected --pipeline p or --pipeline q")
	do(t, nil, "dead", "discard", "-c", path, "--id", "2,3").want(t, 0, "p: discarded 1 dead letter\nq: discarded 1 dead letter\n", "")
	do(t, nil, "dead", "discard", "-c", path, "--id", "1", "--pipeline", "q").want(t, 0, "q: discarded 1 dead letter\n", "")
	if db.open("p") != "1" || db.open("q") != "" {
		t.Errorf("open are %s and %s", db.open("p"), db.open("q"))
	}
	do(t, nil, "dead", "list", "-c", path, "--pipeline", "r").want(t, 2, "", `--pipeline is "r"; expected p or q`)
}

// The other pipelines are listed nevertheless.
func TestDead_DatabaseUnavailable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.bury("there", [3]string{"5", "a", "x"})
	path := write(t, "pipelines:\n"+
		"  - {name: down, source: {url: '"+unreachable+"'}, sink: {url: 'stdout:'}}\n"+
		"  - {name: there, source: {url: '"+db.url+"'}, sink: {url: 'stdout:'}}\n")
	do(t, nil, "dead", "list", "-c", path).want(t, 1, "there     5 ", "relay: down: ")
	do(t, nil, "dead", "list", "-c", path, "--json").want(t, 1, `"event_id": 5,`, "relay: down: ")
	do(t, nil, "dead", "discard", "-c", path, "--all").want(t, 1, "there: discarded 1 dead letter\n", "relay: down: ")
}

// The admin endpoint of a running relay lists and replays.
func TestDeadOverHTTP(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	db.bury("p", [3]string{"7", "orders", "a"}, [3]string{"8", "orders", "b"})
	listen := freeAddress(t)
	path := write(t, "admin: {listen: '"+listen+"', token: t0ken-s3cret}\npipelines:\n  - {name: p, source: {url: '"+db.url+"'}, sink: {url: '"+url+"'}}\n")
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline runs")
	if answer, code := get(t, "http://"+listen+"/api/dead?id=7", "t0ken-s3cret"); code != 200 || !strings.Contains(answer, `"event_id": 7,`) || strings.Contains(answer, `"event_id": 8,`) {
		t.Errorf("the response is %d %s", code, answer)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listen+"/api/dead/replay", strings.NewReader(`{"pipeline": "p", "ids": ["7"]}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer t0ken-s3cret")
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("the response is %d, %v", answer.StatusCode, err)
	}
	arrive(t, client, 1)
	if open := db.open("p"); open != "8" {
		t.Errorf("open are %s", open)
	}
}
