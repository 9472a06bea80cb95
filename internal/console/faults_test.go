package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// TestOverview_Faults: of five faults at once the overview names each cause, and what to do.
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

	s := open(t, fmt.Sprintf(`
  - {name: shipping, source: {url: "%[1]s", table: shipping}, sink: {url: "%[2]s/batch"}}
  - {name: crm, source: {url: "%[1]s", table: crm}, sink: {url: "%[3]s/contacts"}}
  - {name: activity, source: {url: "%[1]s", table: activity}, sink: {url: "%[4]s", stream: activity}}
  - {name: reports, source: {url: "%[1]s", table: reports, supervisor: {warn_after: 1s}}, sink: {url: "file://%%s/reports.ndjson"}}
`, server.URL, away.URL, crm.URL, cache.URL))
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
		"reports: a forgotten transaction blocks vacuum", "monthly report", "idle in transaction", "pg_terminate_backend",
		"orders: 10 dead letters", "All of topic bad.invoice: no such tenant",
	)
	b.expectAccessible("faults")
}
