package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testserver"
)

// doctorOutput is the output of doctor --json.
type doctorOutput struct {
	Problems, Warnings int
	Pipelines          []struct {
		Name     string
		Findings []struct{ Level, Subject, Text, Fix string }
	}
}

// find returns the texts of the findings with a level and subject, joined.
func (d *doctorOutput) find(pipeline, level, about string) string {
	var texts []string
	for _, p := range d.Pipelines {
		for _, f := range p.Findings {
			if p.Name == pipeline && f.Level == level && f.Subject == about {
				texts = append(texts, f.Text+" > "+f.Fix)
			}
		}
	}
	return strings.Join(texts, "\n")
}

func doctorJSON(t *testing.T, path string, code int) (d doctorOutput) {
	t.Helper()
	r := do(t, nil, "doctor", "-c", path, "--json")
	if r.code != code || r.stderr != "" {
		t.Errorf("exit status %d, want %d: %s", r.code, code, r.stderr)
	}
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatalf("%q is not JSON: %v", r.stdout, err)
	}
	return d
}

func TestDoctor_OK(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	path := write(t, onePipeline("orders", db.url, url))
	r := do(t, nil, "doctor", "-c", path)
	r.want(t, 0, "  OK    claim plan        a claim uses index outbox_events_pkey\n", "")
	r.want(t, 0, "\n0 problems, ", "")
	if strings.Contains(r.stdout, "FAIL") || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("stdout is %s", r.stdout)
	}
	if d := doctorJSON(t, path, 0); d.Problems != 0 || d.find("orders", "ok", "sink") == "" {
		t.Errorf("the diagnosis is %+v", d)
	}
}

// Every problem comes with a fix and without secrets, and one pipeline does not hide the problems of another.
func TestDoctor_Problems(t *testing.T) {
	t.Parallel()
	db, bare, redisURL := newDatabase(t), testserver.Postgres(t), testserver.SharedRedis(t)
	db.exec("CREATE INDEX by_topic ON outbox_events (topic)")
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	gone := echo.URL
	echo.Close()
	path := write(t, "pipelines:\n"+
		"  - {name: orders, source: {url: '"+db.url+"'}, sink: {url: '"+redisURL+"'}, dead_letter: {hook: {url: '"+gone+"/x?key=s3cret'}}}\n"+
		"  - {name: bare, source: {url: '"+bare+"'}, sink: {url: 'stdout:'}}\n"+
		"  - {name: down, source: {url: '"+unreachable+"'}, sink: {url: 'redis://:s3cret@127.0.0.1:1'}}\n")
	d := doctorJSON(t, path, 1)
	for _, want := range []struct{ pipeline, level, about, says string }{
		{"orders", "ok", "tables", ""},
		{"orders", "warning", "indexes", "> DROP INDEX public.by_topic"},
		{"orders", "ok", "sink", "is reachable"},
		{"orders", "error", "dead_letter.hook", "connection refused"},
		{"bare", "error", "tables", "table outbox_events does not exist"},
		{"bare", "error", "tables", "> relay migrate -c " + path},
		{"bare", "ok", "sink", "stdout:"},
		{"down", "error", "server", "cannot reach PostgreSQL at 127.0.0.1:1"},
		{"down", "error", "sink", "> start it"},
	} {
		if got := d.find(want.pipeline, want.level, want.about); got == "" || !strings.Contains(got, want.says) {
			t.Errorf("%s, %s (%s) is %q, want %q", want.pipeline, want.about, want.level, got, want.says)
		}
	}
	r := do(t, nil, "doctor", "-c", path)
	r.want(t, 1, "> DROP INDEX public.by_topic\n", "")
	r.want(t, 1, "  FAIL  tables", "")
	if d.Problems < 7 || !strings.Contains(r.stdout, "problems, ") {
		t.Errorf("%d problems: %s", d.Problems, r.stdout)
	}
}

