package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestLogin: a wrong token gets in nobody, a session reads and changes, and logging out ends it.
func TestLogin(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	b := newTab(t, s)
	b.goTo("/pipelines/orders")
	b.see("Log in", "admin.token")
	b.expectAccessible("login")
	b.do(chromedp.SendKeys(chromedp.Search("[name=token]"), "wrong\r"))
	b.see("This token is unknown")
	b.logIn()
	b.see("Everything works.", "orders")
	b.goTo("/login") // another tab may be there
	b.goTo("/dead")
	b.see("No dead letter matches.")
	b.click("header form button")
	b.see("Log in")
	b.goTo("/dead")
	b.see("admin.token")
	for path, accept := range map[string]string{"/": "text/html", "/dead": "text/html", "/live": "text/event-stream", "/pipelines/orders/history": "application/json"} {
		response := get(t, s.url+path, func(r *http.Request) { r.Header.Set("Accept", accept) })
		want := http.StatusUnauthorized
		if accept == "text/html" {
			want = http.StatusSeeOther
		}
		if response.StatusCode != want {
			t.Errorf("%s answers %d without a session", path, response.StatusCode)
		}
	}
}

// TestOverview: the page is live, says what is wrong, why, since when and what to do, and recovers by itself.
func TestOverview(t *testing.T) {
	t.Parallel()
	s := open(t, `
  - name: bus
    source: {url: "sqlite://%s/bus.db"}
    sinks:
      - {name: log, url: "file://%s/log.ndjson"}
      - {name: audit, url: "file://%s/audit.ndjson", match: ["audit.#"]}
`)
	b := newTab(t, s)
	b.logIn()
	b.see("Everything works.", "Live", "orders", "bus", "log", "audit", "running")
	s.api.away.Store(true)
	s.insert(t, "order.created", `{"n": 1}`)
	b.see("1 of 2 pipelines needs attention.", "orders: sink unavailable", "closed for <b>maintenance</b>", "Events wait, none becomes a dead letter.")
	b.expectAccessible("overview-away")
	b.click("#problems a")
	b.see("Batches of orders")
	b.seeAt("/pipelines/orders", "1 batch waits.")
	b.see("What waits")
	b.click("form[action='orders/retry'] button")
	b.see("Retry everything that waits of orders now?")
	b.expectAccessible("retry")
	b.click("main form button")
	b.seeEither("1 batch is due now.", "Nothing was changed: 1 batch is being sent at this moment.") // the relay probes the sink with it
	b.goTo("/")
	s.api.away.Store(false)
	b.see("Everything works.")
	s.insert(t, "bad.order", `{"n": 2}`)
	s.expectDead(t, 1)
	b.see("orders: 1 dead letter", "Topic bad.order: no such tenant", "Nothing: they stay until somebody replays or discards them.")
	b.expectAccessible("overview-dead")
	b.goTo("/pipelines/orders")
	b.do(chromedp.WaitVisible(chromedp.Search(".plots canvas")))
	b.click("[data-span=day]")
	b.see("Delivered per second", "Commit to sink")
	b.expectAccessible("pipeline")
	b.goTo("/pipelines/nothing")
	b.see(`pipeline "nothing" does not exist`)
	b.expectQuietBut("404")
}

// TestOverview_WithoutScript: everything but the charts can be read.
func TestOverview_WithoutScript(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	bearer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	for path, want := range map[string]string{"/": "1 dead letter", "/pipelines/orders": "1 dead letter", "/dead": "no such tenant 1", "/dead/orders/1": "no such tenant 1"} {
		var response answer
		testkit.Eventually(t, func() error { // the status is of a second ago
			if response = get(t, s.url+path, bearer); response.StatusCode != http.StatusOK || !strings.Contains(response.body, want) {
				return fmt.Errorf("%s answers %d %s", path, response.StatusCode, response.body)
			}
			return nil
		})
		if policy := response.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s has the policy %s", path, policy)
		}
		if strings.Contains(response.body, "http://") || strings.Contains(response.body, "style=") {
			t.Errorf("%s refers to another host, or has a style of its own: %s", path, response.body)
		}
	}
}

