package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
)

// openSnapshot opens a transaction with a snapshot and returns when it is older than warn_after, a second.
func openSnapshot(t *testing.T, db *database, application string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(db.url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // it may have been ended
	for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	testserver.Eventually(t, func() error {
		if db.count("SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int AND xact_start < clock_timestamp() - interval '1 second'", int64(conn.PgConn().PID())) == 0 {
			return fmt.Errorf("the transaction is too young")
		}
		return nil
	})
	return conn
}

// twoOn has two pipelines on one database.
func twoOn(db *database, listen, supervisor string) string {
	return "admin: {listen: \"" + listen + "\"}\npipelines:\n" +
		"  - {name: orders, source: {url: '" + db.url + "', supervisor: " + supervisor + "}, sink: {url: 'stdout:'}}\n" +
		"  - {name: bills, source: {url: '" + db.url + "', table: bills, supervisor: {warn_after: 1s}}, sink: {url: 'stdout:'}}\n"
}

// Status, doctor and the dashboard name the transaction that blocks vacuum. Run logs it once for both pipelines, and
// terminates its session if configured.
func TestSupervisor_TerminatesBlocker(t *testing.T) {
	t.Parallel()
	// On a server of its own: what other tests write would hold this database back, too.
	db := newDatabaseAt(t, testserver.OwnPostgres(t, testserver.PostgresOptions{}).URL)
	listen := freeAddress(t)
	path := write(t, twoOn(db, listen, "{warn_after: 1s, terminate_after: 1h}"))
	if r := do(t, nil, "migrate", "-c", path); r.code != 0 {
		t.Fatal(r.stderr)
	}
	blocker := openSnapshot(t, db, "nightly report")
	pid := blocker.PgConn().PID()
	who := fmt.Sprintf(`(pid %d, user relay, application "nightly report", database %s, idle in transaction, its last query began `, pid, db.conn.Config().Database)

	status := do(t, nil, "status", "-c", path)
	status.want(t, 0, "\nall pipelines: vacuum is blocked: a transaction is open for ", "")
	if n := strings.Count(status.stdout, "vacuum is blocked"); n != 1 {
		t.Errorf("%d lines name the transaction", n)
	}
	status.want(t, 0, who, "")
	var report struct {
		Pipelines []struct {
			Blocker *struct {
				PID  uint32
				Age  float64 `json:"age_seconds"`
				Kind string
			} `json:"vacuum_blocked_by"`
		}
	}
	if err := json.Unmarshal([]byte(do(t, nil, "status", "-c", path, "--json").stdout), &report); err != nil {
		t.Fatal(err)
	}
	if h := report.Pipelines[0].Blocker; h == nil || h.PID != pid || h.Age < 1 || h.Kind != "transaction" {
		t.Errorf("the blocker is %+v", h)
	}
	d := doctorJSON(t, path, 0)
	if got := d.find("orders", "warning", "vacuum horizon"); !strings.Contains(got, who) || !strings.Contains(got, fmt.Sprintf("> SELECT pg_terminate_backend(%d)", pid)) {
		t.Errorf("doctor prints %s", got)
	}

	r := start(t, nil, "run", "-c", path)
	r.waitForLog(fmt.Sprintf(`msg="vacuum blocked by long-running transaction" pipeline=orders,bills kind=transaction pid=%d application="nightly report" user=relay`, pid))
	metrics, _ := get(t, "http://"+listen+"/metrics", "")
	for _, pipeline := range []string{"orders", "bills"} {
		for _, kind := range []string{"prepared", "slot", "transaction"} {
			name := fmt.Sprintf(`relay_source_xmin_horizon_seconds{kind="%s",pipeline="%s"} `, kind, pipeline)
			if _, value, ok := strings.Cut(metrics, name); !ok || strings.HasPrefix(value, "NaN") || (kind == "transaction") == strings.HasPrefix(value, "0\n") {
				t.Errorf("%s of %s is %.20q", kind, pipeline, value)
			}
		}
	}
	testkit.Eventually(t, func() error { // a page may show the figures of ten seconds ago
		if page, _ := get(t, "http://"+listen+"/", ""); !strings.Contains(page, "bills</b>: a forgotten transaction blocks vacuum") {
			return fmt.Errorf("the page is %s", page)
		}
		return nil
	})
	if strings.Contains(r.stderr.String(), "pipeline=bills kind=") {
		t.Error("the database was observed twice")
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}

	ends := start(t, nil, "run", "-c", write(t, twoOn(db, "", "{warn_after: 1s, terminate_after: 1001ms, users: [relay], applications: [nightly report]}")))
	ends.waitForLog(fmt.Sprintf(`msg="session terminated" pipeline=orders,bills kind=transaction pid=%d`, pid))
	if _, err := blocker.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("the session was not terminated")
	}
}