// The warning for a short duplicate window has both durations and the command.
func TestDoctor_Warnings(t *testing.T) {
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
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Duplicates: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	path := write(t, onePipeline("orders", db.url, server.URL+"\", subject: \"orders", "    lease: 20s", "    retry: {max: 40s}"))
	got := doctorJSON(t, path, 0)
	// five leases + the time of a send
	if text := got.find("orders", "warning", "sink"); !strings.Contains(text, "10s") || !strings.Contains(text, "2m10s") || !strings.Contains(text, "nats stream edit ORDERS") {
		t.Errorf("the diagnosis is %+v", got)
	}
	if text := got.find("orders", "ok", "sink"); !strings.Contains(text, "stream ORDERS has one replica") {
		t.Errorf("the diagnosis is %+v", got)
	}
}

// Doctor says what a Redis may lose of what it acknowledged.
func TestDoctor_RedisPersistence(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	nothing, second := testserver.Redis(t, "--appendonly", "no", "--save", ""), testserver.Redis(t, "--appendfsync", "everysec")
	got := doctorJSON(t, write(t, onePipeline("orders", db.url, nothing.URL)), 0)
	if text := got.find("orders", "warning", "sink"); !strings.Contains(text, "keeps nothing on disk") {
		t.Errorf("the diagnosis is %+v", got)
	}
	got = doctorJSON(t, write(t, onePipeline("orders", db.url, second.URL)), 0)
	if text := got.find("orders", "ok", "sink"); !strings.Contains(text, "appendfsync everysec") || got.Warnings != 0 {
		t.Errorf("the diagnosis is %+v", got)
	}
}

// Missing privileges come with the GRANT statement.
func TestDoctor_MissingPrivileges(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	u, err := url.Parse(db.url)
	if err != nil {
		t.Fatal(err)
	}
	role := "poor_" + strings.ToLower(strings.TrimPrefix(u.Path, "/"))
	db.exec("CREATE ROLE " + role + " LOGIN PASSWORD 's3cret'")
	defer db.exec("DROP ROLE " + role)
	u.User = url.UserPassword(role, "s3cret")
	d := doctorJSON(t, write(t, onePipeline("orders", u.String(), "stdout:")), 1)
	if got := d.find("orders", "error", "tables"); !strings.Contains(got, "> GRANT SELECT, INSERT, UPDATE, DELETE ON public.outbox_events TO") {
		t.Errorf("the diagnosis is %+v", d)
	}
	db.exec("ALTER ROLE " + role + " CONNECTION LIMIT 0")
	d = doctorJSON(t, write(t, onePipeline("orders", u.String(), "stdout:")), 1)
	if got := d.find("orders", "error", "server"); !strings.Contains(got, "SQLSTATE 53300") || !strings.Contains(got, "> all connections are in use") || strings.Contains(got, "start the server") {
		t.Errorf("without a connection the diagnosis is %+v", d)
	}
}

// Doctor changes no event and no ledger row, and creates no file.
func TestDoctor_ChangesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(5)
	doctorJSON(t, write(t, onePipeline("orders", db.url, "stdout:")), 0)
	if n := db.count("SELECT count(*) FROM outbox_events WHERE group_id IS NULL"); n != 5 {
		t.Errorf("%d events are unclaimed", n)
	}
	if n := db.count("SELECT count(*) FROM outbox_batches"); n != 0 {
		t.Errorf("%d batches exist", n)
	}
}

// What is printed once is counted once.
func TestDoctor_SharedProblem(t *testing.T) {
	t.Parallel()
	path := write(t, fmt.Sprintf(`
pipelines:
  - {name: orders, source: {url: %[1]q}, sink: {url: "stdout:"}}
  - {name: refunds, source: {url: %[1]q, table: refund_events}, sink: {url: "stdout:"}}
`, unreachable))
	r := do(t, nil, "doctor", "-c", path)
	if r.code != 1 || strings.Count(r.stdout, "FAIL") != 1 || !strings.Contains(r.stdout, "\n1 problem, ") {
		t.Errorf("the diagnosis is\n%s", r.stdout)
	}
}

