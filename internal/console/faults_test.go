package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// fillStream makes a stream that takes no message more.
func fillStream(t *testing.T, url, subject string) {
	t.Helper()
	nc, err := nats.Connect(url)
	testkit.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	testkit.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "full", Subjects: []string{subject}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	testkit.NoError(t, err)
	_, err = js.Publish(t.Context(), strings.ReplaceAll(subject, "*", "first"), nil)
	testkit.NoError(t, err)
}

// TestOverview_Faults: of six faults at once the overview names each cause, and what to do.
func TestOverview_Faults(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	cache, err := testserver.StartRedis(t.Context(), "--maxmemory", "1")
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, cache.Close()) })
	crm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"message": "invalid access token"}`, http.StatusUnauthorized)
	}))
	t.Cleanup(crm.Close)
	away := httptest.NewServer(nil)
	away.Close() // connections to it are refused
	broker, err := testserver.StartNATS(t.TempDir())
	testkit.NoError(t, err)
	t.Cleanup(broker.Stop)
	fillStream(t, broker.URL, "returns.*")

	s := open(t, fmt.Sprintf(`
  - {name: shipping, source: {url: "%[1]s", table: shipping}, sink: {url: "%[2]s/batch"}}
  - {name: crm, source: {url: "%[1]s", table: crm}, sink: {url: "%[3]s/contacts"}}
  - {name: activity, source: {url: "%[1]s", table: activity}, sink: {url: "%[4]s", stream: activity}}
  - {name: returns, source: {url: "%[1]s", table: returns}, batch_size: 1, sink: {url: "%[5]s", subject: "{topic}"}}
  - {name: reports, source: {url: "%[1]s", table: reports, supervisor: {warn_after: 1s}}, sink: {url: "file://%%s/reports.ndjson"}}
`, server.URL, away.URL, crm.URL, cache.URL, broker.URL))
	db, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	exec := func(sql string) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}

	for _, table := range []string{"shipping", "crm", "activity"} {
		exec("INSERT INTO " + table + ` (topic, payload) VALUES ('changed', '{"n": 1}')`)
	}
	for range 4 { // each a batch; those after the second are not sent
		exec(`INSERT INTO returns (topic, payload) VALUES ('returns.sent', '{"n": 1}')`)
	}
	for i := range 10 {
		s.insert(t, "bad.invoice", fmt.Sprintf(`{"n": %d}`, i))
	}
	s.expectDead(t, 10)
	exec("SET application_name = 'monthly report'")
	exec("BEGIN ISOLATION LEVEL REPEATABLE READ")
	exec("SELECT count(*) FROM reports")

	b := newTab(t, s)
	b.logIn()
	b.see(
		"shipping: sink unavailable", "connection refused", "Check that the sink runs",
		"crm: sink does not accept the credentials", "invalid access token", "Find out whether the token",
		"activity: sink is full", "maxmemory", "Make space at the sink",
		"returns: sink is full", "maximum messages exceeded", "sink full", "no access",
		"reports: a forgotten transaction blocks vacuum", "monthly report", "idle in transaction", "pg_terminate_backend",
		"orders: 10 dead letters", "All of topic bad.invoice: no such tenant",
	)
	b.do(chromedp.EmulateViewport(390, 844))
	if on := value[float64](b, "[...document.querySelectorAll('.causes a')].filter(a => a.getBoundingClientRect().bottom < innerHeight).length"); on != 6 {
		t.Errorf("the first screen of a phone names %v causes, want 6", on)
	}
	b.expectAccessible("faults")
	for text := ""; strings.Count(text, "maximum messages exceeded") < 4; text = b.text() {
		if text != "" {
			b.waitFor("maximum messages exceeded, of each batch")
		}
		b.goTo("/batches?pipeline=returns")
	}
}

// TestOverview_RowLocks: a forgotten transaction that has locked rows of an ordered pipeline is named as what stops it.
func TestOverview_RowLocks(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	s := open(t, fmt.Sprintf(`
  - {name: shipments, order: key, source: {url: "%s", table: shipments}, sink: {url: "file://%%s/shipments.ndjson"}}
`, server.URL))
	db, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) }) // it is ended
	for _, sql := range []string{
		"SET application_name = 'night-cleanup'",
		"INSERT INTO shipments (topic, key, payload, available_at) VALUES ('sent', 'one', '1', now() + interval '10 seconds')", // locked before it is claimed
		"BEGIN", "SELECT id FROM shipments FOR UPDATE",
	} {
		_, err := db.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	b := newTab(t, s)
	b.logIn()
	end := fmt.Sprintf("SELECT pg_terminate_backend(%d)", db.PgConn().PID())
	b.see("shipments: stands still: a transaction holds locks in its table", "night-cleanup", "it holds locks in table public.shipments", end)
	if text := b.text(); strings.Contains(text, "is not slowed down") || strings.Contains(text, "Everything moves") {
		t.Errorf("the page also says that all is well:\n%s", text)
	}
	b.goTo("/doctor")
	b.see("which is where the events wait", end)
	other, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	_, err = other.Exec(t.Context(), end)
	testkit.NoError(t, err)
	testkit.NoError(t, other.Close(t.Context()))
	b.goTo("/")
	b.see("Everything works.")
}
