package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// logical is a server that can have slots, and where nothing begins by itself.
func logical(t *testing.T) *testserver.PostgresServer {
	return testserver.OwnPostgres(t, testserver.PostgresOptions{Settings: map[string]string{"wal_level": "logical", "autovacuum": "off"}})
}

// opened is a buffer on a database, which need not have tables.
func opened(t *testing.T, url string, w buffer.SupervisorPolicy) *postgres.Buffer {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Supervisor: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// session connects as an application of that name, and runs statements.
func session(t *testing.T, url, application string, statements ...string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // it may have been ended
	for _, statement := range statements {
		run(t, conn, statement)
	}
	return conn
}

func run(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func pid(conn *pgx.Conn) int { return int(conn.PgConn().PID()) }

func blockers(t *testing.T, b *postgres.Buffer) []buffer.VacuumBlocker {
	t.Helper()
	all, err := b.Blockers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// blockerOfPID returns the transaction of a session, or nil.
func blockerOfPID(all []buffer.VacuumBlocker, pid int) *buffer.VacuumBlocker {
	i := slices.IndexFunc(all, func(h buffer.VacuumBlocker) bool { return h.PID == pid })
	if i < 0 {
		return nil
	}
	return &all[i]
}

const (
	repeatable = "BEGIN ISOLATION LEVEL REPEATABLE READ"
	writes     = "CREATE TEMP TABLE written ON COMMIT DROP AS SELECT 1"
)

// otherDatabase is another database of the server.
func otherDatabase(t *testing.T, server *testserver.PostgresServer) (url, name string) {
	t.Helper()
	url, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return url, connect(t, url).Config().Database
}

// Each kind of blocker is found; other sessions are not.
func TestBlockers(t *testing.T) {
	t.Parallel()
	server := logical(t)
	far, name := otherDatabase(t, server)
	b := opened(t, server.URL, buffer.SupervisorPolicy{})
	if all := blockers(t, b); len(all) > 0 {
		t.Fatalf("on an idle server: got %+v", all)
	}

	hand := session(t, server.URL, "hand", "SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')",
		"SELECT pg_create_physical_replication_slot('unread', true)",
		"CREATE TABLE kept (n int) WITH (autovacuum_enabled = off)")
	prepared := session(t, far, "shop", "BEGIN", "CREATE TABLE t ()", "PREPARE TRANSACTION 'half''done'")
	reader := session(t, server.URL, "report", repeatable, "SELECT 1")
	writer := session(t, far, "batch", "BEGIN", writes)
	own := session(t, server.URL, "relay", repeatable, "SELECT 1")
	// None of these holds anything.
	idle := session(t, server.URL, "idle", "BEGIN", "SELECT 1")
	foreign := session(t, far, "foreign", repeatable, "SELECT 1")
	for range 3 {
		run(t, hand, "INSERT INTO kept VALUES (1)")
	}
	vacuum := session(t, server.URL, "vacuum", "SET vacuum_cost_delay = 100", "SET vacuum_cost_limit = 1")
	run(t, hand, "INSERT INTO kept SELECT generate_series(1, 100000)")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = vacuum.Exec(context.WithoutCancel(t.Context()), "VACUUM kept") // ended by the test
	}()
	t.Cleanup(func() {
		if _, err := hand.Exec(context.WithoutCancel(t.Context()), "SELECT pg_terminate_backend($1::int)", pid(vacuum)); err != nil {
			t.Error(err)
		}
		<-ended
	})
	testserver.Eventually(t, func() error {
		var n int
		if err := hand.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_progress_vacuum").Scan(&n); err != nil || n != 1 {
			return fmt.Errorf("%d vacuums run: %w", n, err)
		}
		return nil
	})

	all := blockers(t, b)
	for i := range all {
		h := &all[i]
		if h.Behind < 4 && h.Name != "unread" {
			t.Errorf("%+v is hardly behind", h)
		}
		if h.Horizon == 0 && h.Name != "unread" {
			t.Errorf("%+v holds nothing", h)
		}
		if i > 0 && h.Behind > all[i-1].Behind && h.Catalogs == all[i-1].Catalogs || h.Catalogs != (i == len(all)-1) {
			t.Errorf("%+v is not in order", h)
		}
		if session := h.Kind == buffer.BlockedByTransaction; session != (h.QueryAge > 0) || session == h.StartedAt.IsZero() {
			t.Errorf("%+v: query %v, session %v", h, h.QueryAge, h.StartedAt)
		}
		if slot := h.Kind == buffer.BlockedBySlot; slot != (h.Age == 0) || slot != h.BeganAt.IsZero() || slot != (h.WAL > 0) {
			t.Errorf("%+v: age %v", h, h.Age)
		}
		if at := time.Since(h.BeganAt.Add(h.Age)); !h.BeganAt.IsZero() && at.Abs() > time.Minute {
			t.Errorf("%+v did not begin %v ago", h, h.Age)
		}
	}
	slices.SortFunc(all, func(a, b buffer.VacuumBlocker) int {
		return slices.Compare([]byte(a.Application+a.Name), []byte(b.Application+b.Name))
	})
	want := []buffer.VacuumBlocker{
		{Kind: buffer.BlockedByTransaction, PID: pid(writer), Application: "batch", State: "idle in transaction", Database: name, Elsewhere: true},
		{Kind: buffer.BlockedBySlot, Name: "forgotten", Database: "postgres", State: "inactive", Catalogs: true},
		{Kind: buffer.BlockedByPrepared, Name: "half'done", Database: name, Elsewhere: true},
		{Kind: buffer.BlockedByTransaction, PID: pid(own), Application: "relay", State: "idle in transaction", Database: "postgres", IsRelay: true},
		{Kind: buffer.BlockedByTransaction, PID: pid(reader), Application: "report", State: "idle in transaction", Database: "postgres"},
		{Kind: buffer.BlockedBySlot, Name: "unread", State: "inactive"},
	}
	for i := range want {
		if h := &want[i]; h.Kind != buffer.BlockedBySlot {
			h.User, h.Superuser = "relay", true
		}
		if want[i].Kind == buffer.BlockedByTransaction {
			want[i].Backend = "client backend"
		}
	}
	if diff := cmp.Diff(want, all, cmpopts.IgnoreFields(buffer.VacuumBlocker{}, "StartedAt", "BeganAt", "Age", "QueryAge", "Behind", "Horizon", "WAL", "Fix")); diff != "" {
		t.Error(diff)
	}
	for _, conn := range []*pgx.Conn{idle, foreign, prepared, vacuum} {
		if h := blockerOfPID(all, pid(conn)); h != nil {
			t.Errorf("%+v holds nothing", h)
		}
	}
}

// TestBlockers_Standby: a standby's feedback is reported as its walsender.
func TestBlockers_Standby(t *testing.T) {
	t.Parallel()
	server := logical(t)
	standby := testserver.Standby(t, server)
	session(t, standby.URL, "hand", "ALTER SYSTEM SET hot_standby_feedback = on", "ALTER SYSTEM SET wal_receiver_status_interval = '1s'", "SELECT pg_reload_conf()")
	b := opened(t, server.URL, buffer.SupervisorPolicy{})
	var sender buffer.VacuumBlocker
	testserver.Eventually(t, func() error {
		for _, h := range blockers(t, b) {
			if h.Backend == "walsender" || h.Kind == buffer.BlockedBySlot {
				sender = h
				return nil
			}
		}
		return fmt.Errorf("the standby holds nothing")
	})
	if sender.Horizon == 0 || sender.Elsewhere || sender.IsRelay {
		t.Errorf("got %+v", sender)
	}
	if ended, err := b.Terminate(t.Context(), sender); ended || err != nil {
		t.Errorf("it was ended: %v, %v", ended, err)
	}
}

// replica is a walsender with a snapshot, as a subscriber's first copy has one.
func replica(t *testing.T, server string) *pgconn.PgConn {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = "replication=database&application_name=copy"
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

// TestTerminate: only the observed transaction of a client session is terminated.
func TestTerminate(t *testing.T) {
	t.Parallel()
	server := logical(t)
	blocker := session(t, server.URL, "report", repeatable, "SELECT 1")
	own := session(t, server.URL, "relay", repeatable, "SELECT 1")
	sender := replica(t, server.URL)
	b := opened(t, server.URL, buffer.SupervisorPolicy{})
	all := blockers(t, b)
	saw := blockerOfPID(all, pid(blocker))
	end := func(h *buffer.VacuumBlocker, want bool) {
		t.Helper()
		if h == nil {
			t.Fatalf("no such blocker in %+v", all)
		}
		if ended, err := b.Terminate(t.Context(), *h); ended != want || err != nil {
			t.Errorf("ended: %v, %v; want %v", ended, err, want)
		}
	}
	end(blockerOfPID(all, pid(own)), false)
	end(blockerOfPID(all, int(sender.PID())), false)
	if !slices.ContainsFunc(all, func(h buffer.VacuumBlocker) bool { return h.PID == int(sender.PID()) && h.Backend == "walsender" }) {
		t.Errorf("a subscriber's first copy is not among %+v", all)
	}
	for name, change := range map[string]func(*buffer.VacuumBlocker){
		"a later session of that pid": func(h *buffer.VacuumBlocker) { h.StartedAt = h.StartedAt.Add(-time.Microsecond) },
		"an earlier transaction":      func(h *buffer.VacuumBlocker) { h.BeganAt = h.BeganAt.Add(-time.Microsecond) },
		"another application":         func(h *buffer.VacuumBlocker) { h.Application = "psql" },
		"another session":             func(h *buffer.VacuumBlocker) { h.PID = pid(own) },
		"an unknown beginning":        func(h *buffer.VacuumBlocker) { h.BeganAt = time.Time{} },
		"a prepared one":              func(h *buffer.VacuumBlocker) { h.Kind = buffer.BlockedByPrepared },
	} {
		other := *saw
		change(&other)
		if ended, err := b.Terminate(t.Context(), other); ended || err != nil {
			t.Errorf("%s was ended: %v", name, err)
		}
	}
	run(t, blocker, "COMMIT")
	end(saw, false) // it holds nothing
	run(t, blocker, repeatable)
	run(t, blocker, "SELECT 1")
	end(saw, false) // a new transaction
	for _, conn := range []*pgx.Conn{blocker, own} {
		run(t, conn, "SELECT 1")
	}
	all = blockers(t, b)
	end(blockerOfPID(all, pid(blocker)), true)
	if _, err := blocker.Exec(t.Context(), "SELECT 1"); pg.Code(err) != "57P01" {
		t.Errorf("the session was not terminated: %v", err)
	}
	run(t, own, "SELECT 1")
}

// A role without privileges sees little of other roles' sessions. A finding names the GRANT it needs.
func TestBlockers_OtherRoles(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, logical(t).URL)
	poor, other := p.as("poor_"), p.as("other_")
	blocker := session(t, other, "report", repeatable, "SELECT 1")
	p.exec("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
	w := buffer.SupervisorPolicy{TerminateAfter: time.Hour}
	b := opened(t, poor, w)
	h := blockerOfPID(blockers(t, b), pid(blocker))
	want := &buffer.VacuumBlocker{
		Kind: buffer.BlockedByTransaction, PID: pid(blocker), Database: "postgres", User: blocker.Config().User, Application: "report", Behind: 2,
	}
	if diff := cmp.Diff(want, h, cmpopts.IgnoreFields(buffer.VacuumBlocker{}, "Horizon", "Fix")); diff != "" || h.Horizon == 0 {
		t.Errorf("horizon %d, %s", h.Horizon, diff)
	}
	if ended, err := b.Terminate(t.Context(), *h); ended || err != nil {
		t.Errorf("terminated a blocker with unknown state: %v, %v", ended, err)
	}
	privileges := func(w buffer.SupervisorPolicy, want ...string) {
		t.Helper()
		found, err := b.MissingPrivileges(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		var fixes []string
		for _, f := range found {
			if optional := w.TerminateAfter == 0; (f.Level == buffer.LevelOK) != optional || f.Subject == "" || f.Text == "" {
				t.Errorf("got %+v", f)
			}
			fixes = append(fixes, f.Fix)
		}
		if diff := cmp.Diff(want, fixes); diff != "" {
			t.Error(diff)
		}
	}
	config, err := pg.ConnConfig(poor)
	if err != nil {
		t.Fatal(err)
	}
	role := config.User
	privileges(buffer.SupervisorPolicy{}, "GRANT pg_read_all_stats TO "+role)
	privileges(w, "GRANT pg_read_all_stats TO "+role, "GRANT pg_signal_backend TO "+role)
	p.exec("GRANT pg_read_all_stats TO " + role)
	privileges(buffer.SupervisorPolicy{})
	privileges(w, "GRANT pg_signal_backend TO "+role)

	all := blockers(t, b)
	h = blockerOfPID(all, pid(blocker))
	if h.Age == 0 || h.State == "" || h.Backend == "" {
		t.Errorf("got %+v", h)
	}
	if ended, err := b.Terminate(t.Context(), *h); ended || pg.Code(err) != pg.CodeNoPrivilege {
		t.Errorf("ended: %v, %v", ended, err)
	}

	// Without the GRANT it may end whom it is a member of.
	odd := `o"dd, {x}`
	p.exec("CREATE ROLE " + pgx.Identifier{odd}.Sanitize() + "; GRANT " + pgx.Identifier{odd}.Sanitize() + " TO " + role)
	w.Users = []string{odd}
	privileges(w)
	w.Users = []string{odd, "nobody", "relay"}
	privileges(w, "GRANT pg_signal_backend TO "+role, "connect as a superuser, or remove it from source.supervisor.users", "correct source.supervisor.users")
	p.exec("GRANT pg_signal_backend TO " + role)
	if ended, err := b.Terminate(t.Context(), *h); !ended || err != nil {
		t.Errorf("ended: %v, %v", ended, err)
	}
	super := session(t, p.url, "report", repeatable, "SELECT 1")
	if ended, err := b.Terminate(t.Context(), *blockerOfPID(blockers(t, b), pid(super))); ended || pg.Code(err) != pg.CodeNoPrivilege {
		t.Errorf("terminated a superuser's session: %v, %v", ended, err)
	}
	for _, statement := range []string{"REVOKE pg_read_all_stats, pg_signal_backend FROM " + role, "DROP ROLE " + pgx.Identifier{odd}.Sanitize()} {
		p.exec(statement)
	}
	run(t, super, "COMMIT")
}

// Each blocker has a fix.
func TestDiagnose_Blockers(t *testing.T) {
	t.Parallel()
	server := logical(t)
	far, name := otherDatabase(t, server)
	p := newDoctorDB(t, server.URL)
	fix := func(says, fix string) {
		t.Helper()
		f := find(diagnose(t, p.url, time.Nanosecond), buffer.LevelWarning, "vacuum horizon", says)
		if f == nil || f.Fix != fix {
			t.Fatalf("%q, to be fixed by %q, is not what it finds: %+v", says, fix, faults(diagnose(t, p.url, time.Nanosecond)))
		}
		p.exec(fix)
		testserver.Eventually(t, func() error { // those that are ended need a moment
			if f := find(diagnose(t, p.url, time.Nanosecond), buffer.LevelWarning, "vacuum horizon", says); f != nil {
				return fmt.Errorf("after the fix it finds %+v", f)
			}
			return nil
		})
	}
	other := session(t, p.url, "report", repeatable, "SELECT 1")
	if found := diagnose(t, p.url, time.Hour); find(found, buffer.LevelOK, "vacuum horizon", "nothing older than 1h0m0s") == nil {
		t.Errorf("of transactions that are young got %+v", faults(found))
	}
	fix(fmt.Sprintf(`(pid %d, user relay, application "report", database postgres, idle in transaction, its last query began`, pid(other)),
		fmt.Sprintf("SELECT pg_terminate_backend(%d) -- as a superuser", pid(other)))
	p.exec("BEGIN; INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}'); PREPARE TRANSACTION 'half''done'")
	fix(`the transaction prepared as "half'done" is open for `, "ROLLBACK PREPARED 'half''done'")
	p.exec("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
	fix(`the replication slot "forgotten" has no reader`, "SELECT pg_drop_replication_slot('forgotten')")

	own := session(t, p.url, "relay", repeatable, "SELECT 1")
	session(t, far, "shop", "BEGIN", "CREATE TABLE t ()", "PREPARE TRANSACTION 'far'")
	found := diagnose(t, p.url, time.Nanosecond)
	for says, fix := range map[string]string{
		fmt.Sprintf("pid %d", pid(own)):    "wait: it is a relay's and ends by itself",
		`the transaction prepared as "far`: "in database " + pg.Quote(name) + ": ROLLBACK PREPARED 'far'",
	} {
		if f := find(found, buffer.LevelWarning, "vacuum horizon", says); f == nil || f.Fix != fix {
			t.Errorf("of %s got %+v", says, faults(found))
		}
	}
	run(t, connect(t, far), "ROLLBACK PREPARED 'far'")
}

// A role that does not see since when another role's transaction is open does not say that none is old.
func TestDiagnose_HiddenBlocker(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, logical(t).URL)
	poor, other := p.as("poor_"), p.as("other_")
	const about = "vacuum horizon"
	if found := diagnose(t, poor, time.Hour); find(found, buffer.LevelOK, about, "nothing older than 1h0m0s that this role sees blocks vacuum") == nil {
		t.Errorf("without a transaction got %+v", found)
	}
	blocker := session(t, other, "report", repeatable, "SELECT 1")
	found := diagnose(t, poor, time.Hour)
	f := find(found, buffer.LevelWarning, about, fmt.Sprintf("a transaction is open for at least 2s (pid %d, user %s, ", pid(blocker), blocker.Config().User))
	if f == nil || find(found, buffer.LevelOK, about, "") != nil {
		t.Fatalf("got %+v", found)
	}
	p.exec(f.Fix)
	if found := diagnose(t, poor, time.Hour); find(found, buffer.LevelOK, about, "nothing older than 1h0m0s blocks vacuum") == nil {
		t.Errorf("with the GRANT got %+v", found)
	}
	old := find(diagnose(t, poor, time.Nanosecond), buffer.LevelWarning, about, fmt.Sprintf("pid %d", pid(blocker)))
	again := find(diagnose(t, poor, time.Nanosecond), buffer.LevelWarning, about, fmt.Sprintf("pid %d", pid(blocker)))
	if old == nil || again == nil || old.About == "" || old.About != again.About {
		t.Errorf("two diagnoses of one transaction are about %+v and %+v", old, again)
	}
}

// TestBlockers_Locks: the tables in which a transaction may hold locks on rows are known, also of a prepared one; those that it reads are not among them.
func TestBlockers_Locks(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, logical(t).URL)
	p.exec("INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
	holder := session(t, p.url, "night-cleanup", "BEGIN", "SELECT count(*) FROM outbox_batches", "SELECT id FROM outbox_events FOR UPDATE")
	b := opened(t, p.url, buffer.SupervisorPolicy{})
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	locks := func(h *buffer.VacuumBlocker) {
		t.Helper()
		if h == nil {
			t.Fatal("it is not among the blockers")
		}
		if diff := cmp.Diff([]string{b.BufferTable()}, h.Locks); diff != "" || b.BufferTable() == "" {
			t.Errorf("its locks: %s", diff)
		}
	}
	all := blockers(t, b)
	h := blockerOfPID(all, pid(holder))
	locks(h)
	if got := buffer.Locker(all, b.BufferTable()); got != nil {
		t.Errorf("after %v it is forgotten", got.Age)
	}
	h.Age = buffer.LockAge
	if got := buffer.Locker(all, b.BufferTable()); got != h {
		t.Errorf("got %+v", got)
	}
	run(t, holder, "PREPARE TRANSACTION 'half'")
	all = blockers(t, b)
	locks(&all[slices.IndexFunc(all, func(h buffer.VacuumBlocker) bool { return h.Name == "half" })])
	run(t, holder, "ROLLBACK PREPARED 'half'")
}

// waits starts a statement that waits for a lock until another session ends.
func waits(t *testing.T, p *doctorDB, conn *pgx.Conn, statement string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), statement)
	}()
	t.Cleanup(func() {
		if _, err := p.conn.Exec(context.WithoutCancel(t.Context()), "SELECT pg_terminate_backend($1::int)", pid(conn)); err != nil {
			t.Error(err)
		}
		<-done
	})
	testkit.Eventually(t, func() error {
		var waits bool
		if err := p.conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = $1::int)", pid(conn)).Scan(&waits); err != nil || !waits {
			return fmt.Errorf("%s does not wait: %w", statement, err)
		}
		return nil
	})
}

