package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// notifyDB is a migrated database with the trigger outbox_notify.
type notifyDB struct{ *testDB }

func newNotifyDB(t *testing.T) notifyDB {
	t.Helper()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	applied, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Notify: true})
	check(t, err)
	if !slices.Contains(applied, "trigger outbox_notify") {
		t.Errorf("applied %v, expected the trigger, too", applied)
	}
	return notifyDB{p}
}

const plainInsert = `INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')`

func (r notifyDB) exec(t *testing.T, sql string) {
	t.Helper()
	_, err := r.pool.Exec(t.Context(), sql)
	check(t, err)
}

// testListener runs a listener and records what it reports.
type testListener struct {
	*postgres.Listener
	buffer *postgres.Buffer
	log    *testkit.Output
	stop   func()

	mu        sync.Mutex
	commits   int
	lapses    int // how often it reported that it does not listen
	listening bool
}

func (r notifyDB) listen(t *testing.T, url string, wake buffer.WakeMode) *testListener {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Wake: wake})
	check(t, err)
	e := &testListener{buffer: b, log: &testkit.Output{}}
	e.Listener = b.Listener(slog.New(slog.NewTextHandler(e.log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-e.Notifications():
			}
			commits, listening := e.Drain()
			e.mu.Lock()
			e.commits, e.listening = e.commits+commits, listening
			if !listening {
				e.lapses++
			}
			e.mu.Unlock()
		}
	})
	e.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		check(t, b.Close())
	})
	t.Cleanup(e.stop)
	return e
}

func (e *testListener) state() (commits int, listening bool, lapses int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.commits, e.listening, e.lapses
}

func (e *testListener) expectListening(t *testing.T, want bool) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if _, listening, _ := e.state(); listening != want {
			return fmt.Errorf("listening: %t; its log:\n%s", listening, e.log)
		}
		return nil
	})
}

func (e *testListener) expectCommits(t *testing.T, n int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if commits, _, _ := e.state(); commits != n {
			return fmt.Errorf("got %d commits, want %d; its log:\n%s", commits, n, e.log)
		}
		return nil
	})
}

func (e *testListener) expectLog(t *testing.T, want string, times int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if n := strings.Count(e.log.String(), want); n != times {
			return fmt.Errorf("%q: got %d times, want %d, in the log:\n%s", want, n, times, e.log)
		}
		return nil
	})
}

// notificationCounter counts all notifications, in a separate session.
type notificationCounter struct {
	conn *pgx.Conn
	ends int
}

func (r notifyDB) countNotifications(t *testing.T) *notificationCounter {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.url)
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close(context.Background())) })
	var channel string
	check(t, conn.QueryRow(t.Context(), "SELECT 'relay_' || 'outbox_events'::regclass::oid").Scan(&channel))
	_, err = conn.Exec(t.Context(), "LISTEN "+channel+"; LISTEN mark")
	check(t, err)
	return &notificationCounter{conn: conn}
}

// count returns how many were sent since the last call.
func (w *notificationCounter) count(t *testing.T, r notifyDB) (n int) {
	t.Helper()
	w.ends++
	mark := fmt.Sprint(w.ends)
	r.exec(t, "SELECT pg_notify('mark', '"+mark+"')")
	for {
		got, err := w.conn.WaitForNotification(t.Context())
		check(t, err)
		if got.Channel == "mark" && got.Payload == mark {
			return n
		}
		n++
	}
}