// TestDeadLetters: they are found by error and topic, replayed and discarded, one, some and all, with the counts before; and who did it is kept.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	for i := range 6 {
		s.insert(t, fmt.Sprintf("bad.%d", i%2), fmt.Sprintf(`{"n": %d, "html": "<script>document.title='pwned'</script>"}`, i))
	}
	open := func() int { return s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL") }
	s.expectDead(t, 6)
	b := newTab(t, s)
	b.logIn()
	b.see("6 dead letters")
	b.click("#problems a[href^=dead]")
	b.see("All 6, the last to die first", "no such tenant", "bad.0", "bad.1")
	b.expectAccessible("dead")
	b.click("tbody tr td a[href*=topic]")
	b.see("All 3, the last to die first")
	b.click(".list tbody th a")
	b.see("Payload", "document.title='pwned'", "after 1 attempt", "What was tried", "/orders, a batch of")
	b.expectAccessible("dead-letter")
	b.click("button[value=discard]")
	b.see("Discard 1 dead letter?", "nothing sends it again", "This cannot be undone here")
	b.expectAccessible("confirm")
	b.do(chromedp.SendKeys(chromedp.Search("[name=reason]"), "the tenant <b>is</b> gone"))
	b.click("main button[value=discard]")
	b.see("1 discarded.")
	testkit.Equal(t, "open", open(), 5)
	var id, by, reason string
	testkit.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT event_id, closed_by, closed_reason FROM outbox_dead_letters WHERE closed_at IS NOT NULL").Scan(&id, &by, &reason))
	testkit.Equal(t, "closed by", by+": "+reason, "admin, console, 127.0.0.1: the tenant <b>is</b> gone")
	b.goTo("/dead/orders/" + id)
	b.see("by admin, console, 127.0.0.1", "Reason: the tenant <b>is</b> gone")
	b.goTo("/dead")

	b.click("form[action='dead/change'] button[value=replay]:not([name=x])")
	b.see("Replay 5 dead letters?")
	b.goTo("/dead")
	b.click("[name=chosen]")
	b.click("form:last-of-type button[value=discard]")
	b.see("Discard 1 dead letter?")
	// Somebody else does it meanwhile.
	_, err := s.db.ExecContext(t.Context(), "UPDATE outbox_dead_letters SET closed_at = '2026-01-01T00:00:00.000Z', closed_as = 'discarded' WHERE closed_at IS NULL")
	testkit.NoError(t, err)
	b.click("main button[value=discard]")
	b.see("Nothing was discarded: event ", " was discarded at ")
	if title := value[string](b, "document.title"); strings.Contains(title, "pwned") {
		t.Errorf("a payload ran as a script: %s", title)
	}
	b.expectQuiet()
}

// TestHostile: nothing that an event contains runs, breaks a page or turns its text around.
func TestHostile(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	topic := `bad"><img src=x onerror="document.title='pwned'"><script>document.title='pwned'</script>` + "\u202egnp"
	s.insert(t, topic, `{"html": "</pre><script>document.title='pwned'</script>", "bidi": "`+"\u202e"+`txet", "zero": "\u0000"}`)
	s.insert(t, "bad.long", `"`+strings.Repeat("x", 1<<20)+`"`)
	s.expectDead(t, 2)
	hostile := `</p><script>document.title='pwned'</script><img src=x onerror="document.title='pwned'">` + "\u202egnihton\u2066\u200b\x07 echo"
	history, err := json.Marshal(buffer.History{{At: time.Now(), Relay: "host" + hostile, Error: "first try " + hostile, GroupID: buffer.NewGroupID(), Events: 2}})
	testkit.NoError(t, err)
	_, err = s.db.ExecContext(t.Context(), "UPDATE outbox_dead_letters SET history = ?1, error = ?2, key = ?2, closed_by = ?2 WHERE event_id = 1", string(history), hostile)
	testkit.NoError(t, err)
	b := newTab(t, s)
	b.logIn()
	for _, path := range []string{"/", "/dead", "/dead/orders/1", "/dead/orders/2", "/pipelines/orders"} {
		b.goTo(path)
		b.expectAccessibleAs("hostile"+strings.ReplaceAll(path, "/", "-"), "light", 400) // an event changes no colours
		if title := value[string](b, "document.title"); strings.Contains(title, "pwned") {
			t.Errorf("%s: an event ran as a script: %s", path, title)
		}
		if n := value[float64](b, "document.querySelectorAll('main img, main script').length"); n != 0 {
			t.Errorf("%s has %v elements of an event", path, n)
		}
		if text := b.text(); strings.ContainsAny(text, "\u202e\u2066\u200b\x07") {
			t.Errorf("%s has invisible characters, or some that turn text around: %q", path, text)
		}
	}
	b.goTo("/dead/orders/1")
	b.see("What was tried", "first try </p><script>document.title='pwned'</script><img", "\uFFFDgnihton\uFFFD\uFFFD\uFFFD echo")
	for _, path := range []string{"/dead?topic=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "/dead?done=%3Cscript%3Ealert(1)%3C/script%3E", "/dead/orders/%3Cscript%3E", "/dead?newer_than=%3Cscript%3E"} {
		b.goTo(path)
		if n := value[float64](b, "document.querySelectorAll('main script').length"); n != 0 {
			t.Errorf("%s has %v scripts", path, n)
		}
	}
}

