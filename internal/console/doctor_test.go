package console_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// openPostgres is open with a pipeline named orders on a PostgreSQL database.
func openPostgres(t *testing.T, database string) *site {
	t.Helper()
	dir, s := t.TempDir(), &site{api: newAPI(t)}
	text := fmt.Sprintf(`
admin: {listen: "", token: %s}
pipelines:
  - name: orders
    source: {url: "%s"}
    sink: {url: "%s/batch", results: '[.body.errors[]? | {id, error}]'}
`, token, database, s.api.server.URL)
	r, err := relay.Open(filepath.Join(dir, "relay.yaml"), relay.Options{Text: []byte(text), Log: slog.New(slog.DiscardHandler)})
	testkit.NoError(t, err)
	_, err = r.Migrate(t.Context())
	testkit.NoError(t, err)
	server := httptest.NewServer(r.Handler())
	s.url = server.URL
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-ended)
		server.Close()
		testkit.NoError(t, r.Close())
	})
	return s
}

// TestDoctor: what relay doctor finds is a page, with the open transactions, and each fix can be copied.
func TestDoctor(t *testing.T) {
	t.Parallel()
	database := testserver.OwnPostgres(t, testserver.PostgresOptions{}).URL
	s := openPostgres(t, database)
	u, err := url.Parse(database)
	testkit.NoError(t, err)
	u.RawQuery = "application_name=nightly%20report"
	forgotten, err := pgx.Connect(t.Context(), u.String())
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = forgotten.Close(context.WithoutCancel(t.Context())) })
	for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		_, err = forgotten.Exec(t.Context(), statement)
		testkit.NoError(t, err)
	}
	s.api.server.Close()
	b := newTab(t, s)
	b.logIn()
	b.click("nav a[href$=doctor]")
	end := fmt.Sprintf("SELECT pg_terminate_backend(%d) -- as a superuser", forgotten.PgConn().PID())
	b.see("Doctor: ", "Problem: sink", "connection refused", "Open transactions and replication slots", "nightly report", "idle in transaction", end, "checks are fine")
	testkit.Eventually(t, func() error { // the relay reports it a little later
		if n := value[float64](b, "document.querySelectorAll('.problem').length"); n != 1 || !b.has(".problem .hint + .hint, .problem .said + .hint") {
			b.goTo("/doctor?again=1")
			return fmt.Errorf("one fact has %v cards:\n%s", n, b.text())
		}
		return nil
	})
	b.expectAccessible("doctor")
	b.do(chromedp.WaitVisible(chromedp.Search("td .fix button")))
	value[bool](b, "navigator.clipboard.writeText = async (text) => { window.copied = text }; true")
	b.click("td .fix button")
	testkit.Eventually(t, func() error {
		if got := value[string](b, "window.copied || ''"); got != end {
			return fmt.Errorf("copied %q", got)
		}
		return nil
	})
	value[bool](b, "navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false; true")
	b.click("td .fix button")
	testkit.Eventually(t, func() error {
		if got := value[string](b, "getSelection().toString()"); got != end {
			return fmt.Errorf("without a clipboard %q is selected", got)
		}
		return nil
	})
	b.expectQuiet()
	page := get(t, s.url+"/doctor", bearerToken)
	if !strings.Contains(page.body, "<code>"+end) || strings.Contains(page.body, "pass-word") {
		t.Errorf("without a script the page is %s", page.body)
	}
}

// TestOverview_DatabaseAway: a page that is open says that the database is down, and goes on by itself when it is back.
func TestOverview_DatabaseAway(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	s := openPostgres(t, server.URL)
	b := newTab(t, s)
	b.logIn()
	b.see("Everything works.", "Live", "(this one)") // its relay has reported
	testkit.NoError(t, server.Kill())
	b.see("orders: database does not work", "nothing is lost. What was being sent may be sent again, under the same group_id.", "unknown", "Relays: the database does not answer; these reported before", "(this one)")
	b.expectAccessibleAs("overview-database-away", "light", 1280)
	for path, what := range map[string]string{"/dead": "orders: ", "/batches": "orders: ", "/pipelines/orders": "database does not work", "/dead/orders/1": "Service Unavailable"} {
		b.goTo(path)
		b.see(what)
		if text := b.text(); strings.Contains(text, "No dead letter matches") || strings.Contains(text, "No batch is live") {
			t.Errorf("%s says that all is well: %s", path, text)
		}
	}
	b.goTo("/")
	b.see("Live", "orders: database does not work")
	testkit.NoError(t, server.Start(t.Context()))
	b.see("Everything works.")
	b.expectQuietBut("503")
}