// TestBlockers_Waiting: what the application's transactions wait for in the end is found although it blocks no vacuum, and is what is proposed to be ended: none that waits is.
func TestBlockers_Waiting(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"SHARE", "ACCESS EXCLUSIVE"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := newDoctorDB(t, testserver.OwnPostgres(t, testserver.PostgresOptions{}).URL)
			p.exec("CREATE TABLE invoices (id int PRIMARY KEY); INSERT INTO invoices VALUES (1)")
			b := opened(t, p.url, buffer.SupervisorPolicy{WarnAfter: time.Nanosecond})
			if err := b.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			table := b.BufferTable()
			holder := session(t, p.url, "schema-change", "BEGIN", "LOCK TABLE outbox_events IN "+mode+" MODE")
			victim := session(t, p.url, "shop", "BEGIN", "UPDATE invoices SET id = 1")
			waits(t, p, victim, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
			behind := session(t, p.url, "report", "BEGIN", "SELECT pg_current_xact_id()")
			waits(t, p, behind, "UPDATE invoices SET id = 1")

			all := blockers(t, b)
			for i := range all {
				all[i].Age, all[i].AtLeast = time.Minute, false
			}
			root := blockerOfPID(all, pid(holder))
			if root == nil {
				t.Fatalf("what locks the table is not among %+v", all)
			}
			if root.Waits || root.Waiting != 2 || !slices.Contains(root.NoInserts, table) {
				t.Errorf("it is %+v", root)
			}
			locks := mode == "SHARE" // the other one has a transaction id
			if root.OnlyLocks() != locks || root.Beyond(time.Second) == locks {
				t.Errorf("it only locks: %v, and is beyond a second: %v", root.OnlyLocks(), root.Beyond(time.Second))
			}
			if says := root.String(); locks && (!strings.Contains(says, "nothing can be inserted into table "+table) || strings.Contains(says, "WAL")) {
				t.Errorf("it says %s", says)
			}
			for _, conn := range []*pgx.Conn{victim, behind} {
				h := blockerOfPID(all, pid(conn))
				if h == nil || !h.Waits || h.WaitsFor != pid(holder) || h.NoInserts != nil || h.Fix != root.Fix || buffer.Root(all, h) != root {
					t.Errorf("what waits is %+v", h)
				}
				if says := fmt.Sprintf("waits for a lock of pid %d", pid(holder)); h != nil && !strings.Contains(h.String(), says) {
					t.Errorf("what waits does not say so: %s", h)
				}
			}
			for _, name := range []string{table, "public.invoices"} {
				if got := buffer.Locker(all, name); got != root {
					t.Errorf("%s is blocked by %+v", name, got)
				}
			}
			locked := buffer.TableLocker(all, table, "public.outbox_batches")
			if locked == nil || locked.Holder != root || locked.Table != table || locked.Fix != root.Fix || !strings.Contains(locked.Text, "; the application cannot insert events until it ends") {
				t.Errorf("the table is locked by %+v", locked)
			}
			root.Age = buffer.TableLockAge - 1
			if locked := buffer.TableLocker(all, table); locked != nil {
				t.Errorf("too early: %+v", locked)
			}
			testkit.Eventually(t, func() error { // a lock of a moment is none
				ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
				defer cancel()
				var named []string
				for _, f := range b.Diagnose(ctx) {
					if strings.Contains(f.Fix, fmt.Sprint(pid(victim))) || strings.Contains(f.Fix, fmt.Sprint(pid(behind))) {
						t.Errorf("doctor proposes to end what waits: %+v", f)
					}
					if f.Fix == root.Fix {
						named = append(named, fmt.Sprint(f.Level, " ", f.Subject))
					}
				}
				if diff := cmp.Diff([]string{fmt.Sprint(buffer.LevelError, " ", buffer.TableLock)}, named); diff != "" {
					return errors.New("doctor: " + diff)
				}
				return nil
			})
		})
	}
}

