package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testkit"
)

// limited returns a configuration with the sink whose role sees of other sessions no more than that they exist.
func limited(t *testing.T, db *database, sink string) (path string) {
	t.Helper()
	role := "limited_" + strings.ToLower(db.conn.Config().Database)
	db.exec("CREATE ROLE " + role + " LOGIN PASSWORD 's3cret'")
	db.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + role)
	db.exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + role)
	t.Cleanup(func() { db.execLast("DROP OWNED BY "+role, "DROP ROLE "+role) })
	at := strings.LastIndex(db.url, "@")
	return write(t, "admin: {listen: ''}\npipelines:\n  - {name: orders, source: {url: 'postgres://"+role+":s3cret"+db.url[at:]+"'}, sink: {url: '"+sink+"'}}\n")
}

// Another transaction has locked events that were sent: status and doctor name it, say that it keeps their delete, and how it ends and as whom.
func TestStatus_RowLocks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var (
		once  sync.Once
		sent  = make(chan struct{})
		reply = make(chan struct{})
	)
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(sent) })
		<-reply
	}))
	t.Cleanup(api.Close)
	t.Cleanup(sync.OnceFunc(func() { close(reply) }))
	path := limited(t, db, api.URL)
	db.insert(1)
	r := start(t, nil, "run", "-c", path)
	testkit.Receive(t, "a request", sent)
	holder, err := pgx.Connect(t.Context(), db.url)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close(context.WithoutCancel(t.Context())) })
	for _, sql := range []string{"SET application_name = 'forgotten'", "BEGIN", "SELECT FROM outbox_events FOR UPDATE"} {
		_, err := holder.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	reply <- struct{}{}
	end := fmt.Sprintf(" > SELECT pg_terminate_backend(%d) -- as a superuser", holder.PgConn().PID())
	testkit.Eventually(t, func() error {
		status := do(t, nil, "status", "-c", path)
		_, line, _ := strings.Cut(status.stdout, "orders: 1 batch was sent, and is deleted when no other transaction locks its rows: ")
		line, _, _ = strings.Cut(line, "\n")
		if !strings.Contains(line, `application "forgotten"`) || !strings.HasSuffix(line, end) {
			return fmt.Errorf("status prints %s%s", status.stdout, status.stderr)
		}
		return nil
	})
	got := doctorJSON(t, path, 0)
	if says := got.find("orders", "warning", "row locks"); !strings.Contains(says, "1 batch was sent, and is deleted when no other transaction locks its rows; it is not sent again") ||
		strings.Contains(says, "does not claim") || !strings.HasSuffix(says, end) {
		t.Errorf("doctor prints %s", says)
	}
	_, err = holder.Exec(t.Context(), "ROLLBACK")
	testkit.NoError(t, err)
	r.signal(syscall.SIGTERM)
	testkit.Equal(t, "exit status", r.exit(), 0)
}

// A transaction that has locked the event table lets everybody read, and nobody insert: status and doctor name it, and not the application's transaction that waits for it.
func TestStatus_TableLocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	path := limited(t, db, "stdout:")
	holder, err := pgx.Connect(t.Context(), db.url)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close(context.WithoutCancel(t.Context())) })
	victim, err := pgx.Connect(t.Context(), db.url)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = victim.Close(context.WithoutCancel(t.Context())) })
	exec := func(conn *pgx.Conn, sql string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	exec(holder, "SET application_name = 'schema-change'")
	exec(holder, "BEGIN")
	exec(holder, "LOCK TABLE outbox_events IN SHARE MODE")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := victim.Exec(context.WithoutCancel(t.Context()), "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
		testkit.NoError(t, err)
	}()
	end := fmt.Sprintf(" > SELECT pg_terminate_backend(%d) -- as a superuser", holder.PgConn().PID())
	testkit.Eventually(t, func() error {
		got := do(t, nil, "status", "-c", path)
		_, line, _ := strings.Cut(got.stdout, "orders: table public.outbox_events is locked: statements wait for pid ")
		line, _, _ = strings.Cut(line, "\n")
		if !strings.Contains(line, `application "schema-change"`) || !strings.Contains(line, "the application cannot insert events until it ends") || !strings.Contains(line, end) {
			return fmt.Errorf("status prints %s%s", got.stdout, got.stderr)
		}
		if got := do(t, nil, "status", "-c", path, "--json"); !strings.Contains(got.stdout, `"waiting": 1`) {
			return fmt.Errorf("status prints %s", got.stdout)
		}
		return nil
	})
	says := fmt.Sprint(doctorJSON(t, path, 1))
	if !strings.Contains(says, "table public.outbox_events is locked") || strings.Contains(says, fmt.Sprintf("pg_terminate_backend(%d)", victim.PgConn().PID())) {
		t.Errorf("doctor prints %s", says)
	}
	exec(holder, "ROLLBACK")
	<-done
}

// While a transaction has locked the event table, a metric and a line of the log say so, and others that it is over.
func TestRun_TableLocked(t *testing.T) {
	t.Parallel()
	db, admin := newDatabase(t), freeAddress(t)
	r := start(t, nil, "run", "-c", write(t, `admin: {listen: "`+admin+`"}
pipelines:
  - {name: orders, source: {url: "`+db.url+`"}, sink: {url: "stdout:"}}
`))
	r.waitForLog("pipeline runs")
	holder, err := pgx.Connect(t.Context(), db.url)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close(context.WithoutCancel(t.Context())) })
	is := func(want string) {
		t.Helper()
		testkit.Eventually(t, func() error {
			if got := openMetrics(t, "http://"+admin+"/metrics"); !strings.Contains(got, `relay_source_table_locked{pipeline="orders"} `+want+"\n") {
				return fmt.Errorf("the metric is not %s in %s", want, got)
			}
			return nil
		})
	}
	is("0")
	for _, sql := range []string{"BEGIN", "LOCK TABLE outbox_events IN SHARE MODE"} {
		_, err := holder.Exec(t.Context(), sql)
		testkit.NoError(t, err)
	}
	is("1")
	r.waitForLog(`level=WARN msg="table locked by another transaction" pipeline=orders table=public.outbox_events kind=transaction pid=` + strconv.Itoa(int(holder.PgConn().PID())))
	_, err = holder.Exec(t.Context(), "ROLLBACK")
	testkit.NoError(t, err)
	is("0")
	r.waitForLog(`level=INFO msg="table no longer locked" pipeline=orders table=public.outbox_events after=`)
	r.signal(syscall.SIGTERM)
	testkit.Equal(t, "exit status", r.exit(), 0)
}
