package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testkit"
)

// waiting claims three events in a batch that waits for the API.
func (s *site) waiting(t *testing.T) (group string) {
	t.Helper()
	s.api.away.Store(true)
	_, err := s.db.ExecContext(t.Context(), `INSERT INTO outbox_events (topic, payload) VALUES ('order.created', '{"n": 1}'), ('order.created', '{"n": 2}'), ('order.created', '{"n": 3}')`)
	testkit.NoError(t, err)
	testkit.Eventually(t, func() error {
		return s.db.QueryRowContext(t.Context(), "SELECT group_id FROM outbox_batches WHERE state = 'waiting' AND events = 3").Scan(&group)
	})
	return group
}

// TestBatches: what waits and why; one is retried and divided, with a second consent if it may have been sent.
func TestBatches(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	b := newTab(t, s)
	b.logIn()
	b.click("nav a[href$=batches]")
	b.see("No batch is live")
	group := s.waiting(t)
	b.goTo("/batches")
	b.see("All 1, the last claimed first", "orders", "closed for <b>maintenance</b>")
	b.expectAccessible("batches")
	b.click(".list tbody th a")
	b.see("Batch of 3 events", "closed for <b>maintenance</b>", group)
	b.expectAccessible("batch")
	b.click("a[href*='batch=" + group + "']")
	b.see("These are the first events of the batch", "Request for events 1, 2, 3", "POST http://127.0.0.1", `"topic": "order.created"`)
	b.expectAccessible("try-batch")
	b.do(chromedp.SendKeys(chromedp.Search("[name=status]"), "422"))
	b.set("#body", `{"errors": [{"id": "2", "error": "no stock"}]}`)
	b.click("main form button")
	b.see("event 1: delivered", "event 2: rejected", "no stock")
	b.goTo("/try?show=1&pipeline=orders&batch=" + uuid.NewString())
	b.see("the batch is finished")
	b.goTo("/try?show=1&pipeline=orders&batch=x")
	b.see("expected its group_id")
	for retried := false; !retried; { // the relay may have it now and then
		b.clickAt("/batches/orders/"+group, "form[action$=retry] button")
		b.see("Retry this batch now?", "one more of its attempts")
		b.expectAccessible("batch-retry")
		b.click("main form button")
		b.seeEither("The batch is due now.", "a relay has taken the batch meanwhile")
		retried = strings.Contains(b.last, "The batch is due now.")
	}

	b.clickAt("/batches/orders/"+group, "form[action$=divide] button")
	b.see("Divide this batch of 3 events?", "may have accepted this batch already", "Its events may arrive twice")
	b.expectAccessible("batch-divide")
	divide := func(form url.Values) answer {
		form.Set("confirmed", "1")
		return post(t, s.url+"/batches/orders/"+group+"/divide", form, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
	}
	if got := divide(url.Values{}); got.StatusCode != http.StatusConflict || !strings.Contains(got.body, "nothing was changed") {
		t.Errorf("without the second consent it answers %d %s", got.StatusCode, got.body)
	}
	testkit.Eventually(t, func() error { // the relay may have it now and then
		if got := divide(url.Values{"doubled": {"1"}}); got.StatusCode != http.StatusSeeOther {
			return fmt.Errorf("it answers %d %s", got.StatusCode, got.body)
		}
		return nil
	})
	testkit.Equal(t, "batches", s.count(t, "SELECT count(*) FROM outbox_batches WHERE events < 3"), 2)
	if got := divide(url.Values{"doubled": {"1"}}); got.StatusCode != http.StatusNotFound || !strings.Contains(got.body, "this batch is finished") {
		t.Errorf("once more it answers %d %s", got.StatusCode, got.body)
	}
	s.api.away.Store(false)
	testkit.Eventually(t, func() error {
		if n := s.count(t, "SELECT count(*) FROM outbox_events"); n > 0 {
			return fmt.Errorf("%d events are left", n)
		}
		return nil
	})
	b.goTo("/batches?pipeline=orders")
	b.see("No batch is live")
	b.goTo("/activity")
	b.see("retry batch", "divide batch", "batch "+group+", may have been sent", "admin, console")
	for path, want := range map[string]string{"/batches?pipeline=nothing": "does not exist", "/batches/orders/x": "is no group_id", "/batches/nothing/" + group: "does not exist"} {
		b.goTo(path)
		b.see(want)
	}
	b.expectQuietBut("4")
}

// TestBatches_LeasedAndForged: a batch that a relay has stays its own, and another site, or nobody, changes none.
func TestBatches_LeasedAndForged(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	group := s.waiting(t)
	bearer := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	session := post(t, s.url+"/login", url.Values{"token": {token}}).Cookies()[0]
	form := url.Values{"confirmed": {"1"}, "doubled": {"1"}}
	for _, action := range []string{"retry", "divide"} {
		path := s.url + "/batches/orders/" + group + "/" + action
		if got := post(t, path, form); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a session answers %d", action, got.StatusCode)
		}
		if got := post(t, path, form, func(r *http.Request) { r.AddCookie(session); r.Header.Set("Sec-Fetch-Site", "cross-site") }); got.StatusCode != http.StatusForbidden {
			t.Errorf("a forged %s answers %d", action, got.StatusCode)
		}
	}
	_, err := s.db.ExecContext(t.Context(), `INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, error)
		VALUES ('0198c0de-0000-7000-8000-000000000001', 'outbox_events', 'stamp', 'leased', 3, '2099-01-01T00:00:00.000Z', 'host/1/orders', 4, 0, 0, 7, 900, 906, '2026-01-01T00:00:00.000Z', '<script>document.title="pwned"</script>`+"\u202e"+`')`)
	testkit.NoError(t, err)
	leased := "/batches/orders/0198c0de-0000-7000-8000-000000000001"
	b := newTab(t, s)
	b.logIn()
	b.goTo("/batches")
	b.see("with a relay", "host/1", "suspect: sent alone", "900")
	b.expectAccessible("batches-leased")
	b.goTo(leased)
	b.see("Only a batch that waits can be retried or divided.")
	b.expectAccessible("batch-leased")
	if n := value[float64](b, "document.querySelectorAll('main form, main script').length"); n != 0 || value[string](b, "document.title") == "pwned" || strings.Contains(b.text(), "\u202e") {
		t.Errorf("a leased batch has %v forms or scripts, or a reason that turns text around", n)
	}
	if got := post(t, s.url+leased+"/divide", form, bearer); got.StatusCode != http.StatusConflict || !strings.Contains(got.body, "a relay has it") {
		t.Errorf("divide of a leased batch answers %d %s", got.StatusCode, got.body)
	}
	// What the user of a retry wants happens already.
	got := post(t, s.url+leased+"/retry", form, bearer)
	_, query, ok := strings.Cut(got.Header.Get("Location"), "?")
	if got.StatusCode != http.StatusSeeOther || !ok {
		t.Errorf("retry of a leased batch answers %d %s", got.StatusCode, got.Header.Get("Location"))
	}
	if page := get(t, s.url+"/batches?"+query, bearer).body; !strings.Contains(page, "a relay has taken the batch meanwhile") {
		t.Errorf("after a retry of a leased batch, the batches say\n%s", page)
	}
	testkit.Equal(t, "changed batches", s.count(t, "SELECT count(*) FROM outbox_batches WHERE owner = 'host/1/orders' AND lease_no <> 3"), 0)
	b.expectQuiet()
}

