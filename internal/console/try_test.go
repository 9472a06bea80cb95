package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/outboxrelay/relay/internal/testkit"
)

var bearerToken = bearer(token)

// set puts a text into a field.
func (b *tab) set(selector, text string) {
	b.t.Helper()
	b.do(chromedp.WaitReady(chromedp.Search(selector)))
	value[bool](b, fmt.Sprintf("(e => { e.value = %q; return true })(document.querySelector(%q))", text, selector))
}

// TestTry: pasted events and dead letters show their request, without secrets, and what an answer means; nothing is sent.
func TestTry(t *testing.T) {
	t.Parallel()
	s := open(t, `
  - name: secret
    source: {url: "sqlite://%s/secret.db"}
    sink: {url: "http://127.0.0.1:9/hook", headers: {X-Api-Key: "key-0123456789abcdef"}, request: '{body: .events[0].payload}'}
`)
	s.insert(t, "bad.order", `{"n": 1, "html": "</pre><script>document.title='pwned'</script>", "bidi": "`+"\u202e"+`txet"}`)
	s.expectDead(t, 1)
	b := newTab(t, s)
	b.logIn()
	b.goTo("/dead/orders/1")
	b.click("a[href*='try?']")
	b.see("Try it", "POST http://127.0.0.1", `"topic": "bad.order"`)
	b.expectAccessible("try-dead")
	if title := value[string](b, "document.title"); strings.Contains(title, "pwned") || strings.Contains(b.text(), "\u202e") {
		t.Errorf("a payload ran as a script, or turns text around")
	}
	b.goTo("/try")
	b.set("[name=pasted]", `[{"id": 7, "topic": "order.created", "payload": {"n": 7}}, {"id": 8, "topic": "order.created", "payload": {"n": 8}}]`)
	b.set("[name=status]", "200")
	b.set("[name=body]", `{"errors": [{"id": "8", "error": "no such tenant"}]}`)
	b.click(".try button")
	b.see("What the answer means", "event 7: delivered", "event 8: rejected for good: no such tenant")
	b.expectAccessible("try-answer")
	b.set("[name=body]", "<html>gateway</html>")
	b.set("[name=status]", "502")
	b.click(".try button")
	b.see("The events wait, and are sent again: an outage.")
	b.expectQuiet()

	for name, c := range map[string]struct {
		form url.Values
		code int
		want string
	}{
		"a secret":          {url.Values{"pipeline": {"secret"}, "pasted": {`{"id": 1, "topic": "a", "payload": {"key": "key-0123456789abcdef"}}`}}, http.StatusOK, "X-Api-Key: ***"},
		"no JSON":           {url.Values{"pipeline": {"orders"}, "pasted": {`<script>`}}, http.StatusUnprocessableEntity, "the pasted events"},
		"no such pipeline":  {url.Values{"pipeline": {"nothing"}}, http.StatusUnprocessableEntity, "does not exist"},
		"no such letter":    {url.Values{"pipeline": {"orders"}, "dead": {"4711"}}, http.StatusUnprocessableEntity, "no open dead letter"},
		"no status":         {url.Values{"pipeline": {"orders"}, "pasted": {`{"id": 1, "topic": "a", "payload": 1}`}, "status": {"12"}}, http.StatusUnprocessableEntity, "expected 200 to 599"},
		"nothing unclaimed": {url.Values{"pipeline": {"secret"}}, http.StatusOK, "No event waits to be claimed."},
	} {
		c.form.Set("show", "1")
		got := post(t, s.url+"/try", c.form, bearerToken)
		if got.StatusCode != c.code || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
		_, page, _ := strings.Cut(got.body, `class="try"`)
		if _, shown, _ := strings.Cut(page, "</form>"); strings.Contains(shown, "key-0123456789abcdef") { // the form has what was pasted
			t.Errorf("%s: a secret is shown: %s", name, shown)
		}
	}
	testkit.Equal(t, "events of the other pipeline", s.count(t, "SELECT count(*) FROM outbox_batches"), 0)
}

