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
	end := fmt.Sprintf("SELECT pg_terminate_backend(%d) -- as a superuser", db.PgConn().PID())
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

// TestOverview_TableLocked: a transaction that has locked a table is named as long as it is open, with what ends it, and neither the database is blamed nor the application's own
// transaction, which waits for it.
func TestOverview_TableLocked(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"SHARE", "ACCESS EXCLUSIVE"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
			s := open(t, fmt.Sprintf(`
  - {name: emails, source: {url: "%[1]s", table: emails, supervisor: {warn_after: 10s}}, sink: {url: "file://%%s/emails.ndjson"}}
  - {name: bills, source: {url: "%[1]s", table: bills, supervisor: {warn_after: 10s}}, sink: {url: "file://%%s/bills.ndjson"}}
`, server.URL))
			connect := func(statements ...string) *pgx.Conn {
				t.Helper()
				db, err := pgx.Connect(t.Context(), server.URL)
				testkit.NoError(t, err)
				t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) })
				for _, sql := range statements {
					_, err := db.Exec(t.Context(), sql)
					testkit.NoError(t, err)
				}
				return db
			}
			b := newTab(t, s)
			b.logIn()
			b.see("Live", "Everything works.")
			value[bool](b, `window.seen = new Set(); new MutationObserver(() => document.querySelectorAll("#problems h2, #problems code").forEach((e) => seen.add(e.textContent))).observe(document.querySelector("#problems"), { subtree: true, childList: true, characterData: true }); true`)
			admin := connect()
			holder := connect("SET application_name = 'schema-change'", "INSERT INTO emails (topic, payload) VALUES ('sent', '1')", "BEGIN", "LOCK TABLE emails IN "+mode+" MODE")
			shop := connect("SET application_name = 'shop'", "BEGIN", "INSERT INTO bills (topic, payload) VALUES ('sent', '1')")
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := shop.Exec(context.WithoutCancel(t.Context()), "INSERT INTO emails (topic, payload) VALUES ('sent', '1')")
				if err == nil {
					_, err = shop.Exec(context.WithoutCancel(t.Context()), "COMMIT")
				}
				if err != nil {
					t.Errorf("the application's transaction: %v", err)
				}
			}()
			end := fmt.Sprintf("SELECT pg_terminate_backend(%d) -- as a superuser", holder.PgConn().PID())
			const card = "emails: a transaction locks its table"
			b.see(card, "table public.emails is locked: statements wait for pid ", "schema-change", "the application cannot insert events until it ends", "table locked", end)
			if mode != "SHARE" { // the relay finds nothing to claim
				testkit.Eventually(t, func() error { // what it wants to do takes too long, too
					var why string
					if err := admin.QueryRow(t.Context(), "SELECT coalesce(max(not_ready), '') FROM outbox_relays WHERE buffer = 'public.emails'").Scan(&why); err != nil || !strings.Contains(why, "table public.emails is locked") {
						return fmt.Errorf("the relay reports %q: %w", why, err)
					}
					return nil
				})
			}
			b.see(card, "1 session waits for it.", end)
			seen := value[[]string](b, "[...seen]")
			slices.Sort(seen)
			testkit.Equal(t, "cards, and what was proposed", strings.Join(seen, "\n"), strings.Join([]string{end, card}, "\n"))
			b.expectAccessibleAs("table-locked-"+strings.ToLower(mode[:5]), "light", 1280)
			b.goTo("/doctor")
			b.see("Problem: table lock", "table public.emails is locked", end)
			b.goTo("/batches?pipeline=emails")
			b.see("emails: table public.emails is locked")
			b.goTo("/pipelines/emails")
			b.see("a transaction locks its table", end)
			testkit.Equal(t, "to copy", value[string](b, "[...document.querySelectorAll('.fix code')].map(e => e.innerText).join('\\n')"), end)
			if mode == "SHARE" { // whatever the mode is, for the other table it is the same
				b.expectWriterWaits("bills", "emails", end)
			}
			b.goTo("/")
			b.see(card)
			b.goTo("/doctor?again=1")
			if text := b.text(); strings.Contains(text, fmt.Sprintf("pg_terminate_backend(%d)", shop.PgConn().PID())) {
				t.Errorf("it proposes to end the application's transaction:\n%s", text)
			}
			b.goTo("/")
			_, err := admin.Exec(t.Context(), end)
			testkit.NoError(t, err)
			b.see("Everything works.")
			<-done
			b.expectQuiet()
		})
	}
}