// A sink that answers requests, but refuses every event, is found by what the relay that runs says.
func TestDoctor_Refusing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var accepts atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !accepts.Load() {
			http.Error(w, "unknown tenant", http.StatusBadRequest)
		}
	}))
	defer api.Close()
	path := write(t, onePipeline("orders", db.url, api.URL, "    retry: {initial: 10ms, max: 100ms, max_attempts: 100000}"))
	db.insert(3)
	before := doctorJSON(t, path, 0)
	if got := before.find("orders", "ok", "relays"); got != "none runs > " {
		t.Errorf("without a relay: %q", got)
	}
	r := start(t, nil, "run", "-c", path)
	doctor := func(level, says string) {
		t.Helper()
		testserver.Eventually(t, func() error {
			var d doctorOutput
			out := do(t, nil, "doctor", "-c", path, "--json")
			if err := json.Unmarshal([]byte(out.stdout), &d); err != nil {
				return err
			}
			if got := d.find("orders", level, "relays"); !strings.Contains(got, says) || (out.code == 1) != (level == "error") {
				return fmt.Errorf("exit status %d, the diagnosis is %+v", out.code, d)
			}
			return nil
		})
	}
	doctor("error", "unknown tenant")
	doctor("error", "relay preview -c "+path)
	doctor("error", "with --events-file FILE those of events that wait")
	accepts.Store(true)
	doctor("ok", "all that run are ready")
	r.signal(syscall.SIGTERM)
	r.exit()
}

// One event that is refused in a pipeline that has no other says nothing about others.
func TestStatus_OneRefusedEvent(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "email is not an address", http.StatusBadRequest)
	}))
	defer api.Close()
	path := write(t, onePipeline("orders", db.url, api.URL, "    retry: {initial: 10ms, max: 100ms, max_attempts: 100000}"))
	db.insert(1)
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("sink refuses event 1 and has accepted no other since")
	testserver.Eventually(t, func() error {
		out := do(t, nil, "status", "-c", path).stdout
		if !strings.Contains(out, "the sink refuses event 1 and has accepted no other since") || !strings.Contains(out, "email is not an address") || strings.Contains(out, "every event") {
			return fmt.Errorf("status prints\n%s", out)
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	r.exit()
	if strings.Contains(r.stderr.String(), "refuses every event") {
		t.Errorf("the log is\n%s", r.stderr.String())
	}
}

// A Redis that is out of memory answers, but takes no event.
func TestDoctor_RedisMemory(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	full := testserver.Redis(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	got := doctorJSON(t, write(t, onePipeline("orders", db.url, full.URL)), 1)
	if text := got.find("orders", "error", "sink"); !strings.Contains(text, "is out of memory and refuses events") || got.Problems != 1 {
		t.Errorf("the diagnosis is %+v", got)
	}
}

// What pipelines of one database have in common stands once; --quiet shows what is not OK.
func TestDoctor_People(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := write(t, fmt.Sprintf(`
pipelines:
  - {name: orders, source: {url: %[1]q}, sink: {url: "stdout:"}}
  - {name: refunds, source: {url: %[1]q, table: refund_events}, sink: {url: "redis://127.0.0.1:1/0"}}
`, db.url))
	do(t, nil, "migrate", "-c", path).want(t, 0, "refunds: applied", "")
	r := do(t, nil, "doctor", "-c", path)
	if !strings.Contains(r.stdout, ": orders, refunds\n  OK    server") || strings.Count(r.stdout, ", takes writes") != 1 || strings.Count(r.stdout, "is reachable") != 1 {
		t.Errorf("the diagnosis is\n%s", r.stdout)
	}
	r = do(t, nil, "doctor", "-c", path, "--quiet", "--pipeline", "orders")
	if r.code != 0 || r.stdout != "" {
		t.Errorf("the diagnosis of one pipeline is\n%s", r.stdout)
	}
	do(t, nil, "doctor", "-c", path, "--pipeline", "invoices").want(t, 2, "", `--pipeline is "invoices"; expected orders or refunds`)
	r = do(t, nil, "doctor", "-c", path, "--quiet")
	if r.code != 1 || strings.Contains(r.stdout, "OK ") || !strings.Contains(r.stdout, "FAIL  sink") || strings.Contains(r.stdout, "orders:") || !strings.Contains(r.stdout, "1 problem, ") {
		t.Errorf("the quiet diagnosis is\n%s", r.stdout)
	}
}
