package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// withAPI is a configuration with a Redis stream and an API that is not there.
func withAPI(db *database, to destination, more ...string) string {
	return fmt.Sprintf(`
admin: {listen: ""}
pipelines:
  - name: orders
    source: {url: %q}
    batch_size: 50
    lease: 1s
    sinks:
      - {name: redis, url: %q}
%s`, db.url, to.url, strings.Join(more, "\n"))
}

const deadAPI = `      - {name: api, url: "http://127.0.0.1:9/batch"}`

// A sink is listed, dropped and restored. The relay that runs meanwhile ends what waits for it.
func TestSinks(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, listsAndDrops)
}

func listsAndDrops(t *testing.T, db *database) {
	t.Helper()
	redis := redisStream(t)
	path := write(t, withAPI(db, redis, deadAPI))
	do(t, nil, "sinks", "list", "-c", path).want(t, 0, "no sinks are registered", "")
	do(t, nil, "sinks", "fill", "api", "--since", "1h", "-c", path).want(t, 2, "", "sink api is in "+path+", but no relay has registered it; start a relay with it first")
	db.insert(120)
	r := start(t, nil, "run", "-c", path)
	waitFor := func(what string, n int, sql string) {
		t.Helper()
		testserver.Eventually(t, func() error {
			if got := db.count(sql); got != n {
				return fmt.Errorf("%s: %d, want %d", what, got, n)
			}
			return nil
		})
	}
	waitFor("events that wait for the API alone", 0, "SELECT count(*) FROM outbox_batches WHERE sink <> 'api'")
	waitFor("events", 120, "SELECT coalesce(sum(events), 0) FROM outbox_batches WHERE sink = 'api'")

	do(t, nil, "sinks", "list", "-c", path).want(t, 0, "PIPELINE  SINK   BATCHES  EVENTS  SERVED  DROPPED  MATCH\norders    api    3        120     now     -        #\n", "")
	listed := do(t, nil, "sinks", "list", "-c", path, "--json")
	var sinks []map[string]any
	if err := json.Unmarshal([]byte(listed.stdout), &sinks); err != nil || len(sinks) != 2 || sinks[0]["name"] != "api" || sinks[0]["events"] != 120.0 || sinks[0]["dropped_at"] != nil {
		t.Errorf("listed %v, %v", sinks, err)
	}
	do(t, nil, "sinks", "drop", "-c", path).want(t, 2, "", "0 names are given; expected that of one sink: relay sinks drop crm")
	do(t, nil, "sinks", "drop", "apo", "-c", path).want(t, 2, "", `no sink is "apo"; expected api or redis`)
	do(t, nil, "sinks", "drop", "api", "--pipeline", "order", "-c", path).want(t, 2, "", `--pipeline is "order"; expected orders`)
	do(t, nil, "sinks", "restore", "api", "-c", path).want(t, 1, "", "sink api of orders is not dropped")
	do(t, nil, "sinks", "drop", "api", "-c", path).want(t, 0, "orders: dropped sink api", "")
	waitFor("rows", 0, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)")
	do(t, nil, "sinks", "drop", "api", "-c", path).want(t, 0, "orders: sink api was dropped before\norders: remove sink api from ", "")
	db.insert(5)
	waitFor("rows", 0, "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)")
	do(t, nil, "status", "-c", path).want(t, 0, "orders: sink api: is configured, and was dropped on ", "")
	if d := do(t, nil, "doctor", "-c", path); !strings.Contains(d.stdout, "relay sinks restore api -c "+path) {
		t.Errorf("doctor prints %s", d.stdout)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
	r = start(t, nil, "run", "-c", path)
	r.waitForLog("level=ERROR msg=\"sink api: is configured, and was dropped on ")
	do(t, nil, "sinks", "restore", "api", "-c", path).want(t, 0, "orders: restored sink api\n", "")
	db.insert(1)
	waitFor("events", 1, "SELECT coalesce(sum(events), 0) FROM outbox_batches WHERE sink = 'api'")
	do(t, nil, "sinks", "drop", "api", "--dead", "-c", path).want(t, 0, "orders: dropped sink api", "")
	waitFor("dead letters", 1, "SELECT count(*) FROM outbox_dead_letters WHERE sink = 'api' AND closed_at IS NULL")
	skipped := " 0 dead letters; skipped 1: sink api is dropped > relay sinks restore api -c " + path + "\n"
	do(t, nil, "dead", "replay", "--all", "--dry-run", "-c", path).want(t, 0, "orders: would replay"+skipped, "")
	do(t, nil, "dead", "replay", "--all", "-c", path).want(t, 0, "orders: replayed"+skipped, "")
	id := fmt.Sprint(db.count("SELECT event_id FROM outbox_dead_letters"))
	do(t, nil, "dead", "replay", "--id", id, "--dry-run", "-c", path).want(t, 1, "orders: would replay"+skipped, id+": sink api is dropped")
	do(t, nil, "sinks", "restore", "api", "-c", path).want(t, 0,
		"orders: restored sink api\norders: 1 dead letter of api can be replayed now > relay dead replay --sink api -c "+path+"\n", "")
	do(t, nil, "dead", "replay", "--sink", "api", "--dry-run", "-c", path).want(t, 0, "orders: would replay 1 dead letter\n", "")
	if n := redis.count(t.Context()); n != 126 {
		t.Errorf("%d events arrived at the other sink, want 126", n)
	}
}

// A single sink becomes one of several. What waits for it waits on, and is said to, until an entry says was: default. Then the sink is renamed,
// and events that no sink takes are kept.
func TestSinks_Was(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, takesOver)
}