// expectWriterWaits waits until the page of a pipeline says that a writer waits for the lock of another one's table, which the overview says on the card of that one.
func (b *tab) expectWriterWaits(pipeline, locked, end string) {
	b.t.Helper()
	b.seeAt("/pipelines/"+pipeline, "a writer waits for another transaction")
	b.see("nothing can be inserted into table public."+locked, ", a writer waits", end)
	if strings.Contains(b.last, "holds locks in their table") || strings.Contains(b.last, "holds locks in its table") {
		b.t.Errorf("the lock of another table is said to be one of this:\n%s", b.last)
	}
	b.expectAccessibleAs("writer-waits", "light", 1280)
	b.goTo("/")
	b.see(", a writer waits")
	b.expectCards(locked + ": a transaction locks its table")
	b.expectAccessibleAs("writer-waits-overview", "light", 400)
}

// TestOverview_LockedRow: a locked row that was not sent is named although the pipeline sends others, on the overview and on the page of batches, which has none to show.
func TestOverview_LockedRow(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	s := open(t, fmt.Sprintf(`
  - {name: shipments, order: key, source: {url: "%s", table: shipments}, sink: {url: "file://%%s/shipments.ndjson"}}
`, server.URL))
	connect := func() *pgx.Conn {
		t.Helper()
		db, err := pgx.Connect(t.Context(), server.URL)
		testkit.NoError(t, err)
		t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) })
		return db
	}
	app, holder := connect(), connect()
	exec := func(db *pgx.Conn, sql string) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	exec(holder, "SET application_name = 'night-cleanup'")
	exec(holder, "INSERT INTO shipments (topic, key, payload, available_at) VALUES ('sent', 'one', '1', now() + interval '10 seconds')") // locked before it is claimed
	exec(holder, "BEGIN")
	exec(holder, "SELECT id FROM shipments FOR UPDATE")
	b := newTab(t, s)
	b.logIn()
	end := fmt.Sprintf("SELECT pg_terminate_backend(%d) -- as a superuser", holder.PgConn().PID())
	const card = "shipments: a transaction blocks events: it holds locks in their table"
	for !strings.Contains(b.text(), card) || !strings.Contains(b.last, end) {
		exec(app, "INSERT INTO shipments (topic, key, payload) VALUES ('sent', 'other', '1')")
		b.waitFor(card)
	}
	b.see("moving, rows locked", "with order: key no later event of their keys is sent")
	b.clickAt("/batches?pipeline=shipments", ".problem .fix button")
	b.see("pending. Those that are in no batch are locked: a transaction is open", "night-cleanup", end)
	b.goTo("/doctor")
	b.see("Problem: row locks", end)
	exec(holder, "ROLLBACK")
	b.goTo("/")
	b.see("Everything works.")
	b.expectQuiet()
}

// TestOverview_DeliveredButLocked: a transaction that locks rows while the sink is away is the cause when the sink is back: the overview does not blame the sink, and
// the batch that is delivered says which session keeps it.
func TestOverview_DeliveredButLocked(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	var away atomic.Bool
	away.Store(true)
	wms := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(wms.Close)
	s := open(t, fmt.Sprintf(`
  - {name: shipments, order: key, source: {url: "%s", table: shipments}, sink: {url: "%s/wms"}}
`, server.URL, wms.URL))
	connect := func() *pgx.Conn {
		t.Helper()
		db, err := pgx.Connect(t.Context(), server.URL)
		testkit.NoError(t, err)
		t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) }) // one is ended
		return db
	}
	app, batch := connect(), connect()
	exec := func(db *pgx.Conn, sql string) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	exec(app, "INSERT INTO shipments (topic, key, payload, created_at) VALUES ('sent', 'one', '1', now() - interval '2 minutes')")
	b := newTab(t, s)
	b.logIn()
	b.see("shipments: sink unavailable")
	exec(batch, "SET application_name = 'wms-batch'")
	exec(batch, "BEGIN")
	exec(batch, "SELECT id FROM shipments FOR UPDATE")
	away.Store(false)
	kept := fmt.Sprintf(`the sink has accepted it; its events are deleted when pid %d (application "wms-batch") ends its transaction`, batch.PgConn().PID())
	for b.goTo("/batches?pipeline=shipments"); !strings.Contains(b.text(), kept); b.goTo("/batches?pipeline=shipments") {
		exec(app, "INSERT INTO shipments (topic, key, payload) VALUES ('sent', 'other', '1')")
		b.waitFor(kept)
	}
	b.see("delivered, to be deleted")
	b.goTo("/")
	b.see("Live", "shipments")
	if strings.Contains(b.last, "sink unavailable") || strings.Contains(b.last, "not ready") {
		t.Errorf("the sink is blamed, which works:\n%s", b.last)
	}
	b.expectAccessibleAs("locked", "light", 400)
	exec(batch, "ROLLBACK")
	b.see("Everything works.")
	b.expectQuiet()
}

