package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/probe"
	"github.com/outboxrelay/relay/internal/testserver"
)

func TestVerify(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	path := write(t, onePipeline("orders", db.url, url))
	db.insert(3)
	db.bury("orders", [3]string{"900", "a", "x"})
	do(t, nil, "verify", "-c", path).want(t, 0, `PIPELINE  UNCLAIMED  LEASED  WAITING  TO DELETE  DEAD  UNNOTIFIED  CLOSED  LEDGER AND BUFFER
orders    3          0       0        0          1     -           0       agree
`, "")

	db.exec("INSERT INTO outbox_events (id, topic, payload, available_at) VALUES (800, 't', '{}', now() + interval '1 day')")
	do(t, nil, "verify", "-c", path).want(t, 0, "agree\n\norders: 1 event is delayed; UNCLAIMED counts those that are due\n", "")
	db.exec("DELETE FROM outbox_events WHERE id = 800")

	const row = `INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at)
		SELECT $1::uuid, 'public.outbox_events', 'stamp', 'waiting', 1, now() + interval '1 hour', 'x', 0, 0, 0, 7, 1, 3, now()`
	db.exec("UPDATE outbox_events SET group_id = '0198c0de-0000-7000-8000-000000000001' WHERE id IN (1, 2)")
	db.exec("UPDATE outbox_events SET group_id = '0198c0de-0000-7000-8000-000000000002' WHERE id = 3")
	db.exec(row, "0198c0de-0000-7000-8000-000000000002")
	db.exec(row, "0198c0de-0000-7000-8000-000000000003")
	r := do(t, nil, "verify", "-c", path)
	r.want(t, 1, "orders    0          0       1 (2 batches)", "")
	for _, says := range []string{
		"disagree\n", "\norders: 2 events of 1 batch have a group_id but no ledger row", "\norders: 1 ledger row without events",
		"\norders: 1 batch with another number of events than the ledger has",
	} {
		if !strings.Contains(r.stdout, says) {
			t.Errorf("the output lacks %q", says)
		}
	}
	do(t, nil, "verify", "-c", path, "--json").want(t, 1, `"agrees": false,`, "")
	do(t, nil, "verify", "-c", path, "--repair").want(t, 0,
		"\norders: repaired: added ledger rows for 2 events of 1 batch, which are due; removed 1 ledger row without events; corrected 1 event count\n", "")
	do(t, nil, "verify", "-c", path, "--json").want(t, 0, `"agrees": true,`, "")
	db.exec("UPDATE outbox_batches SET due_at = now()")
	start(t, nil, "run", "-c", path)
	arrive(t, client, 3)
	do(t, nil, "verify", "-c", write(t, onePipeline("down", unreachable, "stdout:"))).want(t, 1, "PIPELINE", "relay: down: ")
}

func TestVerify_Usage(t *testing.T) {
	t.Parallel()
	path := write(t, "pipelines:\n"+
		"  - {name: a, source: {url: '"+unreachable+"'}, sink: {url: 'stdout:'}}\n"+
		"  - {name: b, source: {url: '"+unreachable+"', table: b}, sink: {url: 'stdout:'}}\n")
	for args, says := range map[string]string{
		"--events 5": "there are several pipelines; expected --pipeline NAME", "--events 0 --pipeline a": "--events is 0", "--events 2000000 --pipeline a": "--events is 2000000",
		"--events 5 --pipeline c": `--pipeline is "c"; expected a or b`, "--events 5 --repair --pipeline a": "--repair is used together with --events",
		"--events 5 --pipeline a --timeout 0s": "--timeout is 0s",
	} {
		do(t, nil, append([]string{"verify", "-c", path}, strings.Fields(args)...)...).want(t, 2, "", says)
	}
}

