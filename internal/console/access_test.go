package console_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	aliceToken = "alice-0123456789abcdef"
	wallToken  = "wall-0123456789abcdef"
	// named are more keys of admin.
	named = ", tokens: [{name: alice, token: " + aliceToken + "}, {name: wall, token: " + wallToken + ", read_only: true}]"
)

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// changes are the routes of console and endpoint that change something: all with POST but for the login.
func changes(t *testing.T) (paths []string) {
	t.Helper()
	for _, folder := range []string{".", "../admin"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		testkit.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			testkit.NoError(t, err)
			for _, found := range regexp.MustCompile(`"(?:POST|PUT|PATCH|DELETE) (/[^"]*)"`).FindAllStringSubmatch(string(text), -1) {
				if found[1] != "/login" && found[1] != "/logout" {
					paths = append(paths, strings.ReplaceAll(found[1], "{name}", "orders"))
				}
			}
		}
	}
	if len(paths) < 4 {
		t.Fatalf("only %v change something", paths)
	}
	return paths
}

// TestReadOnly_ChangesNothing: a read-only token reads every page and changes nothing, whichever route it tries.
func TestReadOnly_ChangesNothing(t *testing.T) {
	t.Parallel()
	s := openWith(t, named, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	login := post(t, s.url+"/login", url.Values{"token": {wallToken}})
	testkit.Equal(t, "login", login.StatusCode, http.StatusSeeOther)
	session := func(r *http.Request) { r.AddCookie(login.Cookies()[0]) }
	asJSON := func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }
	for _, path := range changes(t) {
		for name, as := range map[string]func(*http.Request){"token": bearer(wallToken), "session": session} {
			form := post(t, s.url+path, url.Values{"action": {"discard"}, "pipeline": {"orders"}, "confirmed": {"1"}}, as)
			if form.StatusCode != http.StatusForbidden || !strings.Contains(form.body, "read-only") {
				t.Errorf("POST %s with the read-only %s answers %d %s", path, name, form.StatusCode, form.body)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(`{"pipeline": "orders", "ids": "all"}`))
			testkit.NoError(t, err)
			if got := send(t, r, as, asJSON); got.StatusCode != http.StatusForbidden || !strings.Contains(got.body, "read-only") {
				t.Errorf("POST %s of JSON with the read-only %s answers %d %s", path, name, got.StatusCode, got.body)
			}
		}
	}
	for _, path := range []string{"/", "/pipelines/orders", "/pipelines/orders/history", "/dead", "/dead/orders/1", "/api/status", "/api/dead", "/metrics", "/readyz"} {
		if got := get(t, s.url+path, bearer(wallToken)); got.StatusCode != http.StatusOK {
			t.Errorf("GET %s answers %d", path, got.StatusCode)
		}
	}
	testkit.Equal(t, "open", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"), 1)
}

// TestReadOnly_Console: who may only read sees who they are, and no button that changes something.
func TestReadOnly_Console(t *testing.T) {
	t.Parallel()
	s := openWith(t, named, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	s.api.away.Store(true)
	s.insert(t, "order.created", `{"n": 2}`)
	b := newTab(t, s)
	b.logInWith(wallToken)
	b.see("wall (read-only)", "sink unavailable")
	for path, text := range map[string]string{"/": "1 dead letter", "/pipelines/orders": "What waits", "/dead": "All 1, the last to die first", "/dead/orders/1": "Payload"} {
		b.seeAt(path, text)
		if n := value[float64](b, "document.querySelectorAll('main form[method=post] button, main input[type=checkbox][name=chosen]').length"); n != 0 {
			t.Errorf("%s offers %v changes to a read-only user", path, n)
		}
	}
	b.goTo("/dead/orders/1")
	b.expectAccessible("dead-letter-read-only")
	b.click("header form button")
	b.see("Log in")
	b.logInWith(aliceToken)
	b.goTo("/dead/orders/1")
	b.click("button[value=discard]")
	b.see("Discard 1 dead letter?")
	b.click("main button[value=discard]")
	b.see("1 discarded.")
	by := ""
	testkit.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT closed_by FROM outbox_dead_letters WHERE closed_at IS NOT NULL").Scan(&by))
	testkit.Equal(t, "closed by", by, "alice, console, 127.0.0.1")
	b.expectQuiet()
}

// TestPayloads_Hidden: with admin.payloads: false no page and no answer has the payload, the headers or the key of an event. Errors stay, the last one and those in the
// history of attempts alike: the docs say that a sink's answer may quote events.
func TestPayloads_Hidden(t *testing.T) {
	t.Parallel()
	for hidden, keys := range map[bool]string{true: ", payloads: false", false: ""} {
		s := openWith(t, keys, "")
		_, err := s.db.ExecContext(t.Context(), `INSERT INTO outbox_events (topic, key, payload, headers) VALUES ('bad.order', 'private-key', '{"n": "private-payload"}', '{"h": "private-header"}'),
			('bad.order', NULL, '{}', NULL)`)
		testkit.NoError(t, err)
		s.expectDead(t, 2)
		_, err = s.db.ExecContext(t.Context(), "UPDATE outbox_dead_letters SET payload = x'70726976617465ff' WHERE event_id = 2")
		testkit.NoError(t, err)
		history, err := json.Marshal(buffer.History{{At: time.Now(), Relay: "host/1/orders", Error: "400 Bad Request: echoed@mail.example is no customer", GroupID: buffer.NewGroupID(), Events: 2}})
		testkit.NoError(t, err)
		_, err = s.db.ExecContext(t.Context(), "UPDATE outbox_dead_letters SET history = ? WHERE event_id = 1", string(history))
		testkit.NoError(t, err)
		shown := ""
		for _, path := range []string{"/", "/pipelines/orders", "/dead", "/dead?id=1", "/dead?error=private", "/dead/orders/1", "/dead/orders/2", "/api/dead", "/api/dead?id=2", "/api/status", "/metrics", "/readyz"} {
			got := get(t, s.url+path, bearer(token))
			testkit.Equal(t, path, got.StatusCode, http.StatusOK)
			if hidden && (strings.Contains(got.body, "private-") || strings.Contains(got.body, "cHJpdmF0Zf8") || strings.Contains(got.body, "70 72 69 76")) {
				t.Errorf("%s shows %s", path, got.body)
			}
			shown += got.body
		}
		want := []string{"private-key", "private-payload", "private-header", "cHJpdmF0Zf8", "70 72 69 76"}
		if hidden {
			want = []string{`"payload_hidden": true`, "<code>admin.payloads</code> is false", "no such tenant 1", "What was tried", `"error": "400 Bad Request: echoed@mail.example`}
		}
		for _, text := range want {
			if !strings.Contains(shown, text) {
				t.Errorf("hidden %v: nothing shows %s", hidden, text)
			}
		}
	}
}

// TestProxy: the person that a trusted proxy names is written down; a header that a client sends is not.
func TestProxy(t *testing.T) {
	t.Parallel()
	for trusted, want := range map[string]string{"127.0.0.0/8": "ann via token alice, console, 127.0.0.1", "10.0.0.0/8": "alice, console, 127.0.0.1"} {
		s := openWith(t, named+", proxy: {trusted: ['"+trusted+"'], user_header: X-Forwarded-User}", "")
		s.insert(t, "bad.order", "1")
		s.expectDead(t, 1)
		proxied := func(r *http.Request) {
			r.Header.Set("X-Forwarded-User", "ann")
			r.Header.Set("X-Forwarded-Proto", "https")
		}
		login := post(t, s.url+"/login", url.Values{"token": {aliceToken}}, proxied)
		testkit.Equal(t, "secure", login.Cookies()[0].Secure, trusted == "127.0.0.0/8")
		if got := get(t, s.url+"/dead", proxied); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: without a token the header answers %d", trusted, got.StatusCode)
		}
		got := post(t, s.url+"/dead/change", url.Values{"action": {"discard"}, "pipeline": {"orders"}, "confirmed": {"1"}}, proxied, func(r *http.Request) { r.AddCookie(login.Cookies()[0]) })
		testkit.Equal(t, "discard", got.StatusCode, http.StatusSeeOther)
		by := ""
		testkit.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT closed_by FROM outbox_dead_letters WHERE closed_at IS NOT NULL").Scan(&by))
		testkit.Equal(t, "closed by", by, want)
	}
}

// TestActivity: what is done in the console and over the API is shown with who, how many and why, once each; dry runs are not.
func TestActivity(t *testing.T) {
	t.Parallel()
	s := openWith(t, named, "")
	for range 3 {
		s.insert(t, "bad.order", "1")
	}
	s.expectDead(t, 3)
	api := func(body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/dead/discard", strings.NewReader(body))
		testkit.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		testkit.Equal(t, "discard", send(t, r, bearer(token)).StatusCode, http.StatusOK)
	}
	api(`{"pipeline": "orders", "ids": "all", "dry_run": true}`)
	api(`{"pipeline": "orders", "ids": ["1"], "reason": "a <b>test</b>"}`)
	discard := url.Values{"action": {"discard"}, "topic": {"bad.order"}, "reason": {"the rest"}}
	testkit.Equal(t, "asks", post(t, s.url+"/dead/change", discard, bearer(aliceToken)).StatusCode, http.StatusOK)
	discard.Set("confirmed", "1")
	testkit.Equal(t, "discard", post(t, s.url+"/dead/change", discard, bearer(aliceToken)).StatusCode, http.StatusSeeOther)
	b := newTab(t, s)
	b.logInWith(wallToken)
	b.goTo("/activity")
	b.see("alice, console, 127.0.0.1", "the rest", "admin, admin endpoint, 127.0.0.1", "a <b>test</b>", "The program that embeds this relay has the log")
	b.expectAccessible("activity")
	testkit.Equal(t, "marked as nothing done", b.has("td.nothing"), false)
	post(t, s.url+"/dead/change", url.Values{"action": {"replay"}, "pipeline": {"orders"}, "confirmed": {"1"}, "id": {"1"}}, bearer(aliceToken))
	b.goTo("/activity")
	b.see("What users did at this relay, ", "0 nothing done")
	testkit.Equal(t, "rows", value[string](b, "[...document.querySelectorAll('.list tbody tr')].map(r => [2, 3, 4, 5].map(i => r.children[i].innerText).join(' ')).join('; ')"), `replay orders 0 nothing done id=1; discard orders 2 topic=bad.order; discard orders 1 ids=["1"]`)
	if got := post(t, s.url+"/level", url.Values{"level": {"debug"}, "confirmed": {"1"}}, bearer(aliceToken)); got.StatusCode != http.StatusConflict {
		t.Errorf("without a log of its own the relay answers %d %s", got.StatusCode, got.body)
	}
	b.expectQuiet()
}
