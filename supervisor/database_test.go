package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/supervisor"
)

// session connects with parameters of a URL, and opens a transaction with a snapshot.
func session(t *testing.T, server, user, parameters string) *pgx.Conn {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		u.User = url.UserPassword(user, "pass-word")
	}
	u.RawQuery = parameters
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // it may have been ended
	for _, statement := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"} {
		if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// alive reports whether the server still has a session with this process id.
func alive(t *testing.T, admin *pgx.Conn, pid uint32) bool {
	t.Helper()
	var n int
	if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid = $1::int", int64(pid)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n == 1
}

// watch runs a supervisor on a database for as long as the test takes.
func watch(t *testing.T, databaseURL string, w buffer.SupervisorPolicy) (*supervisor.Supervisor, *testkit.Output) {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: databaseURL, Pipeline: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	var log testkit.Output
	v, err := supervisor.New(b, supervisor.Config{
		Policies: []buffer.SupervisorPolicy{w}, Every: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := v.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wait.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if strings.Contains(log.Take(), "secret-") {
			t.Error("the log has a secret")
		}
	})
	return v, &log
}

// TestSupervisor_TerminatesExactlyTheRightSession: of all sessions that block vacuum.
func TestSupervisor_TerminatesExactlyTheRightSession(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{Settings: map[string]string{"wal_level": "logical"}})
	admin, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(t.Context())) })
	for _, statement := range []string{
		"CREATE ROLE reports LOGIN PASSWORD 'pass-word'", "CREATE ROLE shop LOGIN PASSWORD 'pass-word'",
		"CREATE ROLE root SUPERUSER LOGIN PASSWORD 'pass-word'", "CREATE ROLE copies REPLICATION LOGIN PASSWORD 'pass-word'",
	} {
		if _, err := admin.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	spared := map[string]uint32{
		"a relay's":           session(t, server.URL, "reports", "application_name=relay").PgConn().PID(),
		"a superuser's":       session(t, server.URL, "root", "application_name=nightly").PgConn().PID(),
		"another user's":      session(t, server.URL, "shop", "application_name=nightly").PgConn().PID(),
		"another application": session(t, server.URL, "reports", "application_name=psql").PgConn().PID(),
		"replication":         replica(t, server.URL, "copies").PID(),
	}
	// After the slot, whose creation waits for all writing transactions.
	if _, err := admin.Exec(t.Context(), "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'half'", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	blocker := session(t, server.URL, "reports", "application_name=nightly")
	_, log := watch(t, server.URL, buffer.SupervisorPolicy{
		WarnAfter: time.Millisecond, TerminateAfter: 2 * time.Millisecond,
		Users: []string{"reports", "copies"}, Applications: []string{"nightly", "relay"},
	})
	testkit.Eventually(t, func() error {
		if alive(t, admin, blocker.PgConn().PID()) {
			return errors.New("the blocker is still there")
		}
		return nil
	})
	// The next to be ended proves that all of them were looked at once more.
	second := session(t, server.URL, "reports", "application_name=nightly")
	testkit.Eventually(t, func() error {
		if alive(t, admin, second.PgConn().PID()) {
			return errors.New("the second is still there")
		}
		return nil
	})
	for what, pid := range spared {
		if !alive(t, admin, pid) {
			t.Errorf("%s session was ended", what)
		}
	}
	var prepared int
	if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_xacts").Scan(&prepared); err != nil || prepared != 1 {
		t.Errorf("%d prepared transactions are left, %v", prepared, err)
	}
	// The session ends before the statement that ended it returns.
	var text string
	testkit.Eventually(t, func() error {
		text = log.String()
		if n := strings.Count(text, `msg="session`); n != 2 {
			return fmt.Errorf("%d endings are in the log: %s", n, text)
		}
		return nil
	})
	want := fmt.Sprintf(`level=WARN msg="session terminated" kind=transaction pid=%d application=nightly user=reports database=postgres state="idle in transaction" age=`,
		blocker.PgConn().PID())
	if !strings.Contains(text, want) {
		t.Errorf("the log has no %q: %s", want, text)
	}
	for _, want := range []string{`kind="prepared transaction" name=half`, "application=relay", "user=root", `kind="replication slot" name=copy`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %q: %s", want, text)
		}
	}
	if _, err := admin.Exec(t.Context(), "ROLLBACK PREPARED 'half'"); err != nil {
		t.Error(err)
	}
}

// replica is a walsender with a snapshot, as a subscriber's first copy has one.
func replica(t *testing.T, server, user string) *pgconn.PgConn {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.RawQuery = url.UserPassword(user, "pass-word"), "replication=database&application_name=nightly"
	conn, err := pgconn.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	for _, statement := range []string{
		"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "CREATE_REPLICATION_SLOT copy TEMPORARY LOGICAL pgoutput USE_SNAPSHOT",
	} {
		if _, err := conn.Exec(t.Context(), statement).ReadAll(); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return conn
}

// TestSupervisor_MissingPrivileges: one warning at the start, with the GRANT; the supervisor keeps running.
func TestSupervisor_MissingPrivileges(t *testing.T) {
	t.Parallel()
	databaseURL := testserver.Postgres(t)
	admin, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	role := "poor_" + strings.ToLower(admin.Config().Database)
	for _, statement := range []string{"CREATE ROLE " + role + " LOGIN PASSWORD 'pass-word'", "GRANT pg_read_all_stats TO " + role} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
		_ = admin.Close(context.WithoutCancel(t.Context()))
	})
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "pass-word")
	blocker := session(t, databaseURL, "", "application_name=nightly")
	v, log := watch(t, u.String(), buffer.SupervisorPolicy{
		WarnAfter: time.Millisecond, TerminateAfter: 2 * time.Millisecond, Users: []string{"relay"}, Applications: []string{"nightly"},
	})
	var text string
	testkit.Eventually(t, func() error {
		if text += log.Take(); !strings.Contains(text, "terminating a session failed") || !strings.Contains(text, "must be a superuser") {
			return fmt.Errorf("got %q", text)
		}
		return nil
	})
	for _, want := range []string{`fix="GRANT pg_signal_backend TO ` + role, "the superuser relay, whose sessions role " + role + " may not terminate"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not there once: %s", want, text)
		}
	}
	if h, ok := v.Worst(); !ok || h.Age == 0 {
		t.Errorf("the worst is %+v, %v", h, ok)
	}
	if _, err := blocker.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Error(err)
	}
}