// TestEdit: an event is corrected and replayed; nothing that is no JSON, and nothing over another tab's change.
func TestEdit(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.insert(t, "bad.order", `"\u202e </textarea><script>document.title='pwned'</script>"`)
	s.expectDead(t, 2)
	_, err := s.db.ExecContext(t.Context(), "UPDATE outbox_dead_letters SET topic = 'good.order'") // the API accepts it now
	testkit.NoError(t, err)
	b := newTab(t, s)
	b.logIn()
	b.goTo("/dead/orders/1")
	b.click("a[href$='/edit']")
	b.see("Edit and replay event 1")
	b.expectAccessible("edit")
	b.set("textarea", `{"n": 1`)
	b.click("main form button")
	b.see("line 1, column 7:", "expected JSON")
	b.set("textarea", `{ "n": 1 }`)
	b.click("main form button")
	b.see("Nothing is changed yet.")
	was := value[string](b, "document.querySelector('[name=was]').value")
	b.set("textarea", `{"n": 2, "fixed": true}`)
	b.click("main form button")
	b.see("Replay event 1 with this payload and these headers?", "Before", "After", `"fixed": true`, "POST http://127.0.0.1")
	b.expectAccessible("edit-confirm")

	// Another tab is faster.
	_, err = s.db.ExecContext(t.Context(), `UPDATE outbox_dead_letters SET payload = '{"n": 9}' WHERE event_id = 1`)
	testkit.NoError(t, err)
	b.click("main form button")
	b.see("Somebody else has changed the event since this form was opened")
	testkit.Equal(t, "text that was written", value[string](b, "document.querySelector('textarea').value.replace(/\\s/g, '')"), `{"n":2,"fixed":true}`)
	payload := ""
	testkit.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT payload FROM outbox_dead_letters WHERE event_id = 1").Scan(&payload))
	testkit.Equal(t, "payload", payload, `{"n": 9}`)
	form := url.Values{"was": {was}, "text": {`{"n": 3}`}, "confirmed": {"1"}}
	if got := post(t, s.url+"/dead/orders/1/edit", form, bearerToken); got.StatusCode != http.StatusConflict {
		t.Errorf("an edit of the old text answers %d", got.StatusCode)
	}
	if got := post(t, s.url+"/dead/orders/1/edit", form); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("an edit without a session answers %d", got.StatusCode)
	}
	if got := post(t, s.url+"/dead/orders/1/edit", form, bearerToken, func(r *http.Request) {
		r.Header.Del("Authorization")
		r.AddCookie(post(t, s.url+"/login", url.Values{"token": {token}}).Cookies()[0])
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	}); got.StatusCode != http.StatusForbidden {
		t.Errorf("a forged edit answers %d", got.StatusCode)
	}

	b.goTo("/dead/orders/1/edit")
	b.set("#headers", `{"tenant": 7}`)
	b.click("main form button")
	b.see("headers are not a JSON object of strings")
	b.set("#headers", `{"tenant": "<7>"}`)
	b.set("textarea", `{"n": 10}`)
	b.click("main form button")
	b.see(`"tenant": "<7>"`)
	b.see("Replay event 1 with this payload and these headers?")
	b.click("main form button")
	b.see("Event 1 was changed and replayed.")
	testkit.Equal(t, "open", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_at IS NULL"), 1)
	by := ""
	testkit.NoError(t, s.db.QueryRowContext(t.Context(), "SELECT payload || headers || closed_by FROM outbox_dead_letters WHERE event_id = 1").Scan(&by))
	testkit.Equal(t, "payload, headers and who", by, `{"n":10}{"tenant":"<7>"}admin, console, 127.0.0.1`)
	b.goTo("/dead/orders/2/edit")
	b.see("Edit and replay event 2")
	if title := value[string](b, "document.title"); strings.Contains(title, "pwned") || value[float64](b, "document.querySelectorAll('main script').length") != 0 {
		t.Error("a payload ran as a script")
	}
	b.goTo("/dead/orders/4711/edit")
	b.see("no open dead letter has this id")
	b.expectQuietBut("4")
}