// Verify audits a custom table, and inserts no probes into it.
func TestVerify_CustomTable(t *testing.T) {
	t.Parallel()
	for _, try := range initCases {
		if try.tables == "" || !strings.Contains("activities debezium odd sqlite", try.name) {
			continue
		}
		t.Run(try.name, func(t *testing.T) {
			t.Parallel()
			db := newAppDatabase(t, try.name == "sqlite")
			db.exec(try.tables)
			path := filepath.Join(t.TempDir(), "relay.yaml")
			wrote := do(t, nil, append([]string{"init", "--source", db.url, "--sink", "stdout:", "--name", "custom", "-o", path}, try.args...)...)
			wrote.want(t, 0, "Wrote ", "")
			for _, step := range steps(wrote.stdout) {
				db.exec(step)
			}
			do(t, db.env, "migrate", "-c", path).want(t, 0, "applied", "")
			db.exec(try.insert)
			do(t, db.env, "verify", "-c", path).want(t, 0, "custom    1          0       0        0          0     -           0       agree\n", "")
			do(t, db.env, "verify", "-c", path, "--events", "3").want(t, 2, "",
				"--events does not support the custom table ")
			do(t, db.env, "verify", "-c", path, "--json").want(t, 0, `"unclaimed": 1,`, "")
		})
	}
}

// probes returns the output of verify --events --json.
func probes(t *testing.T, path string, code int, args ...string) (got probe.Result) {
	t.Helper()
	r := do(t, nil, append([]string{"verify", "-c", path, "--json"}, args...)...)
	if r.code != code {
		t.Errorf("exit status %d, want %d: %s", r.code, code, r.stderr)
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%q is not JSON: %v", r.stdout, err)
	}
	return got
}

func TestVerify_ProbesToRedis(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	path := write(t, onePipeline("orders", db.url, url, "    batch_size: 100"))
	db.insert(10)
	r := do(t, nil, "verify", "-c", path, "--events", "1100", "--timeout", "300ms")
	r.want(t, 1, "orders: committed 1,100 probes with topic relay.verify, ids 11-1110 (run ", "")
	r.want(t, 1, "  unclaimed     1,100  no relay has claimed them; run relay run -c "+path+"; ids 11-1110\n", "")

	start(t, nil, "run", "-c", path)
	r = do(t, nil, "verify", "-c", path, "--events", "1200")
	r.want(t, 0, "  delivered     1,200\n  every delivered probe is in Redis stream relay.verify exactly once\n", "")
	if n := client.XLen(t.Context(), "relay.verify").Val(); n != 2300 {
		t.Errorf("%d probes arrived, want 2300", n)
	}
	_, run, _ := strings.Cut(r.stdout, "(run ")
	run, _, _ = strings.Cut(run, ")")
	n := 0
	for _, entry := range client.XRange(t.Context(), "relay.verify", "-", "+").Val() {
		var payload struct {
			Run string `json:"relay_verify"`
			N   int    `json:"n"`
		}
		if err := json.Unmarshal([]byte(entry.Values["payload"].(string)), &payload); err != nil || payload.N < 1 {
			t.Fatalf("a probe's payload is %s, %v", entry.Values["payload"], err)
		}
		if payload.Run == run {
			n++
		}
	}
	if n != 1200 {
		t.Errorf("%d probes of the run %q, want 1200", n, run)
	}
	if got := probes(t, path, 0, "--events", "3", "--topic", "other"); got.Delivered != 3 || got.Sink != "Redis stream other" {
		t.Errorf("the result is %+v", got)
	}
}

// Nobody claims the probes: verify says so, and a signal leaves none behind.
func TestVerify_ProbesAreDeletedWhenInterrupted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	lite := write(t, onePipeline("orders", "sqlite://"+file, "stdout:"))
	do(t, nil, "migrate", "-c", lite).want(t, 0, "orders: applied", "")
	db := newDatabase(t)
	db.insert(7)
	for name, c := range map[string]struct {
		path   string
		signal syscall.Signal
	}{
		"postgres": {write(t, onePipeline("orders", db.url, "stdout:")), syscall.SIGINT},
		"sqlite":   {lite, syscall.SIGHUP},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, nil, "verify", "-c", c.path, "--events", "1200")
			r.waitForLog("relay: no relay has claimed a probe for 5s; start one with relay run")
			r.signal(c.signal)
			if code := r.exit(); code != 1 {
				t.Errorf("exit status %d, want 1", code)
			}
			if text := "relay: interrupted: deleted all probes (1200); no relay had claimed any\n"; !strings.Contains(r.stderr.String(), text) {
				t.Errorf("standard error does not contain %q", text)
			}
			if out := r.stdout.String(); out != "" {
				t.Errorf("stdout is %q", out)
			}
		})
	}
	if n := db.count("SELECT count(*) FROM outbox_events"); n != 7 {
		t.Errorf("%d events are left, want the 7 of the application", n)
	}
	if got := probes(t, lite, 1, "--events", "3", "--timeout", "100ms"); len(got.Unclaimed) != 3 {
		t.Errorf("got %+v, want 3 unclaimed probes", got)
	}
}