// TestOverview_NoTables: an empty database, as after a restore, answers: the overview says that its tables are missing, once, with the command to copy.
func TestOverview_NoTables(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	s := open(t, fmt.Sprintf(`
  - {name: bills, source: {url: "%[1]s", table: bills}, sink: {url: "file://%%s/bills.ndjson"}}
  - {name: refunds, source: {url: "%[1]s", table: refunds}, sink: {url: "file://%%s/refunds.ndjson"}}
`, server.URL))
	b := newTab(t, s)
	b.logIn()
	b.see("Everything works.")
	db, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	for _, sql := range []string{"DROP SCHEMA public CASCADE", "CREATE SCHEMA public"} {
		_, err = db.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	testkit.NoError(t, db.Close(t.Context()))
	b.expectCards("bills and refunds: tables are missing")
	b.see("its tables are missing: see above", "relay migrate -c relay.yaml")
	testkit.Equal(t, "to copy", value[string](b, "document.querySelector('#problems .fix code').innerText"), "relay migrate -c relay.yaml")
	if strings.Contains(b.text(), "the database does not answer") {
		t.Errorf("it does answer:\n%s", b.last)
	}
	b.expectQuiet()
}

// TestOverview_NoSchema: schemas that are missing, too, are said first, with the statements that make them: relay migrate would ask for them.
func TestOverview_NoSchema(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	db, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	exec := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			_, err := db.Exec(t.Context(), sql)
			testkit.NoError(t, err)
		}
	}
	exec("CREATE SCHEMA r_bills", "CREATE SCHEMA r_refunds")
	s := open(t, fmt.Sprintf(`
  - {name: bills, source: {url: "%[1]s", table: bills, schema: r_bills}, sink: {url: "file://%%s/bills.ndjson"}}
  - {name: refunds, source: {url: "%[1]s", table: refunds, schema: r_refunds}, sink: {url: "file://%%s/refunds.ndjson"}}
`, server.URL))
	b := newTab(t, s)
	b.logIn()
	b.see("Everything works.")
	exec("DROP SCHEMA r_bills CASCADE", "DROP SCHEMA r_refunds CASCADE", "DROP TABLE bills, refunds")
	b.expectCards("bills and refunds: its schema is missing")
	b.see(`schema "r_bills" does not exist: CREATE SCHEMA "r_bills"`, `schema "r_refunds" does not exist`, "then its tables with relay migrate -c relay.yaml", "its schema is missing: see above")
	const fix = `CREATE SCHEMA "r_bills"; CREATE SCHEMA "r_refunds"`
	testkit.Equal(t, "to copy", value[string](b, "document.querySelector('#problems .fix code').innerText"), fix)
	b.expectAccessibleAs("no-schema", "light", 1280)
	exec(fix)
	b.expectCards("bills and refunds: tables are missing")
	b.expectQuiet()
}

// TestOverview_RelayGone: a relay that was killed is one card of all its pipelines, from the beginning, whenever each of them was reported last.
func TestOverview_RelayGone(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	s := open(t, fmt.Sprintf(`
  - {name: invoices, source: {url: "%[1]s", table: invoices}, sink: {url: "file://%%s/invoices.ndjson"}}
  - {name: emails, source: {url: "%[1]s", table: emails}, sink: {url: "file://%%s/emails.ndjson"}}
  - {name: bills, source: {url: "%[1]s", table: bills}, sink: {url: "file://%%s/bills.ndjson"}}
`, server.URL))
	b := newTab(t, s)
	b.logIn()
	b.see("Live", "Everything works.")
	value[bool](b, `window.seen = new Set(); new MutationObserver(() => document.querySelectorAll("#problems h2").forEach((e) => seen.add(e.textContent))).observe(document.querySelector("#problems"), { subtree: true, childList: true, characterData: true }); true`)
	db, err := pgx.Connect(t.Context(), server.URL)
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	_, err = db.Exec(t.Context(), `INSERT INTO outbox_relays (buffer, sink, owner, version, started_at, seen_at, delivered, dead, last_minute)
		SELECT 'public.' || name, '', 'other/99/' || name, 'v1', now() - interval '1 hour', now() + late, 0, 0, 0
		FROM (VALUES ('invoices', interval '0'), ('emails', interval '3 seconds'), ('bills', interval '6 seconds')) AS r(name, late)`)
	testkit.NoError(t, err)
	const card = "invoices, emails and bills: a relay is gone"
	b.see(card, "relay other/99, which reported last 2", "Everything moves, with warnings.")
	testkit.Equal(t, "cards", strings.Join(value[[]string](b, "[...seen]"), "\n"), card)
	b.expectAccessibleAs("relay-gone", "light", 1280)
	b.seeAt("/pipelines/emails", "a relay is gone")
	b.expectQuiet()
}
