package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// doctorDB is a migrated database that a test damages, diagnoses and repairs.
type doctorDB struct {
	t    *testing.T
	url  string
	conn *pgx.Conn // the superuser's
}

func newDoctorDB(t *testing.T, url string) *doctorDB {
	t.Helper()
	if _, err := postgres.Migrate(t.Context(), url, postgres.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	return &doctorDB{t, url, connect(t, url)}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // it may have been terminated
	return conn
}

// exec runs statements one by one, each in its own transaction.
func (p *doctorDB) exec(statements string) {
	p.t.Helper()
	if strings.HasPrefix(statements, "BEGIN") {
		if _, err := p.conn.Exec(p.t.Context(), statements, pgx.QueryExecModeSimpleProtocol); err != nil {
			p.t.Fatalf("%s: %v", statements, err)
		}
		return
	}
	for statement := range strings.SplitSeq(statements, ";") {
		if _, err := p.conn.Exec(p.t.Context(), statement); err != nil {
			p.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// as returns the URL of a new role with these privileges.
func (p *doctorDB) as(name string, grants ...string) string {
	p.t.Helper()
	u, err := url.Parse(p.url)
	if err != nil {
		p.t.Fatal(err)
	}
	role := name + strings.ToLower(strings.TrimPrefix(u.Path, "/"))
	p.exec(`CREATE ROLE "` + role + `" LOGIN PASSWORD 'pass-word'`)
	p.t.Cleanup(func() {
		conn, err := pgx.Connect(context.WithoutCancel(p.t.Context()), p.url)
		if err != nil {
			p.t.Error(err)
			return
		}
		defer conn.Close(context.WithoutCancel(p.t.Context()))
		for _, statement := range []string{`DROP OWNED BY "` + role + `"`, `DROP ROLE "` + role + `"`} {
			if _, err := conn.Exec(context.WithoutCancel(p.t.Context()), statement); err != nil {
				p.t.Error(err)
			}
		}
	})
	for _, g := range grants {
		p.exec(g + ` TO "` + role + `"`)
	}
	u.User = url.UserPassword(role, "pass-word")
	return u.String()
}

// diagnose opens the buffer afresh, as another process would.
func diagnose(t *testing.T, url string, warnAfter time.Duration) []buffer.Finding {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Supervisor: buffer.SupervisorPolicy{WarnAfter: warnAfter}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	return b.Diagnose(t.Context())
}

// faults are the findings that are not OK.
func faults(all []buffer.Finding) []buffer.Finding {
	var some []buffer.Finding
	for _, f := range all {
		if f.Level != buffer.LevelOK {
			some = append(some, f)
		}
	}
	return some
}

// find returns the first finding of a level and subject whose text contains says; nil if there is none.
func find(all []buffer.Finding, level buffer.Level, about, says string) *buffer.Finding {
	for i, f := range all {
		if f.Level == level && f.Subject == about && strings.Contains(f.Text, says) {
			return &all[i]
		}
	}
	return nil
}

func TestDiagnose_NothingWrong(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	found := diagnose(t, p.url, time.Hour)
	if some := faults(found); len(some) > 0 {
		t.Errorf("got faults %+v", some)
	}
	for _, about := range []string{"server", "tables", "indexes", "claim plan", "autovacuum", "deadlock_timeout", "dead rows", "sessions", "vacuum horizon"} {
		if find(found, buffer.LevelOK, about, "") == nil {
			t.Errorf("no finding about %s: %+v", about, found)
		}
	}
}

func TestDiagnose_Fixes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage      string
		level       buffer.Level
		about, says string
		fix         string // the finding's, if not all of its findings' are to be run
	}{
		"read-only":        {"ALTER DATABASE %s SET default_transaction_read_only = on", buffer.LevelError, "server", "read-only", ""},
		"ledger unlogged":  {"ALTER TABLE outbox_batches SET UNLOGGED", buffer.LevelError, "tables", "table public.outbox_batches is UNLOGGED", ""},
		"buffer unlogged":  {"ALTER TABLE outbox_events SET UNLOGGED", buffer.LevelError, "tables", "table public.outbox_events is UNLOGGED", ""},
		"no sequence":      {"ALTER TABLE outbox_events ALTER id DROP IDENTITY", buffer.LevelError, "tables", "has no sequence", ""},
		"no column":        {"ALTER TABLE outbox_batches DROP COLUMN error", buffer.LevelError, "tables", "has no column error", ""},
		"two columns":      {"ALTER TABLE outbox_batches DROP COLUMN origins; ALTER TABLE outbox_events DROP COLUMN headers", buffer.LevelError, "tables", "has no column headers", ""},
		"no primary key":   {"ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey", buffer.LevelError, "indexes", "has no primary key", "ALTER TABLE public.outbox_events ADD PRIMARY KEY (id)"},
		"another key":      {"ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey; ALTER TABLE outbox_events ADD PRIMARY KEY (topic, id)", buffer.LevelError, "indexes", "no index that begins with id", "CREATE UNIQUE INDEX ON public.outbox_events (id)"},
		"plan":             {"ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_pkey", buffer.LevelError, "claim plan", "by a Seq Scan", "ALTER TABLE public.outbox_events ADD PRIMARY KEY (id)"},
		"invalid index":    {"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_events_pkey'::regclass", buffer.LevelError, "indexes", "outbox_events_pkey is invalid", "REINDEX INDEX public.outbox_events_pkey"},
		"extra index":      {`CREATE INDEX "by group" ON outbox_events (group_id)`, buffer.LevelWarning, "indexes", `public."by group"`, ""},
		"extra constraint": {"ALTER TABLE outbox_events ADD CONSTRAINT once UNIQUE (topic, key)", buffer.LevelWarning, "indexes", "constraint once", ""},
		"fillfactor":       {"ALTER TABLE outbox_batches RESET (fillfactor)", buffer.LevelWarning, "autovacuum", "fillfactor is unset", ""},
		"buffer's vacuum":  {"ALTER TABLE outbox_events SET (autovacuum_vacuum_threshold = 1000000, autovacuum_enabled = false)", buffer.LevelWarning, "autovacuum", "autovacuum_vacuum_threshold is 1000000", ""},
		"ledger's vacuum":  {"ALTER TABLE outbox_batches RESET (autovacuum_vacuum_scale_factor)", buffer.LevelWarning, "autovacuum", "table public.outbox_batches", ""},
		"deadlock_timeout": {"ALTER DATABASE %s SET deadlock_timeout = '20ms'", buffer.LevelWarning, "deadlock_timeout", "20ms", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newDoctorDB(t, testserver.Postgres(t))
			damage := c.damage
			if strings.Contains(damage, "%s") {
				damage = fmt.Sprintf(damage, pgx.Identifier{p.conn.Config().Database}.Sanitize())
			}
			p.exec(damage)
			found := diagnose(t, p.url, time.Hour)
			f := find(found, c.level, c.about, c.says)
			if f == nil {
				t.Fatalf("got %+v", faults(found))
			}
			if c.fix != "" && find(found, buffer.LevelError, "indexes", "").Fix != c.fix {
				t.Fatalf("got fix %q", find(found, buffer.LevelError, "indexes", "").Fix)
			}
			if c.fix != "" {
				p.exec(c.fix)
			} else {
				for _, f := range faults(found) {
					p.exec(f.Fix)
				}
			}
			if left := faults(diagnose(t, p.url, time.Hour)); len(left) > 0 {
				t.Errorf("after the fix: got %+v", left)
			}
		})
	}
}

// A server that answers may still write nothing. The attempt leaves nothing behind.
func TestDiagnose_CannotWrite(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	p.exec("BEGIN; CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN" +
		" RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;" +
		" CREATE TRIGGER full_disk BEFORE INSERT ON outbox_relays FOR EACH ROW EXECUTE FUNCTION full_disk(); COMMIT")
	f := find(diagnose(t, p.url, time.Hour), buffer.LevelError, "server", "No space left on device")
	if f == nil || !strings.Contains(f.Fix, "free space") {
		t.Errorf("the finding is %+v", f)
	}
	p.exec("DROP TRIGGER full_disk ON outbox_relays")
	if some := faults(diagnose(t, p.url, time.Hour)); len(some) > 0 {
		t.Errorf("got faults %+v", some)
	}
	var rows int
	check(t, p.conn.QueryRow(t.Context(), "SELECT count(*) FROM outbox_relays").Scan(&rows))
	if rows != 0 {
		t.Errorf("%d rows are left", rows)
	}
}

// A full disk still has room for small rows in pages that exist.
func TestDiagnose_RoomForSmallRowsOnly(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	p.exec("BEGIN; CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF pg_column_size(NEW.notice) > 60000 THEN" +
		" RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END IF; RETURN NEW; END $$;" +
		" CREATE TRIGGER full_disk BEFORE INSERT ON outbox_relays FOR EACH ROW EXECUTE FUNCTION full_disk(); COMMIT")
	if f := find(diagnose(t, p.url, time.Hour), buffer.LevelError, "server", "it cannot write, its disk is full: "); f == nil || !strings.Contains(f.Fix, "free space") {
		t.Errorf("the finding is %+v", f)
	}
}

// A server that answers need not be started.
func TestDiagnose_NoDatabase(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(testserver.Postgres(t))
	check(t, err)
	at.Path = "/no_such_database"
	f := find(diagnose(t, at.String(), time.Hour), buffer.LevelError, "server", "the database does not exist")
	if f == nil || f.Fix != "correct source.url, or create the role or the database" {
		t.Errorf("got %+v", f)
	}
}

func TestDiagnose_MissingTables(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	p.exec("DROP TABLE outbox_events, outbox_dead_letters")
	found := diagnose(t, p.url, time.Hour)
	for _, table := range []string{"outbox_events", "outbox_dead_letters"} {
		f := find(found, buffer.LevelError, "tables", "table "+table+" does not exist")
		if f == nil || f.Fix != "relay migrate -c relay.yaml" {
			t.Errorf("of %s got %+v", table, found)
		}
	}
	if _, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	if left := faults(diagnose(t, p.url, time.Hour)); len(left) > 0 {
		t.Errorf("after the fix: got %+v", left)
	}
}

// A finding names the privileges that the role lacks.
func TestDiagnose_Privileges(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	poor := p.as("poor_")
	found := faults(diagnose(t, poor, time.Hour))
	if f := find(found, buffer.LevelError, "tables", "may not use sequence"); f == nil {
		t.Errorf("got %+v", found)
	}
	if f := find(found, buffer.LevelError, "tables", "may not SELECT, INSERT, UPDATE, DELETE on table public.outbox_batches"); f == nil {
		t.Errorf("got %+v", found)
	}
	if f := find(diagnose(t, poor, time.Hour), buffer.LevelOK, "sessions", "does not see"); f == nil || !strings.HasPrefix(f.Fix, "GRANT pg_read_all_stats TO ") {
		t.Errorf("got %+v", found)
	}
	for _, f := range found {
		p.exec(f.Fix)
	}
	if left := faults(diagnose(t, poor, time.Hour)); len(left) > 0 {
		t.Errorf("after the grants: got %+v", left)
	}
}

// Events that a policy hides are never sent.
func TestDiagnose_RowSecurity(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	poor := p.as("secured_")
	for _, f := range faults(diagnose(t, poor, time.Hour)) {
		p.exec(f.Fix)
	}
	p.exec("ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY")
	found := faults(diagnose(t, poor, time.Hour))
	f := find(found, buffer.LevelError, "row security", "hides rows of table public.outbox_events")
	if f == nil {
		t.Fatalf("got %+v", found)
	}
	p.exec(f.Fix)
	if left := faults(diagnose(t, poor, time.Hour)); len(left) > 0 {
		t.Errorf("after the fix: got %+v", left)
	}
}

func TestDiagnose_WaitingBatches(t *testing.T) {
	t.Parallel()
	p := newDoctorDB(t, testserver.Postgres(t))
	p.exec(`INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
		first_id, last_id, oldest_at, error)
		VALUES (gen_random_uuid(), 'public.outbox_events', 'stamp', 'waiting', 1, now(), 'o', 0, 0, 3, 7, 1, 7, now(), 'WRONGTYPE of a key')`)
	found := faults(diagnose(t, p.url, time.Hour))
	if find(found, buffer.LevelWarning, "batches", "batches that wait for a retry: 1, their events: 7; the newest because: WRONGTYPE of a key") == nil {
		t.Errorf("got %+v", found)
	}
}

// After a failover the old primary may be a standby.
func TestDiagnose_Standby(t *testing.T) {
	t.Parallel()
	server := testserver.OwnPostgres(t, testserver.PostgresOptions{})
	p := newDoctorDB(t, server.URL)
	var data string
	if err := p.conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	found := diagnose(t, server.URL, time.Hour)
	if f := find(found, buffer.LevelError, "server", "in recovery"); f == nil || !strings.Contains(f.Fix, "target_session_attrs=read-write") {
		t.Errorf("got %+v", found)
	}
}

// An unreachable server is one finding, without a password.
func TestDiagnose_Unreachable(t *testing.T) {
	t.Parallel()
	found := diagnose(t, "postgres://app:pass-word@127.0.0.1:1/app", time.Hour)
	if len(found) != 1 || found[0].Level != buffer.LevelError || !strings.Contains(found[0].Text, "cannot reach PostgreSQL at 127.0.0.1:1") || strings.Contains(found[0].Text, "pass-word") {
		t.Errorf("got %+v", found)
	}
}