func TestVerify_ProbesToJetStream(t *testing.T) {
	t.Parallel()
	db, server := newDatabase(t), testserver.NATS(t)
	conn, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "PROBES", Subjects: []string{"relay.>"}}); err != nil {
		t.Fatal(err)
	}
	path := write(t, onePipeline("orders", db.url, server.URL))
	start(t, nil, "run", "-c", path)
	for range 2 {
		if got := probes(t, path, 0, "--events", "1500"); got.Delivered != 1500 || got.Sink != "JetStream stream PROBES" {
			t.Errorf("the result is %+v", got)
		}
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"work.>"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	if got := probes(t, path, 0, "--events", "5", "--topic", "work.x"); got.Delivered != 5 || !strings.Contains(got.Unread, "deletes consumed messages") {
		t.Errorf("the result is %+v", got)
	}
}

// Dead and waiting probes have an error.
func TestVerify_ProbesNotDelivered(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Events []struct {
				Topic   string `json:"topic"`
				Payload struct {
					N int `json:"n"`
				} `json:"payload"`
			} `json:"events"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		for _, e := range body.Events {
			if e.Topic == "down" {
				<-time.After(2 * time.Second) // most of the time the probes are being sent
				w.WriteHeader(http.StatusServiceUnavailable)
			} else if e.Payload.N == 3 {
				w.WriteHeader(http.StatusUnprocessableEntity)
			} else {
				continue
			}
			return
		}
	}))
	t.Cleanup(api.Close)
	path := write(t, onePipeline("orders", db.url, api.URL, "    retry: {max_attempts: 1, initial: 10ms, max: 20ms}"))
	r := start(t, nil, "run", "-c", path)
	got := probes(t, path, 1, "--events", "10")
	if got.Delivered != 9 || len(got.Dead) != 1 || got.Dead[0].ID != 3 || !strings.Contains(got.Dead[0].Error, "422") || got.Unread != "this kind of sink cannot be read" {
		t.Errorf("the result is %+v", got)
	}
	do(t, nil, "verify", "-c", path, "--events", "4").want(t, 1, "  dead              1  ", "")
	got = probes(t, path, 1, "--events", "5", "--topic", "down", "--timeout", "2s")
	if got.Delivered != 0 || len(got.Waiting) != 5 { // what is being sent when the time is over is settled first
		t.Errorf("the result is %+v", got)
	}
	for _, f := range got.Waiting {
		if !strings.Contains(f.Error, "503") {
			t.Errorf("a probe is %+v", f)
		}
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

func TestVerify_ProbesFromSQLite(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := write(t, strings.Replace(onePipeline("lines", "sqlite://"+folder+"/app.db", "file://"+folder+"/out.ndjson"), "app.db\"", "app.db\", table: my_events", 1))
	do(t, nil, "verify", "-c", path, "--events", "5").want(t, 1, "", "relay migrate -c "+path)
	do(t, nil, "migrate", "-c", path).want(t, 0, "lines: applied", "")
	start(t, nil, "run", "-c", path)
	do(t, nil, "verify", "-c", path, "--events", "700").want(t, 0, "  delivered       700\n  arrivals are unknown: this kind of sink cannot be read", "")
	do(t, nil, "verify", "-c", path).want(t, 0, "agree", "")
}

func TestRanges(t *testing.T) {
	t.Parallel()
	many := make([]int64, 40)
	for i := range many {
		many[i] = int64(2 * i)
	}
	for want, ids := range map[string][]int64{
		"": nil, "1": {1}, "1-2": {1, 2}, "1-3, 5, 7-8": {1, 2, 3, 5, 7, 8},
		"0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 30 more": many,
	} {
		if diff := cmp.Diff(want, ranges(ids)); diff != "" {
			t.Error(diff)
		}
	}
}