// TestTry_Hidden: with admin.payloads: false no event of the database is shown or edited; what somebody pastes is their own. Who may only read pastes nothing.
func TestTry_Hidden(t *testing.T) {
	t.Parallel()
	s := openWith(t, named+", payloads: false", "")
	s.insert(t, "bad.order", `{"n": "private-payload"}`)
	s.expectDead(t, 1)
	pasted := url.Values{"pipeline": {"orders"}, "show": {"1"}, "pasted": {`{"id": 1, "topic": "a", "payload": {"n": "mine"}}`}}
	for path, code := range map[string]int{"/try?pipeline=orders&dead=1&show=1": http.StatusUnprocessableEntity, "/try?pipeline=orders&show=1": http.StatusUnprocessableEntity, "/dead/orders/1/edit": http.StatusForbidden} {
		if got := get(t, s.url+path, bearerToken); got.StatusCode != code || strings.Contains(got.body, "private-") || !strings.Contains(got.body, "admin.payloads is false") {
			t.Errorf("%s answers %d %s", path, got.StatusCode, got.body)
		}
	}
	if got := post(t, s.url+"/dead/orders/1/edit", url.Values{"was": {""}, "text": {"1"}, "confirmed": {"1"}}, bearerToken); got.StatusCode != http.StatusForbidden {
		t.Errorf("an edit answers %d", got.StatusCode)
	}
	if got := get(t, s.url+"/dead/orders/1", bearerToken); strings.Contains(got.body, "/edit") || strings.Contains(got.body, "try?") {
		t.Errorf("the page of the dead letter leads to its payload: %s", got.body)
	}
	if got := post(t, s.url+"/try", pasted, bearerToken); got.StatusCode != http.StatusOK || !strings.Contains(got.body, "POST http://127.0.0.1") {
		t.Errorf("a pasted event answers %d %s", got.StatusCode, got.body)
	}
	if got := get(t, s.url+"/try?"+pasted.Encode(), bearer(wallToken)); strings.Contains(got.body, "mine") {
		t.Errorf("a link with a pasted event answers %s", got.body)
	}
	if got := post(t, s.url+"/try", pasted, bearer(wallToken)); got.StatusCode != http.StatusForbidden {
		t.Errorf("a pasted event of a read-only user answers %d", got.StatusCode)
	}
	if got := get(t, s.url+"/try", bearer(wallToken)); got.StatusCode != http.StatusOK || strings.Contains(got.body, "textarea") {
		t.Errorf("a read-only user sees %d %s", got.StatusCode, got.body)
	}
}

// TestTry_AnswerAlone: what an answer means is said without an event, and each pipeline offers its own sinks.
func TestTry_AnswerAlone(t *testing.T) {
	t.Parallel()
	s := open(t, `
  - name: bus
    source: {url: "sqlite://%s/bus.db"}
    sinks:
      - {name: log, url: "file://%s/log.ndjson"}
      - {name: hook, url: "http://127.0.0.1:9/hook", match: ["audit.#"]}
`)
	b := newTab(t, s)
	b.logIn()
	b.goTo("/try")
	testkit.Equal(t, "choices", value[string](b, "[...document.querySelectorAll('[name=of] option')].map(e => e.value).join(' ')"), "orders bus/log bus/hook")
	b.set("[name=status]", "422")
	b.set("[name=body]", `{"message": "no"}`)
	b.click(".try button")
	b.see("What the answer means", "The event is rejected", "tried with an example event")
	b.set("[name=of]", "bus/hook")
	b.click(".try button")
	b.see(`"topic": "audit.example"`, "What the answer means")
	testkit.Equal(t, "choice that stays", value[string](b, "document.querySelector('[name=of]').value"), "bus/hook")
	b.expectAccessible("try-answer-alone")
	testkit.Equal(t, "an error is shown", b.has(".bad[role=alert]"), false)
	b.expectQuiet()
}
