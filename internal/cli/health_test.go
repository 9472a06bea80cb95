package cli

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// A sink that is away is no reason to restart a relay that works.
func TestHealth(t *testing.T) {
	t.Parallel()
	at, away := freeAddress(t), freeAddress(t)
	source := "sqlite://" + t.TempDir() + "/orders.db"
	configuration := func(sink string) string {
		return write(t, strings.Replace(onePipeline("orders", source, sink), `{listen: ""}`, `{listen: "`+at+`", token: letmein}`, 1))
	}
	ready := func(with string, code int, text string) {
		t.Helper()
		testserver.Eventually(t, func() error {
			if got := do(t, nil, "health", "--ready", "-c", with); got.code != code || !strings.Contains(got.stdout+got.stderr, text) {
				return fmt.Errorf("exit status %d: %s%s; want %d: %s", got.code, got.stdout, got.stderr, code, text)
			}
			return nil
		})
	}
	working, broken := configuration(testserver.Redis(t).URL), configuration("redis://"+away)

	do(t, nil, "health", "-c", working).want(t, 1, "", "the relay does not answer at admin.listen; start it with relay run")
	if got := do(t, nil, "migrate", "-c", working); got.code != 0 {
		t.Fatal(got.stderr)
	}
	r := start(t, nil, "run", "-c", working)
	r.waitForLog("admin endpoint listening")
	do(t, nil, "health", "-c", working).want(t, 0, "ok\n", "")
	ready(working, 0, "orders: ready\n")
	r.signal(syscall.SIGTERM)
	r.exit()

	r = start(t, nil, "run", "-c", broken)
	r.waitForLog("admin endpoint listening")
	ready(broken, 1, "orders: not ready: sink: ")
	ready(broken, 1, away)
	do(t, nil, "health", "-c", broken).want(t, 0, "ok\n", "")
	r.signal(syscall.SIGTERM)
	r.exit()
}

// Each pipeline has a line, and each of several sinks: with the reason for those who have the token.
func TestHealth_Lines(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"ready": false, "pipelines": [{"name": "orders", "ready": true}, {"name": "shop", "ready": false, "class": "refusing",
			"reason": "refusing: the sink refuses\nevery event", "sinks": [{"name": "stream", "ready": true}, {"name": "crm", "ready": false, "class": "sink"}]}]}`)
	}))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	file := write(t, strings.Replace(onePipeline("orders", "postgres://app@db/app", "stdout:"), `{listen: ""}`, `{listen: "`+at+`"}`, 1))
	got := do(t, nil, "health", "--ready", "-c", file)
	const want = "orders: ready\nshop: not ready: refusing: the sink refuses every event\nshop/stream: ready\nshop/crm: not ready: sink\n"
	if got.code != 1 || got.stdout != want || got.stderr != "" {
		t.Errorf("exit status %d: %s%s; want 1: %s", got.code, got.stdout, got.stderr, want)
	}
}

// Another server has the address, and answers 101: no context ends a read of what follows.
func TestHealth_SwitchingProtocols(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	file := write(t, strings.Replace(onePipeline("orders", "postgres://app@db/app", "stdout:"), `{listen: ""}`, `{listen: "`+at+`"}`, 1))
	do(t, nil, "health", "-c", file).want(t, 1, "", "101 Switching Protocols: another program")
}

func TestHealth_NoEndpoint(t *testing.T) {
	t.Parallel()
	off := write(t, onePipeline("orders", "postgres://app@db/app", "stdout:"))
	do(t, nil, "health", "-c", off).want(t, 2, "", `admin.listen is ""; expected an address`)
}

// With admin.tls the endpoint speaks HTTPS only, to health too, and a login's cookie is for HTTPS only.
func TestHealth_TLS(t *testing.T) {
	t.Parallel()
	a := testkit.NewAuthority(t)
	cert, key := a.Issue(t, "relay.example") // not the address that health asks
	other, _ := a.Issue(t, "relay.example")
	at := freeAddress(t)
	admin := func(cert, key string) string {
		return write(t, strings.Replace(onePipeline("orders", "sqlite://"+t.TempDir()+"/orders.db", "stdout:"), `{listen: ""}`,
			`{listen: "`+at+`", token: letmein, tls: {cert: "`+cert+`", key: "`+key+`"}}`, 1))
	}
	path := admin(cert, key)
	for with, text := range map[string]string{
		admin(cert+"x", key): "admin.tls: cert cannot be read",
		admin(cert, key+"x"): "admin.tls: key cannot be read",
		admin(other, key):    "admin.tls: cert and key are not a certificate and its key",
	} {
		for _, command := range []string{"check", "run"} {
			r := do(t, nil, command, "-c", with)
			r.want(t, 2, "", with+":")
			r.want(t, 2, "", text)
		}
	}
	do(t, nil, "migrate", "-c", path).want(t, 0, "applied", "")
	r := start(t, nil, "run", "-c", path)
	r.waitForLog("admin endpoint listening")
	r.waitForLog("https://" + at)
	do(t, nil, "health", "-c", path).want(t, 0, "ok\n", "")
	do(t, nil, "health", "-c", admin(other, key)).want(t, 1, "", "another certificate than admin.tls.cert")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.Pool, ServerName: "relay.example"}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+at+"/login", strings.NewReader("token=letmein"))
	testkit.NoError(t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := client.Do(request)
	testkit.NoError(t, err)
	testkit.NoError(t, response.Body.Close())
	if cookies := response.Cookies(); len(cookies) != 1 || !cookies[0].Secure || response.ProtoMajor != 2 {
		t.Errorf("%s login answers %d, cookies %v", response.Proto, response.StatusCode, cookies)
	}
	if text, code := get(t, "http://"+at+"/livez", ""); code != http.StatusBadRequest {
		t.Errorf("plain HTTP answers %d %s", code, text)
	}
	r.signal(syscall.SIGTERM)
	r.exit()
}

// TestLocalRelay: a relay that cannot reach its database, as after a change of the password, does not report to it. On its host, status and doctor ask it.
func TestLocalRelay(t *testing.T) {
	t.Parallel()
	var answer atomic.Value
	answer.Store(`{"ready":false,"pipelines":[{"name":"orders","ready":false,"class":"database","reason":"database: the database rejects the role"}]}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, answer.Load().(string))
	}))
	t.Cleanup(server.Close)
	path := write(t, strings.Replace(onePipeline("orders", "sqlite://"+t.TempDir()+"/orders.db", "stdout:"), `{listen: ""}`, `{listen: "`+server.Listener.Addr().String()+`"}`, 1))
	do(t, nil, "migrate", "-c", path)
	const says = "does not report to the database; it says of orders: not ready: database: the database rejects the role"
	do(t, nil, "status", "-c", path).want(t, 0, says+". > restart it, because it reads secrets at its start\n", "")
	do(t, nil, "doctor", "-c", path).want(t, 1, says, "")
	for _, other := range []string{`{"pipelines":[{"name":"bills","class":"database"}]}`, `{"pipelines":[{"name":"orders","class":"sink"}]}`, "another program"} {
		answer.Store(other)
		do(t, nil, "status", "-c", path).want(t, 0, "orders: no relay runs. > relay run -c", "")
	}
}