// TestBlockers_WaitsForPrepared: a transaction that waits for a prepared one is not proposed to be ended either, although nothing says which one it is.
func TestBlockers_WaitsForPrepared(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, logical(t).URL)
	b := opened(t, p.url, buffer.SupervisorPolicy{})
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	session(t, p.url, "half", "BEGIN", "LOCK TABLE outbox_events IN SHARE MODE", "PREPARE TRANSACTION 'half'")
	victim := session(t, p.url, "shop", "BEGIN", "UPDATE outbox_batches SET sink = sink", "SELECT pg_current_xact_id()")
	waits(t, p, victim, "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
	t.Cleanup(func() {
		if _, err := p.conn.Exec(context.WithoutCancel(t.Context()), "ROLLBACK PREPARED 'half'"); err != nil {
			t.Error(err)
		}
	})
	all := blockers(t, b)
	for i := range all {
		all[i].Age = time.Minute
	}
	if h := blockerOfPID(all, pid(victim)); h == nil || !h.Waits || h.WaitsFor != 0 || strings.Contains(h.Fix, "terminate") {
		t.Errorf("what waits is %+v", h)
	}
	if got := buffer.Locker(all, b.BufferTable()); got == nil || got.Name != "half" {
		t.Errorf("the table is blocked by %+v", got)
	}
	if got := buffer.TableLocker(all, b.BufferTable()); got == nil || got.Holder.Name != "half" || got.Fix != "ROLLBACK PREPARED 'half'" {
		t.Errorf("the table is locked by %+v", got)
	}
}

// TestDiagnose_LocksBehind: the transaction with locks in the event table waits for another one that has none there.
func TestDiagnose_LocksBehind(t *testing.T) {
	t.Parallel()
	p := newMigratedDB(t, buffertest.Options{})
	role := p.asRole(t, "relay_", "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public", "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public")
	shop := session(t, p.url, "shop", "CREATE TABLE invoices (id int)", "BEGIN", "INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')")
	holder := session(t, p.url, "report", "BEGIN", "LOCK TABLE invoices IN SHARE MODE")
	waits(t, newDoctorDB(t, p.url), shop, "INSERT INTO invoices VALUES (1)")
	b := opened(t, role, buffer.SupervisorPolicy{}) // does not see ages, so that nothing is too young
	for _, f := range b.Diagnose(t.Context()) {
		if f.Subject != buffer.RowLocks {
			continue
		}
		says := fmt.Sprintf(`Pid %d (application "shop") waits for it, and holds locks in table public.outbox_events, which is where the events wait`, pid(shop))
		if !strings.Contains(f.Text, fmt.Sprintf("pid %d", pid(holder))) || !strings.Contains(f.Text, says) {
			t.Errorf("doctor says %+v", f)
		}
		return
	}
	t.Error("doctor says nothing of locks")
}