// TestBatches_Many: a page has the newest 200, and says how many there are.
func TestBatches_Many(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	_, err := s.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
		INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at, error)
		SELECT '0198c0de-0000-7000-8000-' || printf('%012d', i), 'outbox_events', 'stamp', 'waiting', 1, '2099-01-01T00:00:00.000Z', 'host/1/orders', 0, 2, 0, 7, i, i, '2026-01-01T00:00:00.000Z', '400 Bad Request' FROM n`)
	testkit.NoError(t, err)
	got := get(t, s.url+"/batches", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
	if n := strings.Count(got.body, `scope="row"`); n != 200 || !strings.Contains(got.body, "The newest 200 of 3,000; 2,800 older ones are not shown") || len(got.body) > 250_000 {
		t.Errorf("the page has %d rows and %d bytes", n, len(got.body))
	}
}

// TestRetry_BeingSent: what a relay sends at that moment does not wait, and the answer says so.
func TestRetry_BeingSent(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(slow.Close)
	s := open(t, fmt.Sprintf(`  - {name: bills, source: {url: "sqlite://%%s/orders.db", table: bills}, sink: {url: "%s"}}`, slow.URL))
	t.Cleanup(func() { close(answer) }) // before the relay stops
	b := newTab(t, s)
	b.logIn()
	retry := func(text string) {
		t.Helper()
		got := post(t, s.url+"/pipelines/bills/retry", url.Values{"confirmed": {"1"}}, bearer(token))
		testkit.Equal(t, "status", got.StatusCode, http.StatusSeeOther)
		b.goTo("/pipelines/" + strings.TrimPrefix(got.Header.Get("Location"), "../"))
		if !strings.Contains(b.text(), text) {
			t.Errorf("%q is not on\n%s", text, b.last)
		}
		testkit.Equal(t, "it is said as if something were changed", b.has(".done:not(.nothing)"), false)
	}
	retry("Nothing waits.")
	_, err := s.db.ExecContext(t.Context(), `INSERT INTO bills (topic, payload) VALUES ('sent', '1')`)
	testkit.NoError(t, err)
	<-asked
	retry("Nothing was changed: 1 batch is being sent at this moment.")
	b.expectAccessibleAs("retry-being-sent", "light", 1280)
	b.expectQuiet()
}