// Run and doctor report the privilege that terminate_after needs, with the GRANT.
func TestSupervisor_MissingPrivilege(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	role := "poor_" + strings.ToLower(db.conn.Config().Database)
	db.exec("CREATE ROLE " + role + " LOGIN PASSWORD 's3cret'")
	db.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + role)
	db.exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + role)
	t.Cleanup(func() { db.execLast("DROP OWNED BY "+role, "DROP ROLE "+role) })
	at := strings.LastIndex(db.url, "@")
	path := write(t, "admin: {listen: ''}\npipelines:\n  - {name: orders, source: {url: 'postgres://"+role+":s3cret"+db.url[at:]+
		"', supervisor: {terminate_after: 1h}}, sink: {url: 'stdout:'}}\n")
	d := doctorJSON(t, path, 0)
	for about, grant := range map[string]string{"sessions": "pg_read_all_stats", "terminate_after": "pg_signal_backend"} {
		if got := d.find("orders", "warning", about); !strings.HasSuffix(got, "> GRANT "+grant+" TO "+role) {
			t.Errorf("%s is %q", about, got)
		}
	}
	r := start(t, nil, "run", "-c", path)
	for about, grant := range map[string]string{"sessions": "pg_read_all_stats", "terminate_after": "pg_signal_backend"} {
		r.waitForLog(` pipeline=orders subject=` + about + ` fix="GRANT ` + grant + " TO " + role)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// execLast runs statements at the end of the test.
func (d *database) execLast(statements ...string) {
	for _, statement := range statements {
		if _, err := d.conn.Exec(context.WithoutCancel(d.t.Context()), statement); err != nil {
			d.t.Error(err)
		}
	}
}

// TestStatus_HiddenTransaction: a role that may not see since when others' transactions are open says so, with the GRANT.
func TestStatus_HiddenTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabaseAt(t, testserver.OwnPostgres(t, testserver.PostgresOptions{}).URL)
	if r := do(t, nil, "migrate", "-c", write(t, onePipeline("orders", db.url, "stdout:"))); r.code != 0 {
		t.Fatal(r.stderr)
	}
	for _, statement := range []string{
		"CREATE ROLE poor LOGIN PASSWORD 'pass-word'",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO poor", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO poor",
	} {
		db.exec(statement)
	}
	u, err := url.Parse(db.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("poor", "pass-word")
	path := write(t, onePipeline("orders", u.String(), "stdout:"))
	if r := do(t, nil, "status", "-c", path); strings.Contains(r.stdout, "transaction") {
		t.Errorf("without a transaction status prints %s", r.stdout)
	}
	blocker := openSnapshot(t, db, "report")
	r := do(t, nil, "status", "-c", path)
	r.want(t, 0, fmt.Sprintf("orders: a transaction is open for at least 2s (pid %d, user relay, ", blocker.PgConn().PID()), "")
	r.want(t, 0, "role poor may not see since when, so nobody knows whether it was forgotten. > GRANT pg_read_all_stats TO poor\n", "")
	db.exec("GRANT pg_read_all_stats TO poor")
	if r := do(t, nil, "status", "-c", path); strings.Contains(r.stdout, "GRANT") {
		t.Errorf("with the GRANT status prints %s", r.stdout)
	}
}
