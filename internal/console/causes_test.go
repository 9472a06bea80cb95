package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// cards are the titles of the problems, with the pipelines that they name.
func (b *tab) cards() []string {
	b.t.Helper()
	all, err := evaluate[[]string](b, "[...document.querySelectorAll('#problems article h2')].map(e => e.innerText)")
	if err != nil { // the page is loaded again
		return nil
	}
	return all
}

// expectCards waits until the problems have these titles, in any order.
func (b *tab) expectCards(want ...string) {
	b.t.Helper()
	slices.Sort(want)
	testkit.Eventually(b.t, func() error {
		got := b.cards()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("the cards are %q, want %q, on\n%s", got, want, b.text())
		}
		return nil
	})
}

// TestOverview_OneCause: one API with several paths, one Redis and one database are one problem each, whichever path, key or operation an error names, and the
// problem leads to each pipeline.
func TestOverview_OneCause(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	cache, err := testserver.StartRedis(t.Context(), "--maxmemory", "1")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, cache.Close()) })
	crm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"message": "The access token expired"}`, http.StatusUnauthorized)
	}))
	t.Cleanup(crm.Close)
	s := open(t, fmt.Sprintf(`
  - {name: invoices, source: {url: "%[1]s", table: invoices}, sink: {url: "%[2]s/billing/invoices"}}
  - {name: shipments, source: {url: "%[1]s", table: shipments}, sink: {url: "%[2]s/wms/shipments"}}
  - {name: contacts, source: {url: "%[1]s", table: contacts}, sinks: [{name: crm, url: "%[2]s/crm/events"}, {name: log, url: "%[3]s", stream: "contacts.{topic}"}]}
  - {name: emails, source: {url: "%[1]s", table: emails}, sink: {url: "%[3]s", mode: list, list: "mail:{topic}"}}
`, server.URL, crm.URL, cache.URL))
	db, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) }) // its server is killed
	for _, table := range []string{"invoices", "shipments", "contacts", "emails"} {
		_, err := db.Exec(t.Context(), "INSERT INTO "+table+` (topic, payload) VALUES ('changed', '{"n": 1}'), ('made', '{"n": 2}')`)
		testkit.NoError(t, err)
	}
	b := newTab(t, s)
	b.logIn()
	b.expectCards("invoices, shipments and contacts/crm: sink does not accept the credentials", "contacts/log and emails: sink is full")
	b.see("4 of 5 pipelines need attention.", "2 of 2 sinks stand still", "what waits: invoices, shipments, contacts/crm")
	links := value[[]string](b, "[...document.querySelectorAll('#problems article')].map(e => [...e.querySelectorAll('dd a')].map(a => a.getAttribute('href')).join(' '))")
	slices.Sort(links)
	testkit.Equal(t, "links", strings.Join(links, "\n"), "pipelines/contacts#waits pipelines/emails#waits\npipelines/invoices#waits pipelines/shipments#waits pipelines/contacts#waits")
	b.expectAccessible("one-cause")
	testkit.NoError(t, server.Kill())
	b.expectCards("invoices, shipments, contacts and emails: database does not work", "invoices, shipments and contacts/crm: sink does not accept the credentials", "contacts/log and emails: sink is full")
	b.see("its database does not work: see above", "connection refused") // at first that the server ended the session
	if n := strings.Count(b.text(), "connection refused"); n != 1 {
		t.Errorf("the error of the database is shown %d times:\n%s", n, b.last)
	}
	b.expectQuiet()
}

// TestOverview_RefusesAll: a sink that refuses everything is one card, which names the topic, and no other one says that good events are sent.
func TestOverview_RefusesAll(t *testing.T) {
	t.Parallel()
	var right atomic.Bool
	wms := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !right.Load() {
			http.Error(w, `{"detail": "unknown warehouse"}`, http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(wms.Close)
	s := open(t, fmt.Sprintf(`  - {name: shipments, source: {url: "sqlite://%%s/orders.db", table: shipments}, sink: {url: "%s/wms"}}`, wms.URL))
	b := newTab(t, s)
	b.logIn()
	b.see("Live")
	for range 4 {
		_, err := s.db.ExecContext(t.Context(), `INSERT INTO shipments (topic, payload) VALUES ('parcel.sent', '1'), ('parcel.sent', '2'), ('parcel.sent', '3'), ('parcel.sent', '4')`)
		testkit.NoError(t, err)
	}
	b.see("shipments: sink refuses what it gets", "unknown warehouse", "that wait were looked at: they are all of topic parcel.sent.")
	b.see("refusing ") // its relay has reported it, with its notices
	b.expectCards("shipments: sink refuses what it gets")
	b.expectAccessible("refuses-all")
	right.Store(true)
	b.see("shipments", "worth a look", "the relay halves the batch") // among good ones it is true
}

// TestOverview_Dying: a topic that the sink refuses is one problem, and the headline says which share of the events dies.
func TestOverview_Dying(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	b := newTab(t, s)
	b.logIn()
	seen := map[string]bool{}
	testkit.Eventually(t, func() error {
		s.insert(t, "order.created", `{"n": 1}`)
		s.insert(t, "bad.order", `{"n": 2}`)
		cards := b.cards()
		if seen[fmt.Sprint(len(cards), " cards")] = true; len(cards) > 1 {
			t.Errorf("the only cause has the cards %q", cards)
		}
		if text := b.text(); !strings.Contains(text, "In the last minute, 50 % of orders became dead letters.") || !strings.Contains(text, "moving, 50 % died") || !strings.Contains(text, "50 % of what orders got") {
			return fmt.Errorf("the page is\n%s", text)
		}
		return nil
	})
	b.see("The pipeline needs attention.", "ll of topic bad.order: no such tenant", " ago)")
	b.expectAccessible("dying")
	testkit.Equal(t, "it is as loud as one that stands still", b.has("#problems article.warning"), false)
	b.expectQuiet()
}

// TestPipeline_Waits: what waits adds up, with the batches that no relay could try yet, and stands above the charts.
func TestPipeline_Waits(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	s.waiting(t)
	_, err := s.db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)
		INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events, first_id, last_id, oldest_at)
		SELECT '0198c0de-0000-7000-8000-' || printf('%012d', i), 'outbox_events', 'stamp', 'waiting', 1, '2099-01-01T00:00:00.000Z', 'host/1/orders', 0, 0, 0, 7, 900 + i, 900 + i, '2026-01-01T00:00:00.000Z' FROM n`)
	testkit.NoError(t, err)
	b := newTab(t, s)
	b.logIn()
	b.seeAt("/pipelines/orders", "31 batches wait, with 213 events.")
	b.see("30 batches wait (210 events), not tried yet", "1 batch waits (3 events)", "closed for <b>maintenance</b>")
	b.click("a.brand")
	b.see("orders: sink unavailable")
	b.click("#problems dd a")
	b.see("What waits")
	if !value[bool](b, "location.hash === '#waits' && !!(document.querySelector('#waits').compareDocumentPosition(document.querySelector('.charts')) & Node.DOCUMENT_POSITION_FOLLOWING)") {
		t.Error("the link leads not to what waits, or that is below the charts")
	}
	b.goTo("/batches")
	b.see("not tried yet: a relay has claimed it, and sends it once it can")
	b.expectQuiet()
}
