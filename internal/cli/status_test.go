package cli

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unreachable is a database on a port without a server.
const unreachable = "postgres://app:s3cret@127.0.0.1:1/app"

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	file := "sqlite://" + t.TempDir() + "/app.db"
	path := write(t, "pipelines:\n"+
		"  - {name: down, source: {url: \""+unreachable+"\"}, sink: {url: 'stdout:'}}\n"+
		"  - {name: old, source: {url: \""+db.url+"\"}, sink: {url: 'stdout:'}}\n"+
		"  - {name: new, source: {url: \""+file+"\"}, sink: {url: 'stdout:'}}\n")
	db.insert(3)
	first := do(t, nil, "migrate", "-c", path)
	first.want(t, 1, "old: applied trigger outbox_notify\nnew: applied 00001_", "relay: down: ")
	if strings.Count(first.stderr, "\n") != 1 {
		t.Errorf("stderr is %q, want one line", first.stderr)
	}
	do(t, nil, "migrate", "-c", path).want(t, 1, "old: up to date\nnew: up to date\n", "relay: down: ")
	if n := db.count("SELECT count(*) FROM outbox_events"); n != 3 {
		t.Errorf("%d events are left, want 3", n)
	}
}

func TestStatus_Pipeline(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:")+"  - {name: down, source: {url: \""+unreachable+"\"}, sink: {url: 'stdout:'}}\n")
	do(t, nil, "status", "-c", path, "--pipeline", "orders").want(t, 0, "orders          0 ", "")
	do(t, nil, "status", "-c", path, "--pipeline", "down").want(t, 1, "", "relay: down: ")
	do(t, nil, "status", "-c", path, "--pipeline", "order").want(t, 2, "", `--pipeline is "order"; expected orders or down`)
}

func TestStatus(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	do(t, nil, "status", "-c", path, "--json").want(t, 0, `{
  "pipelines": [
    {
      "name": "orders",
      "pending": 0,
      "oldest_pending_seconds": 0,
      "batches": {
        "leased": 0,
        "waiting": 0,
        "delivered": 0
      },
      "dead": 0,
      "state": "no relay",
      "deliveries": {
        "last_minute": 0
      },
      "relay_problems": [
        "no relay runs. > relay run -c relay.yaml"
      ]
    }
  ]
}
`, "")
	db.insert(1234)
	db.exec("UPDATE outbox_events SET created_at = clock_timestamp() - interval '2 hours 5 minutes' WHERE id = 1")
	db.exec(`INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error)
		SELECT p, i, 't', '{}', now(), gen_random_uuid(), 1, 'bad' FROM unnest('{orders,orders,other}'::text[]) WITH ORDINALITY e(p, i)`)
	db.exec(`INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at)
		SELECT gen_random_uuid(), 'public.outbox_events', 'stamp', state, 1, now() + interval '1 day', 'x', 0, 0, 0, 0, 1, 1, now()
		FROM unnest('{leased,waiting,waiting,delivered}'::text[]) state`)

	do(t, nil, "status", "-c", path).want(t, 0, `PIPELINE  PENDING  OLDEST  LEASED  WAITING  DELETING  DEAD  PER MIN  LAST  STATE
orders      1,234   2h 5m       1        2         1     2        0     -  no relay
orders: no relay runs. > relay run -c `+path+`
orders: 2 dead letters. > relay dead list -c `+path+`
`, "")
	db.exec(`INSERT INTO outbox_relays (buffer, sink, owner, version, started_at, seen_at, not_ready, not_ready_class, not_ready_at, delivered, dead, last_minute, delivered_at) VALUES
		('public.outbox_events', '', 'a/17/orders', 'v1', now() - interval '1 hour', now() - interval '10 seconds', '', '', NULL, 5000, 0, 1200, now() - interval '7 minutes 3 seconds'),
		('public.outbox_events', '', 'b/18/orders', 'v1', now() - interval '1 hour', now() - interval '10 seconds', 'sink: no route', 'sink', now() - interval '3 minutes 20 seconds', 90, 0, 34, now() - interval '2 hours'),
		('public.outbox_events', '', 'c/19/orders', 'v1', now() - interval '1 hour', now() - interval '2 hours', 'killed', 'sink', now() - interval '1 hour', 90, 0, 34, now() - interval '2 hours')`)
	do(t, nil, "status", "-c", path).want(t, 0, `PIPELINE  PENDING  OLDEST  LEASED  WAITING  DELETING  DEAD  PER MIN   LAST  STATE
orders      1,234   2h 5m       1        2         1     2    1,234  7m 3s  sending
orders: relay b/18 has not been ready for 3m 20s: sink: no route
orders: 2 dead letters. > relay dead list -c `+path+`
`, "")
	db.exec("UPDATE outbox_relays SET stopped = true, seen_at = now() - interval '5 seconds' WHERE owner <> 'c/19/orders'")
	do(t, nil, "status", "-c", path).want(t, 0, "orders: no relay runs; ", "")
	do(t, nil, "status", "-c", path).want(t, 0, " stopped ", "")
	db.exec("DELETE FROM outbox_relays")
	full := write(t, onePipeline("orders", db.url, "stdout:", "    max_waiting: 3"))
	do(t, nil, "status", "-c", full).want(t, 0, "orders: nothing more is claimed: 3 batches wait for a retry or a delete, max_waiting is 3\n", "")
	var got struct{ Pipelines []map[string]any }
	text := do(t, nil, "status", "-c", path, "--json").stdout
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if oldest := got.Pipelines[0]["oldest_pending_seconds"].(float64); oldest < 7500 || oldest > 7800 {
		t.Errorf("the oldest event is %v seconds old, want 7500", oldest)
	}
	db.exec("UPDATE outbox_batches SET unfinished_leases = 2, claimed_at = clock_timestamp() - interval '3 hours 9 minutes' WHERE state <> 'delivered'")
	do(t, nil, "status", "-c", path).want(t, 0, "orders: 2 batches are sent one at a time, with nothing else in flight, because two or more owners in a row "+
		"did not finish them; the oldest was claimed 3h 9m ago\n", "") // the leased one may still finish
	db.exec(`INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, error)
		VALUES (gen_random_uuid(), 'public.outbox_events dead letters', 'stamp', 'waiting', 1, now(), 'x', 0, 0, 1, 2, 1, 2, now(), E'503\nfrom the hook')`)
	do(t, nil, "status", "-c", path).want(t, 0, "orders: dead-letter hook: 1 batch waits (2 events), due now: 503 from the hook\n", "")
	do(t, nil, "status", "-c", path, "--json").want(t, 0, `"dead_letter_hook": {`, "")
	delete(got.Pipelines[0], "oldest_pending_seconds")
	delete(got.Pipelines[0], "relay_problems")
	if diff := cmp.Diff([]map[string]any{{
		"name": "orders", "pending": 1234.0, "dead": 2.0, "state": "no relay", "deliveries": map[string]any{"last_minute": 0.0},
		"batches": map[string]any{"leased": 1.0, "waiting": 2.0, "delivered": 1.0},
	}}, got.Pipelines); diff != "" {
		t.Error(diff)
	}
}

func TestStatus_DatabaseUnavailable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(7)
	path := write(t, "pipelines:\n"+
		"  - {name: down, source: {url: \""+unreachable+"\"}, sink: {url: 'stdout:'}}\n"+
		"  - {name: there, source: {url: \""+db.url+"\"}, sink: {url: 'stdout:'}}\n"+
		"  - {name: empty, source: {url: \"sqlite://"+t.TempDir()+"/app.db\"}, sink: {url: 'stdout:'}}\n")
	r := do(t, nil, "status", "-c", path)
	r.want(t, 1, "there           7 ", "relay: down: ")
	r.want(t, 1, "there           7 ", "relay: empty: ")
	r.want(t, 1, "there           7 ", "relay migrate -c "+path)
	if strings.Contains(r.stdout, "down") || strings.Count(r.stderr, "\n") != 2 {
		t.Errorf("stdout is %q, stderr %q", r.stdout, r.stderr)
	}
	do(t, nil, "status", "-c", path, "--json").want(t, 1, `"name": "there",`, "relay: down: ")
}

// A server that accepts the connection and never responds has an error of its own.
func TestStatus_DatabaseHangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // only the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := silent.Close(); err != nil {
			t.Error(err)
		}
	})
	path := write(t, onePipeline("a", "postgres://app:s3cret@"+silent.Addr().String()+"/app?sslmode=disable&connect_timeout=1", "stdout:"))
	for command, stdout := range map[string]string{"status": "", "migrate": ""} {
		do(t, nil, command, "-c", path).want(t, 1, stdout, "PostgreSQL at "+silent.Addr().String()+" did not answer in time")
	}
}
