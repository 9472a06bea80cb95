package console_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/audit"
	"github.com/outboxrelay/relay/internal/console"
	"github.com/outboxrelay/relay/internal/testkit"
)

// tabTo presses the tab key until the element of a selector has the focus.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent("\t"))
		if value[bool](b, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
	}
	b.t.Fatalf("the tab key does not reach %s in\n%s", selector, b.text())
}

// TestKeyboard: without a mouse somebody skips to the content, opens the dead letters, selects one and discards it with a reason.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	b := newTab(t, s)
	b.logIn()
	b.goTo("/")
	b.tabTo(".skip")
	b.do(chromedp.KeyEvent("\r"))
	testkit.Eventually(t, func() error {
		if at := value[string](b, "location.hash"); at != "#main" {
			return fmt.Errorf("the page is at %q", at)
		}
		return nil
	})
	b.goTo("/")
	b.tabTo("nav a[href$=dead]")
	if outline := value[string](b, "getComputedStyle(document.activeElement).outlineStyle"); outline == "none" {
		t.Error("the element that has the focus does not show it")
	}
	b.do(chromedp.KeyEvent("\r"))
	b.see("All 1, the last to die first")
	b.tabTo("[name=chosen]")
	b.do(chromedp.KeyEvent(" "))
	b.tabTo("button[value=discard]")
	b.do(chromedp.KeyEvent("\r"))
	b.see("Discard 1 dead letter?")
	b.tabTo("[name=reason]")
	b.do(chromedp.KeyEvent("by hand"))
	b.tabTo("button[value=discard]")
	b.do(chromedp.KeyEvent("\r"))
	b.see("1 discarded.")
	testkit.Equal(t, "closed", s.count(t, "SELECT count(*) FROM outbox_dead_letters WHERE closed_reason = 'by hand'"), 1)
	b.expectQuiet()
}

// TestTimes_Zone: times are those of the viewer's zone, with UTC on hover; without a script they are UTC.
func TestTimes_Zone(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	_, err := s.db.ExecContext(t.Context(), "UPDATE outbox_dead_letters SET died_at = '2026-01-02T03:04:05.000Z'")
	testkit.NoError(t, err)
	b := newTab(t, s)
	_, err = chromedp.Call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
	testkit.NoError(t, err)
	b.logIn()
	b.goTo("/dead/orders/1")
	b.see("Died", "8:34:05")
	if title := value[string](b, "document.querySelector('time[datetime^=\"2026-01-02\"]').title"); title != "2026-01-02 03:04:05 UTC" {
		t.Errorf("the mouse over the time shows %q", title)
	}
	if page := get(t, s.url+"/dead/orders/1", bearerToken); !strings.Contains(page.body, ">2026-01-02 03:04:05 UTC<") {
		t.Errorf("without a script the page is %s", page.body)
	}
	b.expectQuiet()
}

// TestPrefix: behind a reverse proxy that removes a path, login, live figures, links, forms and files work.
func TestPrefix(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.insert(t, "bad.order", `{"n": 1}`)
	s.expectDead(t, 1)
	to, err := url.Parse(s.url)
	testkit.NoError(t, err)
	proxy := httptest.NewServer(http.StripPrefix("/ops/relay", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}))
	t.Cleanup(proxy.Close)
	b := newTab(t, &site{url: proxy.URL + "/ops/relay"})
	b.goTo("/dead/orders/1")
	b.see("Log in")
	b.logIn()
	b.see("Live", "1 dead letter")
	for _, section := range []string{"batches", "dead", "doctor", "try", "activity"} {
		b.click("nav a[href$=" + section + "]")
		testkit.Eventually(t, func() error {
			at, err := evaluate[string](b, "location.pathname") // an error while the page changes
			if err == nil && at != "/ops/relay/"+section {
				err = fmt.Errorf("the link to %s leads to %s", section, at)
			}
			return err
		})
	}
	b.goTo("/dead/orders/1")
	b.click("button[value=discard]")
	b.see("Discard 1 dead letter?")
	b.click("main button[value=discard]")
	b.see("1 discarded.")
	b.goTo("/pipelines/orders")
	b.do(chromedp.WaitVisible(chromedp.Search(".plots canvas")))
	b.click("form[action='orders/pause'] button")
	b.see("Pause orders?")
	b.click("main form button")
	b.see("Paused.")
	b.click("header form button")
	b.see("admin.token")
	testkit.Equal(t, "at the end", value[string](b, "location.pathname"), "/ops/relay/login")
	b.expectQuiet()
}