func TestListener_CountsCommits(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectListening(t, true)
	r.exec(t, plainInsert)
	e.expectCommits(t, 1)

	// A transaction notifies once, when it commits.
	tx, err := r.pool.Begin(t.Context())
	check(t, err)
	for range 3 {
		check(t, pgoutbox.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("1")}))
		_, err = tx.Exec(t.Context(), plainInsert)
		check(t, err)
	}
	r.exec(t, plainInsert)
	e.expectCommits(t, 2)
	check(t, tx.Commit(t.Context()))
	e.expectCommits(t, 3)

	// A rollback does not notify; a partial one may.
	tx, err = r.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), plainInsert)
	check(t, err)
	check(t, tx.Rollback(t.Context()))
	r.exec(t, "BEGIN; "+plainInsert+"; SAVEPOINT s; "+plainInsert+"; ROLLBACK TO s; COMMIT")
	e.expectCommits(t, 4)
	_, err = r.pool.CopyFrom(t.Context(), pgx.Identifier{"outbox_events"}, []string{"topic", "payload"}, pgx.CopyFromRows([][]any{{"t", "{}"}}))
	check(t, err)
	e.expectCommits(t, 5)
	_, _, lapses := e.state()
	testkit.Equal(t, "lapses", lapses, 0)
}

func TestListener_NotifiedOnlyWhileIdle(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	w := r.countNotifications(t)
	insert := func() {
		for range 20 {
			r.exec(t, plainInsert)
		}
	}
	insert()
	testkit.Equal(t, "notifications without a relay", w.count(t, r), 0)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectListening(t, true)
	insert()
	testkit.Equal(t, "notifications while the relay is idle", w.count(t, r), 20)
	e.Pause(true)
	e.expectListening(t, false)
	testserver.Eventually(t, func() error { return r.expectLockHolders(t, 0) })
	insert()
	testkit.Equal(t, "notifications while the relay is active", w.count(t, r), 0)
	e.Pause(false)
	e.expectListening(t, true)
	insert()
	testkit.Equal(t, "notifications when the relay is idle again", w.count(t, r), 20)
	e.stop()
	testserver.Eventually(t, func() error { return r.expectLockHolders(t, 0) })
	insert()
	testkit.Equal(t, "notifications without the relay", w.count(t, r), 0)
}

const lockHoldersSQL = `
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objid = 'outbox_events'::regclass
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

func (r notifyDB) expectLockHolders(t *testing.T, want int) error {
	t.Helper()
	var n int
	check(t, r.pool.QueryRow(t.Context(), lockHoldersSQL).Scan(&n))
	if n != want {
		return fmt.Errorf("got %d sessions that hold the lock, want %d", n, want)
	}
	return nil
}

// A transaction that inserted without notifying keeps the relay from listening until it ends.
// Other inserts notify meanwhile.
func TestListener_WaitsForOpenInserts(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	w := r.countNotifications(t)
	tx, err := r.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), plainInsert)
	check(t, err)
	r.exec(t, "BEGIN; "+plainInsert+"; PREPARE TRANSACTION 'open'")
	e := r.listen(t, r.url, buffer.WakeNotify)
	testserver.Eventually(t, func() error { // it waits for the lock every now and then
		r.exec(t, plainInsert)
		if w.count(t, r) == 0 {
			return errors.New("no session waited for the lock while others inserted")
		}
		return nil
	})
	check(t, tx.Commit(t.Context()))
	_, listening, _ := e.state()
	testkit.Equal(t, "listening despite a prepared transaction", listening, false)
	r.exec(t, "COMMIT PREPARED 'open'")
	e.expectListening(t, true)
	testkit.Equal(t, "warnings", strings.Count(e.log.String(), "level=WARN"), 0)
}

func TestListener_PrepareTransaction(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectListening(t, true)
	prepare := func() error {
		conn, err := pgx.Connect(t.Context(), r.url)
		check(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(), "BEGIN; "+plainInsert+"; PREPARE TRANSACTION 'two'")
		return err
	}
	var refused *pgconn.PgError
	if err := prepare(); !errors.As(err, &refused) || refused.Code != "0A000" {
		t.Errorf("PREPARE TRANSACTION while the relay is idle: %v", err)
	}
	e.Pause(true)
	testserver.Eventually(t, func() error { return r.expectLockHolders(t, 0) })
	check(t, prepare())
	r.exec(t, "ROLLBACK PREPARED 'two'")
}

func TestListener_Reconnects(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	for n := range 2 {
		e.expectListening(t, true)
		_, _, lapses := e.state()
		testkit.Equal(t, "lapses", lapses, n)
		r.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_locks
			WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objid = 'outbox_events'::regclass`)
		testserver.Eventually(t, func() error {
			if _, _, now := e.state(); now == lapses {
				return errors.New("it does not report the lapse")
			}
			return nil
		})
	}
	e.expectListening(t, true)
	commits, _, _ := e.state()
	r.exec(t, plainInsert)
	e.expectCommits(t, commits+1)
	e.expectLog(t, "cannot listen for commits", 2)
	e.expectLog(t, "listening for commits", 2)
}

