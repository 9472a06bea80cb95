package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

// TestSecrets_EveryPosition puts a secret into every position of a configuration, has a server repeat all of it, and
// looks for the secrets in everything that the relay writes.
func TestSecrets_EveryPosition(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(2)
	var mu sync.Mutex
	var hook strings.Builder
	// The server says in many ways what it was sent.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Log(err)
		}
		if strings.HasPrefix(r.URL.Path, "/hook") {
			mu.Lock()
			defer mu.Unlock()
			hook.Write(body)
			return
		}
		user, password, _ := r.BasicAuth()
		text := fmt.Sprintf("%s %s %s %s %v %q %s", r.URL.RequestURI(), r.URL.Path, user, password, r.Header, r.Header, body)
		w.WriteHeader(http.StatusBadRequest)
		if _, err := fmt.Fprint(w, text, strconv.Quote(text), url.QueryEscape(text), url.PathEscape(text), strings.ReplaceAll(text, "/", `\/`)); err != nil {
			t.Log(err)
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")

	var env, secrets []string
	secret := func(name, value string) string {
		env, secrets = append(env, name+"="+value), append(secrets, value)
		return "${" + name + "}"
	}
	yaml := "admin: {listen: '127.0.0.1:0', token: '" + secret("ADMIN", "pl4nted/admin+token") + "'}\n" +
		"log: {level: debug}\n" +
		"pipelines:\n- name: first\n" +
		"  source: {url: '" + db.url + "'}\n" +
		"  retry: {max_attempts: 1}\n" +
		"  sink:\n" +
		"    url: 'http://bob:" + secret("PASSWORD", "pl4nted:pass word") + "@" + host + "/in/" + secret("SEGMENT", "pl4nted segment/x") +
		"/quietpl4ntedlowercase?sig=" + secret("QUERY", "pl4nted&query=") + "'\n" +
		"    headers: {X-Key: '" + secret("HEADER", `pl4nted"header\`) + "', User-Agent: '" + secret("AGENT", "pl4nted-agent") + "'}\n" +
		"    sign: {secret: '" + secret("SIGN", "whsec_cGw0bnRlZHBsNG50ZWRwbDRudGVkcGw0bnRlZA==") + "'}\n" +
		"    request: '{text: \"" + secret("TEXT", "pl4nted-text") + "\", secret: $secret.PROGRAM, file: [.events[].id]}'\n" +
		"    results: '[.events[] | {id, error: (\"" + secret("RESULTS", "pl4nted-results") + " \" + .headers[\"content-type\"] + $secret.PROGRAM), retry: false}] as $r | if .body == \"" + secret("OTHER", "pl4nted-other") + "\" then $r else [.events[] as $e | {id: $e.id, error: .body, retry: false}] end'\n" +
		"  dead_letter: {hook: {url: '" + server.URL + "/hook/" + secret("HOOK", "pl4ntedhook") + "'}}\n"
	secret("PROGRAM", `pl4nted"pro\gram`)
	secrets = append(secrets, "quietpl4ntedlowercase")
	path := write(t, yaml)

	var all strings.Builder
	run := func(code int, args ...string) {
		t.Helper()
		r := do(t, env, append(args, "-c", path)...)
		if r.code != code {
			t.Errorf("relay %v: exit status %d, want %d\n%s%s", args, r.code, code, r.stdout, r.stderr)
		}
		all.WriteString(r.stdout + r.stderr)
	}
	run(0, "check")
	run(0, "preview")
	relay := start(t, env, "run", "-c", path)
	relay.waitForLog("admin endpoint listening")
	testserver.Eventually(t, func() error {
		if n := db.count("SELECT count(*) FROM outbox_dead_letters WHERE notified_at IS NOT NULL"); n != 2 {
			return fmt.Errorf("%d dead letters", n)
		}
		return nil
	})
	_, address, _ := strings.Cut(relay.stderr.String(), "url=http://")
	address, _, _ = strings.Cut(address, "/")
	for _, page := range []string{"/", "/api/status", "/api/dead", "/metrics", "/readyz"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+page, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer pl4nted/admin+token")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	relay.signal(syscall.SIGTERM)
	if code := relay.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	all.WriteString(relay.stdout.String() + relay.stderr.String())
	run(0, "status")
	run(0, "dead", "list")
	run(0, "dead", "list", "--json")
	run(0, "dead", "show", "--id", "1")
	do(t, env, "doctor", "-c", path)
	rows, err := db.conn.Query(t.Context(), "SELECT error FROM outbox_dead_letters")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "***") {
			t.Errorf("the dead letter's error is %q: the server's text is not in it", text)
		}
		all.WriteString(text)
	}
	mu.Lock()
	all.WriteString(hook.String())
	mu.Unlock()
	if hook.Len() == 0 {
		t.Error("the hook got nothing")
	}
	for line := range strings.Lines(all.String()) {
		for _, s := range append(secrets, "pl4nted", "Ym9iOnBsNG50") {
			if at := strings.Index(line, s); at >= 0 {
				t.Fatalf("%q is shown in\n%s", s, line[max(0, at-100):min(len(line), at+100)])
			}
		}
	}
}

// A password that is a common word does not make the relay's own texts unreadable, nor does a number in a URL's path.
func TestSecrets_CommonWords(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO outbox_events (id, topic, payload) OVERRIDING SYSTEM VALUE VALUES (12345, 'orders', '{}')")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "event 12345 of /v1 was refused: no more events from a relay", http.StatusBadRequest)
	}))
	t.Cleanup(server.Close)
	sink := strings.Replace(server.URL, "http://", "http://delivery:events@", 1) + "/v1/12345/events"
	path := write(t, strings.Replace(onePipeline("orders", db.url, sink, "    retry: {max_attempts: 1}"), `listen: ""`, `listen: "", token: relay`, 1))
	do(t, nil, "check", "-c", path).want(t, 0, "workers, batches of 1000", "")
	r := start(t, nil, "run", "-c", path)
	r.waitForLog(`events became dead letters`)
	r.waitForLog("event 12345 of /v1 was refused: no more events from a relay")
}