// TestDeadLetters_Many: 10,000 dead letters are one page, and all that match are replayed.
func TestDeadLetters_Many(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	_, err := s.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
		INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at)
		SELECT 'orders', i, 'bad.' || i % 30, '{"n": 1}', '2026-01-02T03:04:05.123Z', '0198c0de-0000-7000-8000-' || printf('%012d', i), 3,
		       CASE WHEN i % 100 = 0 THEN 'timeout after ' || i ELSE 'no such tenant ' || i END, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 hours') FROM n`)
	testkit.NoError(t, err)
	b := newTab(t, s)
	b.logIn()
	b.goTo("/dead")
	b.see("The newest 100 of 10,000", "(of the newest 1,000)", "Died within")
	b.expectAccessible("dead-many")
	b.goTo("/dead?error=timeout")
	b.see("All 100, the last to die first")
	b.goTo("/dead")
	b.see("By hour")
	b.click("[aria-label='by time'] tbody a")
	b.see("All 10,000 that match")
	if within := value[string](b, "location.search"); !regexp.MustCompile(`newer_than=2\d{3}-\d\d-\d\dT\d\d%3A00%3A00Z&older_than=2\d{3}-\d\d-\d\dT\d\d%3A00%3A00Z`).MatchString(within) {
		t.Errorf("the hour leads to %s", within)
	}
	b.goTo("/dead?error=timeout")
	b.click("form[action='dead/change'] button[value=discard]")
	b.see("Discard 100 dead letters?", "This cannot be undone here", "of all pipelines", "with an error that contains \"timeout\"")
	b.click("main button[value=discard]")
	b.see("100 discarded.", "No dead letter matches.")
	testkit.Equal(t, "the filter after it", value[string](b, "document.querySelector('[name=error]').value"), "timeout")
	b.goTo("/dead?closed=1")
	b.see("All 9,900 open ones that match", "The newest 100 of 10,000 (9,900 open)")
	b.expectQuiet()
}

// TestOverview_ManyPipelines: 200 pipelines are a page of less than 150 kB, which has the figures once they are read.
func TestOverview_ManyPipelines(t *testing.T) {
	t.Parallel()
	more := strings.Builder{}
	for i := range 199 {
		fmt.Fprintf(&more, "  - {name: pipeline-%03d, source: {url: \"sqlite://%%s/p%d.db\"}, sink: {url: \"file://%%s/p%d.ndjson\"}}\n", i, i, i)
	}
	s := open(t, more.String())
	response := get(t, s.url+"/", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
	if n := len(response.body); n > 150_000 || strings.Count(response.body, `scope="row"><a`) != 200 {
		t.Errorf("the page has %d bytes and %d pipelines", n, strings.Count(response.body, `scope="row"><a`))
	}
	b := newTab(t, s)
	b.logIn()
	b.see("pipeline-198")
	expectRead := func(page func() string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			if text := page(); strings.Contains(text, "reading …") {
				return fmt.Errorf("the page is\n%s", text)
			}
			return nil
		})
	}
	expectRead(b.text) // by the live stream
	expectRead(func() string { return get(t, s.url+"/", bearer(token)).body })
	b.expectAccessible("overview-many")
}