// The second does not listen until the first has stopped.
func TestListener_TwoRelays(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	first := r.listen(t, r.url, buffer.WakeNotify)
	first.expectListening(t, true)
	second := r.listen(t, r.url, buffer.WakeNotify)
	testserver.Eventually(t, func() error {
		var n int
		check(t, r.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%pg_try_advisory_lock%'`).Scan(&n))
		if n == 0 {
			return errors.New("the second does not try to hold the lock")
		}
		return nil
	})
	r.exec(t, plainInsert)
	first.expectCommits(t, 1)
	_, listening, _ := second.state()
	testkit.Equal(t, "the second listens", listening, false)
	first.stop()
	second.expectListening(t, true)
	commits, _, _ := second.state()
	r.exec(t, plainInsert)
	second.expectCommits(t, commits+1)
	testkit.Equal(t, "warnings", strings.Count(second.log.String(), "level=WARN"), 0)
}

// Through a pooler the relay does not listen, and leaves nothing on the pooled sessions.
func TestListener_Pooler(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	url := testserver.PgBouncer(t, r.url)
	asked, auto := r.listen(t, url, buffer.WakeNotify), r.listen(t, url, buffer.WakeAuto)
	asked.expectLog(t, "leads through a pooler", 1)
	auto.expectLog(t, "leads through a pooler", 1)
	asked.expectLog(t, "level=WARN", 1)
	auto.expectLog(t, "level=WARN", 0)
	check(t, r.expectLockHolders(t, 0))
	for _, e := range []*testListener{asked, auto} {
		_, listening, _ := e.state()
		testkit.Equal(t, "listening through a pooler", listening, false)
	}
	conn, err := pgx.ConnectConfig(t.Context(), simply(t, url))
	check(t, err)
	defer conn.Close(context.Background())
	var channels int
	check(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_listening_channels()").Scan(&channels))
	testkit.Equal(t, "channels that a pooled session listens to", channels, 0)
}

func simply(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	check(t, err)
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return c
}

func TestListener_NoTrigger(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	for _, statement := range []string{
		"ALTER TABLE outbox_events DISABLE TRIGGER outbox_notify", "DROP TRIGGER outbox_notify ON outbox_events",
	} {
		r.exec(t, statement)
		asked, auto := r.listen(t, r.url, buffer.WakeNotify), r.listen(t, r.url, buffer.WakeAuto)
		asked.expectLog(t, "no enabled trigger outbox_notify", 1)
		asked.expectLog(t, "relay migrate", 1)
		asked.stop()
		auto.stop()
		testkit.Equal(t, "log of wake: auto", auto.log.String(), "")
	}
	applied, err := postgres.Migrate(t.Context(), r.url, postgres.SchemaConfig{Notify: true})
	check(t, err)
	if diff := cmp.Diff([]string{"trigger outbox_notify"}, applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	r.listen(t, r.url, buffer.WakeAuto).expectListening(t, true)
}

// TestListener_ReplacedTable: another table gets the buffer's name while a relay listens. The relay listens to that one, if it has
// the trigger; otherwise it polls.
func TestListener_ReplacedTable(t *testing.T) {
	t.Parallel()
	const trigger = `SELECT replace(pg_get_triggerdef(oid), ' ON public.outbox_events ', ' ON outbox_new ') FROM pg_trigger
		WHERE tgname = 'outbox_notify' AND tgrelid = 'outbox_events'::regclass`
	for name, c := range map[string]struct {
		before, after func(t *testing.T, r notifyDB)
		listens       bool
	}{
		"NoTrigger": {},
		"CopiedTrigger": {before: func(t *testing.T, r notifyDB) { // it tries the lock of the table that has the name then
			r.exec(t, query(t, r.pool, trigger, pgx.RowTo[string])[0])
		}},
		"OwnTrigger": {before: func(t *testing.T, r notifyDB) {
			r.exec(t, strings.ReplaceAll(query(t, r.pool, trigger, pgx.RowTo[string])[0], "'outbox_events'", "'outbox_new'"))
		}, listens: true},
		"Migrated": {after: func(t *testing.T, r notifyDB) {
			applied, err := postgres.Migrate(t.Context(), r.url, postgres.SchemaConfig{Notify: true})
			check(t, err)
			testkit.Equal(t, "applied", applied, []string{"trigger outbox_notify"})
		}, listens: true},
		"CopiedAndMigrated": {before: func(t *testing.T, r notifyDB) {
			r.exec(t, query(t, r.pool, trigger, pgx.RowTo[string])[0])
		}, after: func(t *testing.T, r notifyDB) {
			_, err := postgres.Migrate(t.Context(), r.url, postgres.SchemaConfig{Notify: true})
			check(t, err)
		}, listens: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newNotifyDB(t)
			e := r.listen(t, r.url, buffer.WakeNotify)
			e.expectListening(t, true)
			r.exec(t, "CREATE TABLE outbox_new (LIKE outbox_events INCLUDING ALL)")
			if c.before != nil {
				c.before(t, r)
			}
			r.exec(t, "BEGIN; ALTER TABLE outbox_events RENAME TO outbox_old; ALTER TABLE outbox_new RENAME TO outbox_events; COMMIT")
			if c.after != nil {
				c.after(t, r)
			}
			_, err := e.buffer.CountBacklog(t.Context(), 10)
			check(t, err)
			e.expectLog(t, "another table has the name", 1)
			if !c.listens {
				e.expectLog(t, "no enabled trigger outbox_notify", 1)
				e.expectListening(t, false)
				return
			}
			e.expectListening(t, true)
			testserver.Eventually(t, func() error { return r.expectLockHolders(t, 1) })
			commits, _, _ := e.state()
			r.exec(t, plainInsert)
			e.expectCommits(t, commits+1)
		})
	}
}

// An inserting role needs no privilege but INSERT, and the trigger ignores its search_path.
func TestNotifyTrigger_NeedsNoPrivileges(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectListening(t, true)
	r.exec(t, "CREATE SCHEMA evil")
	conn, err := pgx.Connect(t.Context(), r.asRole(t, "shop_", "GRANT INSERT ON outbox_events", "GRANT ALL ON SCHEMA evil"))
	check(t, err)
	defer conn.Close(context.Background())
	for _, statement := range []string{
		plainInsert,
		`CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$`,
		`CREATE FUNCTION evil.concat(VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$`,
		`CREATE FUNCTION evil.concat(text, oid) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$`,
		`CREATE FUNCTION evil.pg_try_advisory_xact_lock_shared(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
		`CREATE DOMAIN pg_temp.regclass AS text CHECK (false)`,
		`CREATE DOMAIN pg_temp.int4 AS text CHECK (false)`,
		`CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (false)`,
		`CREATE TEMP TABLE outbox_notify (n int)`,
		`SET search_path = evil, pg_temp, pg_catalog, public`,
		`INSERT INTO public.outbox_events (topic, payload) VALUES ('t', '{}')`,
		`SET search_path = ''`,
		`INSERT INTO public.outbox_events (topic, payload) VALUES ('t', '{}')`,
	} {
		_, err := conn.Exec(t.Context(), statement)
		check(t, err)
	}
	e.expectCommits(t, 3)
}

// One function serves tables of any name, and Migrate installs the trigger once.
func TestNotifyTrigger_AnyTableName(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	r := notifyDB{p}
	r.exec(t, `CREATE SCHEMA "it's odd"`)
	tables := []postgres.SchemaConfig{
		{Table: `it's odd.we"ird 'events'`, Notify: true},
		{Table: `it's odd.Order`, Notify: true},
		{Table: `it's odd.plain`, Schema: "public", Notify: true},
		{Notify: true},
	}
	for i, c := range tables {
		for _, want := range []int{1, 0} {
			applied, err := postgres.Migrate(t.Context(), p.url, c)
			check(t, err)
			n := 0
			for _, name := range applied {
				if name == "trigger outbox_notify" {
					n++
				}
			}
			testkit.Equal(t, fmt.Sprintf("triggers made on %s", c.Table), n, want)
		}
		b, err := postgres.Open(postgres.Config{URL: p.url, Table: c.Table, Schema: c.Schema, Pipeline: fmt.Sprint("p", i)})
		check(t, err)
		listener := b.Listener(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { listener.Run(ctx) })
		waitFor := func(what string, is func(commits int, listening bool) bool) {
			t.Helper()
			for {
				select {
				case <-listener.Notifications():
				case <-time.After(30 * time.Second):
					t.Fatalf("%s: %s: nothing within 30 seconds", c.Table, what)
				}
				if is(listener.Drain()) {
					return
				}
			}
		}
		waitFor("listening", func(_ int, listening bool) bool { return listening })
		tx, err := p.pool.Begin(t.Context())
		check(t, err)
		check(t, pgoutbox.Table{Name: c.Table}.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("1")}))
		check(t, tx.Commit(t.Context()))
		waitFor("a commit", func(commits int, _ bool) bool { return commits == 1 })
		cancel()
		running.Wait()
		check(t, b.Close())
	}
	// Nor is it installed through a pooler.
	applied, err := postgres.Migrate(t.Context(), testserver.PgBouncer(t, p.url), postgres.SchemaConfig{Table: "pooled", Notify: true})
	check(t, err)
	if slices.Contains(applied, "trigger outbox_notify") {
		t.Errorf("applied %q through a pooler", applied)
	}
	// Without Notify the trigger is neither installed nor dropped.
	_, err = postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	var n int
	check(t, p.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_notify'").Scan(&n))
	testkit.Equal(t, "triggers in the end", n, 4)
}

func TestDiagnose_WakeUps(t *testing.T) {
	t.Parallel()
	r := newNotifyDB(t)
	pooled := testserver.PgBouncer(t, r.url)
	for _, c := range []struct {
		url, before string
		wake        buffer.WakeMode
		level       buffer.Level
		want        string
	}{
		{r.url, "", buffer.WakeNotify, buffer.LevelOK, "commits notify the relay"},
		{r.url, "", buffer.WakeAuto, buffer.LevelOK, "commits notify the relay"},
		{pooled, "", buffer.WakeNotify, buffer.LevelWarning, "leads through a pooler"},
		{pooled, "", buffer.WakeAuto, buffer.LevelOK, "leads through a pooler"},
		{r.url, "DROP TRIGGER outbox_notify ON outbox_events", buffer.WakeNotify, buffer.LevelWarning, "no enabled trigger outbox_notify"},
		{r.url, "", buffer.WakeAuto, buffer.LevelOK, "falling back to polling"},
	} {
		if c.before != "" {
			r.exec(t, c.before)
		}
		b, err := postgres.Open(postgres.Config{URL: c.url, Pipeline: "orders", Wake: c.wake})
		check(t, err)
		found := false
		for _, f := range b.Diagnose(t.Context()) {
			if f.Subject == "wake-ups" {
				found = true
				if f.Level != c.level || !strings.Contains(f.Text, c.want) || (f.Fix == "") != (c.level == buffer.LevelOK) {
					t.Errorf("wake %s: %+v; want %q", c.wake, f, c.want)
				}
			}
		}
		testkit.Equal(t, "a finding about wake-ups", found, true)
		check(t, b.Close())
	}
}
