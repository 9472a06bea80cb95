package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxrelay/relay/internal/testserver"
)

const rowsLeft = "SELECT (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM outbox_batches)"

func TestRun_Redis(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	db.insert(2500)
	r := start(t, nil, "run", "-c", write(t, onePipeline("orders", db.url, url)))
	arrive(t, client, 2500)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if n := db.count(rowsLeft); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if r.stdout.String() != "" {
		t.Errorf("stdout is %q", r.stdout.String())
	}
	r.waitForLog("pipeline=orders source=postgres://***@127.0.0.1:")
}

func connect(t *testing.T, url string) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// arrive waits until the stream "orders" has n events.
func arrive(t *testing.T, c *redis.Client, n int64) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if got := c.XLen(t.Context(), "orders").Val(); got != n {
			return fmt.Errorf("%d events arrived, want %d", got, n)
		}
		return nil
	})
}

// Logs go to standard error, as JSON if configured. Standard output belongs to the sink.
func TestRun_Stdout(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(3)
	r := start(t, nil, "run", "-c", write(t, "log: {format: json, level: debug}\n"+onePipeline("orders", db.url, "stdout:")))
	testserver.Eventually(t, func() error {
		if n := db.count(rowsLeft); n != 0 {
			return fmt.Errorf("%d rows are left", n)
		}
		return nil
	})
	r.signal(syscall.SIGINT)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	want := `{"id":"1","topic":"orders","key":"k1","payload":{"n": 1},"created_at":"`
	if out := r.stdout.String(); !strings.HasPrefix(out, want) || strings.Count(out, "\n") != 3 {
		t.Errorf("stdout is %q", out)
	}
	for line := range strings.Lines(r.stderr.String()) {
		var entry struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Msg == "" || entry.Level == "" {
			t.Errorf("%q is not a JSON log entry: %v", line, err)
		}
	}
}

// On a signal during a drain, claimed batches are sent and settled: none stays leased, and no event arrives twice.
func TestRun_SignalDuringDrain(t *testing.T) {
	t.Parallel()
	const events = 30_000
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	db.insert(events)
	path := write(t, onePipeline("orders", db.url, url, "    batch_size: 50"))
	r := start(t, nil, "run", "-c", path)
	testserver.Eventually(t, func() error {
		if client.XLen(t.Context(), "orders").Val() == 0 {
			return fmt.Errorf("no event arrived")
		}
		return nil
	})
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	arrived, left := client.XLen(t.Context(), "orders").Val(), db.count("SELECT count(*) FROM outbox_events")
	if left == 0 || arrived+int64(left) != events {
		t.Errorf("%d arrived and %d are left of %d", arrived, left, events)
	}
	if n := db.count("SELECT count(*) FROM outbox_batches"); n != 0 {
		t.Errorf("%d batches are left", n)
	}
	start(t, nil, "run", "-c", path)
	arrive(t, client, events)
}

// stuck is an HTTP server that never responds.
func stuck(t *testing.T) (url string, asked <-chan struct{}) {
	t.Helper()
	requests, end := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Log(err)
		}
		requests <- struct{}{}
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(end); server.Close() })
	return server.URL, requests
}

func received(t *testing.T, asked <-chan struct{}) {
	t.Helper()
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was sent")
	}
}

// A closed terminal ends the relay as SIGTERM does, unless nohup is in between.
func TestRun_HangUp(t *testing.T) {
	t.Parallel()
	db, url := newDatabase(t), testserver.SharedRedis(t)
	client := connect(t, url)
	path := write(t, onePipeline("orders", db.url, url))
	db.insert(1)
	r := start(t, nil, "run", "-c", path)
	arrive(t, client, 1)
	r.signal(syscall.SIGHUP)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
	if n := db.count(rowsLeft); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if text := "received a signal (hangup)"; !strings.Contains(r.stderr.String(), text) {
		t.Errorf("the log does not contain %q", text)
	}

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r = startProgram(t, nil, "nohup", self, "run", "-c", path)
	r.waitForLog("pipeline runs")
	r.signal(syscall.SIGHUP)
	db.insert(1)
	arrive(t, client, 2)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d, want 0", code)
	}
	if text := "received a signal (terminated)"; !strings.Contains(r.stderr.String(), text) {
		t.Errorf("the log does not contain %q", text)
	}
}

