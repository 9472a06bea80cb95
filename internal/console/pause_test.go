package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPause: a pipeline and a sink are paused and resumed; the overview says since when, by whom and why, and the activity has it.
func TestPause(t *testing.T) {
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
	b.see("Everything works.")
	b.goTo("/pipelines/orders")
	b.click("form[action='orders/pause'] button")
	b.see("Pause orders?")
	b.expectAccessible("pause")
	b.do(chromedp.SendKeys(chromedp.Search("[name=reason]"), "the <b>CRM</b> moves"))
	b.click("main form button")
	b.see("Paused. Relays stop within seconds.", "paused for", ": the <b>CRM</b> moves", "Resume the pipeline")
	b.expectAccessible("pipeline-paused")
	b.goTo("/")
	b.see("1 of 2 pipelines is paused.", "orders: paused")
	b.goTo("/pipelines/orders")
	b.click("form[action='orders/resume'] button")
	b.see("Resume orders?")
	b.click("main form button")
	b.see("Resumed. Relays go on within a second.")
	b.goTo("/pipelines/bus")
	b.click("form[action='bus/pause']:has([value=audit]) button")
	b.see("Pause bus, sink audit?")
	b.click("main form button")
	b.see("audit: paused", "Resume sink audit")
	b.goTo("/")
	b.see("1 sink is paused.", "bus/audit: paused")
	b.see("audit: paused") // the row of the pipeline says which sink
	b.goTo("/activity")
	b.see("pause", "resume", "sink audit", "the <b>CRM</b> moves")
	b.see("Paused now, at whichever relay or by whichever command")

	as := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	got := post(t, s.url+"/pipelines/bus/pause", url.Values{"sink": {"crm"}, "confirmed": {"1"}}, as)
	if got.StatusCode != http.StatusNotFound || !strings.Contains(got.body, "no sink of table outbox_events is &#34;crm&#34;; expected audit or log") {
		t.Errorf("a pause of a sink that is not there answers %d %s", got.StatusCode, got.body)
	}
	got = post(t, s.url+"/pipelines/bus/pause", url.Values{"sink": {"audit"}, "confirmed": {"1"}}, as)
	to := strings.TrimPrefix(got.Header.Get("Location"), "../")
	if !strings.HasPrefix(to, "bus?done=") || strings.Contains(to, "paused") {
		t.Errorf("a second pause leads to %s", to)
	}
	for i, want := range []bool{true, false} { // once: a reload does not repeat it
		if page := get(t, s.url+"/pipelines/"+to, bearer(token)); strings.Contains(page.body, "It was paused before.") != want {
			t.Errorf("page %d says that it was paused before: %v", i, !want)
		}
	}
}

// TestChange_OtherProcess: what another process owns is not there, and nothing is changed.
func TestChange_OtherProcess(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	form := url.Values{"confirmed": {"1"}, "action": {"replay"}, "pipeline": {"bills"}}
	for _, path := range []string{"/pipelines/bills/pause", "/pipelines/bills/resume", "/pipelines/bills/retry", "/dead/change", "/dead/bills/1/edit", "/batches/bills/0198c0de-0000-7000-8000-000000000001/retry"} {
		got := post(t, s.url+path, form, bearerToken)
		if got.StatusCode < 400 || !strings.Contains(got.body, "pipeline &#34;bills&#34; does not exist in this relay") {
			t.Errorf("%s answers %d %s", path, got.StatusCode, got.body)
		}
	}
}