func takesOver(t *testing.T, db *database) {
	t.Helper()
	redis := redisStream(t)
	stop := func(r *relay) {
		t.Helper()
		r.signal(syscall.SIGTERM)
		if code := r.exit(); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
	arrived := func(n int) {
		t.Helper()
		testserver.Eventually(t, func() error {
			if got := redis.count(t.Context()); got != n {
				return fmt.Errorf("%d events arrived, want %d", got, n)
			}
			return nil
		})
	}
	db.insert(30)
	url, _ := api(t)
	r := start(t, nil, "run", "-c", write(t, onePipeline("orders", db.url, url)))
	testserver.Eventually(t, func() error {
		if db.count("SELECT count(*) FROM outbox_batches WHERE state = 'waiting'") == 0 {
			return errors.New("nothing waits")
		}
		return nil
	})
	stop(r)
	without := write(t, withAPI(db, redis))
	r = start(t, nil, "run", "-c", without)
	r.waitForLog("sink default: ")
	db.insert(1)
	arrived(1)
	do(t, nil, "status", "-c", without).want(t, 0, "of 30 events from when the pipeline had a single sink wait, and no sink takes them. add was: default", "")
	stop(r)
	with := func(line string) string { return strings.Replace(withAPI(db, redis), "name: redis,", line, 1) }
	r = start(t, nil, "run", "-c", write(t, with("name: redis, was: default,")))
	arrived(31)
	stop(r)
	r = start(t, nil, "run", "-c", write(t, with("name: stream, was: redis, match: [orders],")+"    unmatched: keep\n"))
	db.insert(1)
	db.exec("INSERT INTO outbox_events (topic, payload) VALUES ('x', '{}')")
	arrived(32)
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_batches WHERE sink = '*' AND due_at > '9999-01-01'"); n != 1 {
			return fmt.Errorf("%d batches wait for a sink", n)
		}
		return nil
	})
	for _, command := range []string{"status", "verify"} {
		if got := do(t, nil, command, "-c", without); got.code != 0 {
			t.Errorf("%s exits with %d: %s%s", command, got.code, got.stdout, got.stderr)
		}
	}
	do(t, nil, "status", "-c", write(t, onePipeline("orders", db.url, "stdout:"))).want(t, 0, "orders", "")
	stop(r)
	if n := db.count("SELECT count(*) FROM outbox_events"); n != 1 {
		t.Errorf("%d events are left, want the one that no sink takes", n)
	}
}

// The list says since when no relay serves a sink: a relay notes every minute that it does.
func TestSinks_Served(t *testing.T) {
	t.Parallel()
	seen := time.Date(2026, 11, 23, 22, 14, 5, 0, time.UTC)
	r := registry{relays: []buffer.Relay{{Sink: "crm", Seen: 9 * time.Second}, {Sink: "old", Seen: 1300 * time.Millisecond, RelayReport: buffer.RelayReport{Stopped: true}}, {Sink: "killed", Seen: time.Minute}}}
	for want, s := range map[string]buffer.RegisteredSink{
		"never": {}, "now": {Name: "crm", SeenAt: seen, Unseen: 55 * time.Second}, "1.3s ago": {Name: "old", SeenAt: seen, Unseen: 85 * time.Second},
		"12s ago": {Name: "crm", SeenAt: seen, Unseen: 12 * time.Second, DroppedAt: seen}, "59s ago": {Name: "killed", SeenAt: seen, Unseen: 59 * time.Second},
		"2026-11-23 22:14:05": {Name: "redis", SeenAt: seen, Unseen: 3 * time.Minute},
	} {
		if got := r.served(&s); got != want {
			t.Errorf("seen %v ago is %q, want %q", s.Unseen, got, want)
		}
	}
}

// A pipeline with a single sink has no registry.
func TestSinks_Single(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, onePipeline("orders", db.url, "stdout:"))
	do(t, nil, "sinks", "list", "-c", path, "--json").want(t, 0, "[]\n", "")
	do(t, nil, "sinks", "drop", "crm", "-c", path).want(t, 2, "", `no sink is "crm"; no pipeline has several sinks`)
	do(t, nil, "sinks", "list", "-c", write(t, onePipeline("down", unreachable, "stdout:"))).want(t, 1, "", "relay: down: ")
}

// A drop is killed again and again. What it has not ended is ended by the next one, and by the relay; the other sink gets every
// event once.
func TestKill9_SinksDrop(t *testing.T) {
	t.Parallel()
	forEachDatabase(t, killDrops)
}

func killDrops(t *testing.T, db *database) {
	t.Helper()
	redis := redisStream(t)
	path := write(t, withAPI(db, redis, deadAPI))
	const events = 20_000
	db.insert(events)
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if n := redis.count(t.Context()); n < events/2 {
			return fmt.Errorf("%d events arrived", n)
		}
		return nil
	})
	r.signal(os.Kill)
	r.exit()
	for range 4 {
		before := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'api'")
		drop := start(t, nil, "sinks", "drop", "api", "--yes", "-c", path)
		testserver.Eventually(t, func() error {
			if n := db.count("SELECT count(*) FROM outbox_batches WHERE sink = 'api'"); n > max(0, before-10) {
				return fmt.Errorf("%d batches are left", n)
			}
			return nil
		})
		drop.signal(os.Kill)
		drop.exit()
	}
	db.exec("UPDATE outbox_batches SET due_at = claimed_at WHERE state = 'leased'") // as if the leases of the killed were over
	finish(t, db, redis, write(t, withAPI(db, redis)), events)
}