func TestRun_SecondSignal(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	url, asked := stuck(t)
	db.insert(1)
	r := start(t, nil, "run", "-c", write(t, "shutdown_timeout: 1h\n"+onePipeline("orders", db.url, url)))
	received(t, asked)
	r.signal(syscall.SIGTERM)
	r.waitForLog("finishing batches in flight")
	began := time.Now()
	r.signal(syscall.SIGINT)
	if code := r.exit(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if took := time.Since(began); took > 10*time.Second { // the request has 30 s
		t.Errorf("it took %v", took)
	}
	if text := `level=ERROR msg="second signal, exiting at once; unsettled batches are taken over when their leases end" signal=interrupt`; !strings.Contains(r.stderr.String(), text) {
		t.Errorf("the log does not contain %q", text)
	}
}

func TestRun_ShutdownTimeout(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	url, asked := stuck(t)
	db.insert(1)
	r := start(t, nil, "run", "-c", write(t, "shutdown_timeout: 50ms\n"+onePipeline("orders", db.url, url)))
	received(t, asked)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	r.waitForLog("relay: shutdown did not finish within shutdown_timeout (50ms)")
	if n := db.count("SELECT count(*) FROM outbox_events"); n != 1 {
		t.Errorf("%d events are left, want 1", n)
	}
	if n := db.count("SELECT count(*) FROM outbox_batches WHERE attempts > 0"); n != 0 {
		t.Error("the interrupted send counts as an attempt")
	}
}

// Pipelines that wait for a database, a table or a sink do not block the one that works, and /readyz has the reason of
// each.
func TestRun_PipelinesAreIndependent(t *testing.T) {
	t.Parallel()
	db, bare, url := newDatabase(t), testserver.Postgres(t), testserver.SharedRedis(t)
	client := connect(t, url)
	db.insert(10)
	listen := freeAddress(t)
	path := write(t, "admin: {listen: '"+listen+"', token: t0ken-s3cret}\npipelines:\n"+
		"  - {name: down, source: {url: '"+unreachable+"'}, sink: {url: 'stdout:'}}\n"+
		"  - {name: bare, source: {url: '"+bare+"'}, sink: {url: 'stdout:'}}\n"+
		"  - {name: wait, source: {url: '"+db.url+"', table: other_events}, sink: {url: 'redis://:s3cret@127.0.0.1:1'}}\n"+
		"  - {name: orders, source: {url: '"+db.url+"'}, sink: {url: '"+url+"'}}\n")
	do(t, nil, "migrate", "-c", write(t, "pipelines:\n  - {name: wait, source: {url: '"+db.url+"', table: other_events}, sink: {url: 'stdout:'}}\n")).
		want(t, 0, "wait: applied", "")

	r := start(t, nil, "run", "-c", path)
	arrive(t, client, 10)
	r.waitForLog("waiting for the sink\" pipeline=wait")
	r.waitForLog("waiting for the database\" pipeline=down")
	r.waitForLog("relay migrate -c " + path)

	answer, code := get(t, "http://"+listen+"/readyz", "t0ken-s3cret")
	var readiness struct {
		Ready     bool
		Pipelines []struct {
			Name   string
			Ready  bool
			Class  string
			Reason string
		}
	}
	if err := json.Unmarshal([]byte(answer), &readiness); err != nil || code != 503 || readiness.Ready {
		t.Errorf("/readyz responds %d %s, %v", code, answer, err)
	}
	for i, want := range []struct {
		name, class, reason string
	}{{"down", "database", "database: "}, {"bare", "database", "relay migrate -c relay.yaml"}, {"wait", "sink", "sink: "}, {"orders", "", ""}} {
		p := readiness.Pipelines[i]
		if p.Name != want.name || p.Ready != (want.class == "") || p.Class != want.class || !strings.Contains(p.Reason, want.reason) {
			t.Errorf("readiness of %s is %+v", want.name, p)
		}
	}

	if answer, _ = get(t, "http://"+listen+"/readyz", ""); strings.Contains(answer, "127.0.0.1") || !strings.Contains(answer, `"class": "sink"`) {
		t.Errorf("without the token /readyz responds %s", answer)
	}

	// Once the tables exist, the pipeline continues.
	do(t, nil, "migrate", "-c", path).want(t, 1, "bare: applied", "relay: down: ")
	r.waitForLog("connected to database\" pipeline=bare")

	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if answer, code = get(t, "http://"+listen+path, ""); code == http.StatusUnauthorized || strings.Contains(answer, "s3cret") {
			t.Errorf("%s responds %d %s", path, code, answer)
		}
	}
	if _, code = get(t, "http://"+listen+"/api/status", ""); code != http.StatusUnauthorized {
		t.Errorf("without the token /api/status responds %d", code)
	}
	answer, code = get(t, "http://"+listen+"/api/status", "t0ken-s3cret")
	if code != 503 || !strings.Contains(answer, `"name": "orders",`) || strings.Contains(answer, "s3cret") {
		t.Errorf("with the token /api/status responds %d %s", code, answer)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// get sends a request with a token and returns the response.
func get(t *testing.T, url, token string) (string, int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return string(body), response.StatusCode
}

// freeAddress is an unused address.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRun_AdminPortInUse(t *testing.T) {
	t.Parallel()
	l := listen(t)
	defer l.Close()
	path := write(t, "admin: {listen: '"+l.Addr().String()+"'}\npipelines:\n"+
		"  - {name: p, source: {url: '"+unreachable+"'}, sink: {url: 'stdout:'}}\n")
	do(t, nil, "run", "-c", path).want(t, 1, "", "relay: admin.listen is "+l.Addr().String()+", which is in use")
}

// No secret appears if a server echoes the request in its error.
func TestRun_ServerEchoesSecret(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		if _, err := fmt.Fprintf(w, "I was sent %q and %s", r.Header, r.URL.RequestURI()); err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(server.Close)
	path := write(t, strings.Replace(onePipeline("echo", db.url, server.URL+"/hook?key=${KEY}"),
		"?key=${KEY}\"}", "?key=${KEY}\", headers: {X-Api-Key: \"${KEY}\", Authorization: \"Bearer b-${KEY}\"}}", 1))
	r := start(t, []string{"KEY=planted/s3cret"}, "run", "-c", path)
	r.waitForLog("delivery failed, will retry")
	r.waitForLog("500")
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	for _, form := range []string{"planted", "s3cret"} {
		if strings.Contains(r.stderr.String(), form) {
			t.Errorf("the log contains %q", form)
		}
	}
}

// What check warns of is in the log of run, which may be all that somebody sees after an edit.
func TestRun_ConfigurationWarnings(t *testing.T) {
	t.Parallel()
	path := write(t, "admin: {listen: ''}\npipelines:\n- name: p\n  source: {url: '"+unreachable+"'}\n"+
		"  sink: {url: 'http://127.0.0.1:1/', request: '[.events[].paylod]', results: '[.bodi[]?]'}\n- {name: q, source: {url: '"+unreachable+"', table: others}, sink: {url: 'stdout:'}}\n")
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("pipeline started")
	var warnings []string
	for line := range strings.Lines(r.stderr.String()) {
		if strings.Contains(line, "configuration: ") {
			warnings = append(warnings, line)
		}
	}
	if len(warnings) != 2 {
		t.Fatalf("%d lines are about the configuration: %q", len(warnings), warnings)
	}
	for i, want := range []string{"sink.request reads .paylod of an event, which has no such member: it is null (did you mean .payload?)", "sink.results reads .bodi of the answer, which has no such member: it is null (did you mean .body?)"} {
		if line := warnings[i]; !strings.Contains(line, "level=WARN") || !strings.Contains(line, path+":5:15: "+want) || !strings.Contains(line, "pipeline=p fix=\"expected ") {
			t.Errorf("got %s; want %s", line, want)
		}
	}
}

// A rejected password does not appear in the log, which names the server.
func TestRun_WrongPassword(t *testing.T) {
	t.Parallel()
	db, server := newDatabase(t), testserver.Redis(t, "--requirepass", "s3cret-right")
	wrong, err := url.Parse(db.url)
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword(wrong.User.Username(), "s3cret-wrong")
	r := start(t, nil, "run", "-c", write(t, "admin: {listen: ''}\npipelines:\n"+
		"  - {name: a, source: {url: '"+wrong.String()+"', table: other}, sink: {url: 'stdout:'}}\n"+
		"  - {name: b, source: {url: '"+db.url+"'}, sink: {url: 'redis://:s3cret-wrong@"+server.Addr+"'}}\n"))
	r.waitForLog("user and password in source.url")
	r.waitForLog("WRONGPASS")
}