// noPipelines is a source without pipelines.
type noPipelines struct{}

func (noPipelines) Report(context.Context, ...string) admin.Report { return admin.Report{} }
func (noPipelines) Changed(string)                                 {}
func (noPipelines) Pipelines() []admin.Pipeline                    { return nil }

// TestLogLevel_Browser: the level of the log is changed for ten minutes, after a question, and the page says until when and who did it.
func TestLogLevel_Browser(t *testing.T) {
	t.Parallel()
	level := new(slog.LevelVar)
	c := console.New(console.Config{
		Source: noPipelines{}, Guard: access.New(access.Token{Name: "admin", Secret: token}), Audit: audit.New(slog.New(slog.DiscardHandler)), Level: level, Log: slog.New(slog.DiscardHandler),
	})
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	b := newTab(t, &site{url: server.URL})
	b.goTo("/login")
	b.do(chromedp.SendKeys(chromedp.Search("[name=token]"), token+"\r"), chromedp.WaitVisible(chromedp.Search("#problems")))
	b.goTo("/activity")
	b.see("Log level", "info")
	b.set("[name=level]", "debug")
	b.click("main form button")
	b.see("Log at level debug for ten minutes?", "goes back to info by itself")
	testkit.Equal(t, "level before the answer", level.Level(), slog.LevelInfo)
	b.expectAccessible("level")
	b.click("main form button")
	b.see("The log level is debug now.", "debug until", "then info again", "admin, console, 127.0.0.1")
	testkit.Equal(t, "level", level.Level(), slog.LevelDebug)
	b.expectQuietBut("live")
}

// TestNarrow: on a phone the count of dead letters is seen without scrolling, and a table that goes on says so.
func TestNarrow(t *testing.T) {
	t.Parallel()
	s := open(t, `
  - name: shipments
    source: {url: "sqlite://%s/shipments.db"}
    sinks:
      - {name: warehouse, url: "file://%s/warehouse.ndjson"}
      - {name: audit, url: "file://%s/audit.ndjson", match: ["audit.#"]}
`)
	_, err := s.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1985)
		INSERT INTO outbox_dead_letters (pipeline, event_id, topic, payload, created_at, group_id, attempts, error, died_at)
		SELECT 'orders', i, 'bad.order', '1', '2026-01-02T03:04:05.123Z', '0198c0de-0000-7000-8000-' || printf('%012d', i), 3, 'no such tenant', '2026-01-02T03:04:05.123Z' FROM n`)
	testkit.NoError(t, err)
	s.waiting(t)
	b := newTab(t, s)
	b.do(chromedp.EmulateViewport(390, 844))
	b.logIn()
	b.see("1,985 dead letters", "orders: sink unavailable", "sink down", "idle")
	hidden := func(selector string) string {
		return value[string](b, fmt.Sprintf("[...document.querySelectorAll(%q)].filter(e => getComputedStyle(e).display != 'none' && e.getBoundingClientRect().right > e.closest('.scroll').getBoundingClientRect().right + 1).map(e => e.innerText).join(' | ')", selector))
	}
	testkit.Equal(t, "cells of the overview beyond the edge", hidden(".figures th, .figures td"), "")
	b.expectAccessibleAs("narrow-overview", "dark", 390)
	b.do(chromedp.EmulateViewport(390, 844))
	b.goTo("/dead")
	b.see("The newest 100 of 1,985")
	testkit.Equal(t, "cells of the list beyond the edge", hidden(".list th, .list td"), "")
	b.expectAccessibleAs("narrow-dead", "light", 390)
	b.do(chromedp.EmulateViewport(300, 844))
	b.goTo("/batches")
	b.see("All 1, the last claimed first", "more to the right")
	b.expectAccessibleAs("narrow-batches", "light", 390)
	b.expectQuiet()
}
