package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/testkit"
)

// setCookie puts a cookie into the tab's profile.
func (b *tab) setCookie(c *http.Cookie) {
	b.t.Helper()
	_, err := chromedp.Call(b, network.SetCookie, network.SetCookieParams{Name: c.Name, Value: c.Value, URL: b.site.url, Path: "/"})
	testkit.NoError(b.t, err)
}

// expiredSession is the cookie of a session that has been over for years.
func expiredSession(t *testing.T) (cookie *http.Cookie) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { // in the year 2000
		w := httptest.NewRecorder()
		guard := access.New(access.Token{Name: "admin", Secret: token})
		user, ok := guard.Login(token)
		testkit.Equal(t, "the token is known", ok, true)
		guard.Begin(w, user, false)
		cookie = w.Result().Cookies()[0]
	})
	return cookie
}

// TestSession_Expired: the overview says that the session is over, and not that the relay is away; a form that was open changes nothing, and after a login all goes on.
func TestSession_Expired(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	b := newTab(t, s)
	session := func() *http.Cookie { return post(t, s.url+"/login", url.Values{"token": {token}}).Cookies()[0] }
	expired := expiredSession(t)

	first := session()
	b.setCookie(first)
	b.goTo("/")
	b.see("Live", "1 dead letter")
	b.setCookie(expired)
	post(t, s.url+"/logout", nil, func(r *http.Request) { r.AddCookie(first) }) // as its end, it closes the live stream at the next change
	s.insert(t, "bad.order", `{"n": 2}`)
	s.expectDead(t, 2)
	b.see("The session is over; the figures are of ", "Log in again")
	if !value[bool](b, "(size => size('.headline') < size('.live'))(of => parseFloat(getComputedStyle(document.querySelector(of)).fontSize))") {
		t.Error("the old headline is as large as the line that says that it is old")
	}
	b.expectAccessibleAs("session-over", "light", 400)
	b.click("[data-live] a")
	b.see("The session is over; log in again.", "admin.token")

	b.setCookie(session())
	b.goTo("/dead/orders/1")
	b.click("button[value=discard]")
	b.see("Discard 1 dead letter?")
	b.setCookie(expired)
	b.click("main button[value=discard]")
	b.see("not logged in, or the session is over; log in again")
	testkit.Equal(t, "open dead letters", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"), 2)
	if text := b.text(); strings.Contains(text, "Log out") || strings.Contains(text, "Overview") {
		t.Errorf("nobody is logged in, and the page offers\n%s", text)
	}
	b.goTo("/dead?topic=bad.order&pipeline=orders")
	b.see("The session is over; log in again.", "admin.token")
	b.do(chromedp.SendKeys(chromedp.Search("[name=token]"), token+"\r"))
	b.see("All 2, the last to die first")
	testkit.Equal(t, "where the login leads to", value[string](b, "location.pathname + location.search"), "/dead?topic=bad.order&pipeline=orders")

	b.goTo("/dead/orders/1/edit")
	b.set("textarea", `{"n": "</textarea><script>document.title='pwned'</script>", "typed": true,
  "lines": 2}`)
	b.setCookie(expired)
	b.click("main form button")
	b.see("Nothing was changed", "What you wrote: text", `"typed": true`, `"lines": 2`)
	if strings.Contains(b.last, "\uFFFD") {
		t.Errorf("a line end is shown as a broken character:\n%s", b.last)
	}
	b.expectAccessible("edit-expired")
	b.do(chromedp.SendKeys(chromedp.Search("[name=token]"), "wrong\r"))
	b.see("This token is unknown", `"typed": true`)
	b.do(chromedp.SendKeys(chromedp.Search("[name=token]"), token+"\r"))
	b.see("You are logged in", `"typed": true`)
	b.expectAccessible("login-continue")
	b.click("main form button")
	b.see("Replay event 1 with this payload and these headers?", `"typed": true`)
	testkit.Equal(t, "title", strings.Contains(value[string](b, "document.title"), "pwned"), false)
	b.goTo("/")
	b.see("Live", "2 dead letters")
	for _, to := range []string{"https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "../../x", "javascript:alert(1)"} {
		got := post(t, s.url+"/login", url.Values{"token": {token}, "to": {to}})
		testkit.Equal(t, "a login to "+to+" leads to", got.Header.Get("Location"), "./")
	}
	b.expectQuietBut("401")
}

// TestTwoTabs: what was changed in one tab meets the forms that another one still shows.
func TestTwoTabs(t *testing.T) {
	t.Parallel()
	s := openWith(t, named, "")
	for range 3 {
		s.insert(t, "bad.order", `{"n": 1}`)
	}
	s.expectDead(t, 3)
	one, other := newTab(t, s), newTab(t, s)
	one.logIn()
	other.logInWith(aliceToken)

	// A pause of what is paused.
	one.goTo("/pipelines/orders")
	one.click("form[action='orders/pause'] button")
	one.see("Pause orders?")
	other.goTo("/pipelines/orders")
	other.click("form[action='orders/pause'] button")
	other.see("Pause orders?")
	other.click("main form button")
	other.see("Paused.")
	one.click("main form button")
	one.see("It was paused before.", "alice")
	one.click("form[action='orders/resume'] button")
	one.see("Resume orders?")
	one.click("main form button")
	one.see("Resumed.")

	// An edit of what was edited.
	one.goTo("/dead/orders/1/edit")
	other.goTo("/dead/orders/1/edit")
	for _, b := range []*tab{one, other} {
		b.set("textarea", map[*tab]string{one: `{"n": "one"}`, other: `{"n": "other"}`}[b])
		b.click("main form button")
		b.see("Replay event 1 with this payload and these headers?")
	}
	other.click("main form button")
	other.see("Event 1 was changed and replayed.")
	one.click("main form button")
	one.see("Nothing was changed and nothing was sent by you: event 1 was replayed by alice, console, 127.0.0.1 at")
	testkit.Equal(t, "text that was written", value[string](one, "document.querySelector('textarea').value.replace(/\\s/g, '')"), `{"n":"one"}`)
	one.expectAccessibleAs("edit-lost", "light", 400)

	// A selection of which a part is gone.
	one.goTo("/dead")
	one.see("event", "orders 2", "orders 3")
	one.click("[data-all]")
	one.click("form:last-of-type button[value=replay]")
	one.see("dead letters?")
	other.goTo("/dead/orders/2")
	other.click("button[value=discard]")
	other.see("Discard 1 dead letter?")
	other.click("main button[value=discard]")
	other.see("1 discarded.")
	one.click("main button[value=replay]")
	one.see("replayed.")
	testkit.Equal(t, "events of the discarded one", s.count(t, "SELECT count(*) FROM outbox_events WHERE id = 2"), 0)
	testkit.Equal(t, "the discarded one", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE event_id = 2 AND closed_as = 'discarded' AND closed_by LIKE 'alice%'"), 1)
	one.expectQuietBut("409")
	other.expectQuiet()
}

// TestReplay_DiscardedMeanwhile: a replay that was confirmed too late sends nothing, and says why.
func TestReplay_DiscardedMeanwhile(t *testing.T) {
	t.Parallel()
	s := openWith(t, named, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	b := newTab(t, s)
	b.logIn()
	b.goTo("/dead/orders/1")
	b.click("button[value=replay]")
	b.see("Replay 1 dead letter?")
	discard := url.Values{"action": {"discard"}, "pipeline": {"orders"}, "id": {"1"}, "confirmed": {"1"}, "reason": {"the tenant is gone"}}
	testkit.Equal(t, "the other one's discard", post(t, s.url+"/dead/change", discard, bearer(aliceToken)).StatusCode, http.StatusSeeOther)
	b.click("main button[value=replay]")
	b.see("Nothing was replayed: event 1 was discarded by alice, console")
	testkit.Equal(t, "it is green", b.has(".done:not(.nothing)"), false)
	testkit.Equal(t, "events", s.count(t, "SELECT count(*) FROM outbox_events"), 0)
	b.goTo("/dead/orders/1")
	b.see("discarded", "by alice, console", "Reason: the tenant is gone")
	testkit.Equal(t, "a hook is named, and none is configured", strings.Contains(b.text(), "Hook"), false)
	b.goTo("/activity")
	b.see("the tenant is gone", "alice, console", "admin, console")
	b.expectQuiet()
}

// TestDead_DiesAfterQuestion: what dies between the question and the click stays open, also in a pipeline that had none.
func TestDead_DiesAfterQuestion(t *testing.T) {
	t.Parallel()
	s := open(t, `  - {name: bills, source: {url: "sqlite://%s/orders.db", table: bills}, sink: {url: "file://%s/bills.ndjson"}}`)
	die := func(pipeline string, from, to int, ago string) {
		t.Helper()
		_, err := s.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT ?2 UNION ALL SELECT i + 1 FROM n WHERE i < ?3)
			INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at)
			SELECT ?1, i, 'bad', '1', '2026-01-02T03:04:05.123Z', '0198c0de-0000-7000-8000-' || printf('%012d', i), 3, 'no such tenant', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4) FROM n`,
			pipeline, from, to, ago)
		testkit.NoError(t, err)
	}
	open := func(pipeline string) int {
		return s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL AND pipeline = '"+pipeline+"'")
	}
	b := newTab(t, s)
	b.logIn()
	for i, verb := range []string{"discard", "replay"} {
		from := 1000 * (i + 1)
		die("orders", from, from+2, "-2 seconds")
		b.goTo("/dead")
		b.click("form[action='dead/change'] button[value=" + verb + "]")
		b.see("3 dead letters?")
		die("orders", from+10, from+13, "+1 seconds") // later than the question also by the clock's milliseconds
		die("bills", from, from+1, "+1 seconds")
		b.click("main button[value=" + verb + "]")
		b.see("3 " + verb + "ed.")
		testkit.Equal(t, "open orders after "+verb, open("orders"), 4)
		testkit.Equal(t, "open bills after "+verb, open("bills"), 2)
		_, err := s.db.ExecContext(t.Context(), "DELETE FROM outbox_dead_letters")
		testkit.NoError(t, err)
	}
	got := post(t, s.url+"/dead/change", url.Values{"action": {"discard"}, "confirmed": {"1"}, "until": {"orders soon"}}, bearerToken)
	testkit.Equal(t, "a bad time", got.StatusCode, http.StatusBadRequest)
	b.expectQuiet()
}

// TestOtherProcess_Form: a form about a pipeline that another process has by now changes nothing, and says so.
func TestOtherProcess_Form(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	b := newTab(t, s)
	b.logIn()
	const gone = `pipeline "bills" does not exist in this relay`
	b.goTo("/dead/orders/1")
	b.set("[name=pipeline]", "bills")
	b.click("button[value=discard]")
	b.see(gone)
	b.expectAccessible("other-process")
	b.goTo("/pipelines/orders")
	value[bool](b, "(f => { f.action = f.action.replace('orders', 'bills'); return true })(document.querySelector(\"form[action='orders/pause']\"))")
	b.click("form[action$='bills/pause'] button")
	b.see(gone)
	b.goTo("/pipelines/bills")
	b.see(gone)
	testkit.Equal(t, "open dead letters", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"), 1)
	b.expectQuietBut("404")
}
