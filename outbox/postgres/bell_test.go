package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testserver"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/buffertest"
	"github.com/outboxrelay/relay/outbox/postgres"
)

// rung is a migrated database whose trigger rings.
type rung struct{ *testDB }

func newRung(t *testing.T) rung {
	t.Helper()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	applied, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{Notify: true})
	check(t, err)
	if n := len(applied); n == 0 || applied[n-1] != "trigger outbox_notify" {
		t.Errorf("applied %v, the trigger in the end was expected", applied)
	}
	return rung{p}
}

const plainInsert = `INSERT INTO outbox_events (topic, payload) VALUES ('t', '{}')`

func (r rung) exec(t *testing.T, sql string) {
	t.Helper()
	_, err := r.pool.Exec(t.Context(), sql)
	check(t, err)
}

// ear runs a bell and gathers what it says.
type ear struct {
	*postgres.Bell
	log  *lockedLog
	stop func()

	mu    sync.Mutex
	rings int
	deafs int // how often it said that it does not hear
	hears bool
}

type lockedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (r rung) listen(t *testing.T, url string, wake buffer.WakeMode) *ear {
	t.Helper()
	b, err := postgres.Open(postgres.Config{URL: url, Pipeline: "orders", Wake: wake})
	check(t, err)
	e := &ear{log: &lockedLog{}}
	e.Bell = b.Bell(slog.New(slog.NewTextHandler(e.log, nil)))
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
			commits, hears := e.Drain()
			e.mu.Lock()
			e.rings, e.hears = e.rings+commits, hears
			if !hears {
				e.deafs++
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

func (e *ear) state() (rings int, hears bool, deafs int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rings, e.hears, e.deafs
}

func (e *ear) expectHears(t *testing.T, want bool) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if _, hears, _ := e.state(); hears != want {
			return fmt.Errorf("it hears: %t; its log:\n%s", hears, e.log)
		}
		return nil
	})
}

func (e *ear) expectRings(t *testing.T, n int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if rings, _, _ := e.state(); rings != n {
			return fmt.Errorf("%d commits rang, %d were expected; its log:\n%s", rings, n, e.log)
		}
		return nil
	})
}

func (e *ear) expectLog(t *testing.T, want string, times int) {
	t.Helper()
	testserver.Eventually(t, func() error {
		if n := strings.Count(e.log.String(), want); n != times {
			return fmt.Errorf("%q stands %d times in the log, %d were expected:\n%s", want, n, times, e.log)
		}
		return nil
	})
}

// wire counts all notifications that are sent, in a session of its own.
type wire struct {
	conn *pgx.Conn
	ends int
}

func (r rung) tap(t *testing.T) *wire {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.url)
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close(context.Background())) })
	var channel string
	check(t, conn.QueryRow(t.Context(), "SELECT 'relay_' || 'outbox_events'::regclass::oid").Scan(&channel))
	_, err = conn.Exec(t.Context(), "LISTEN "+channel+"; LISTEN mark")
	check(t, err)
	return &wire{conn: conn}
}

// count is how many were sent since it was last asked.
func (w *wire) count(t *testing.T, r rung) (n int) {
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

func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestCommitsRing(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectHears(t, true)
	r.exec(t, plainInsert)
	e.expectRings(t, 1)

	// A transaction rings once, when it commits, however many statements it had.
	tx, err := r.pool.Begin(t.Context())
	check(t, err)
	for range 3 {
		check(t, postgres.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("1")}))
		_, err = tx.Exec(t.Context(), plainInsert)
		check(t, err)
	}
	r.exec(t, plainInsert)
	e.expectRings(t, 2)
	check(t, tx.Commit(t.Context()))
	e.expectRings(t, 3)

	// One that rolls back does not, and one that rolls part of it back may.
	tx, err = r.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), plainInsert)
	check(t, err)
	check(t, tx.Rollback(t.Context()))
	r.exec(t, "BEGIN; "+plainInsert+"; SAVEPOINT s; "+plainInsert+"; ROLLBACK TO s; COMMIT")
	e.expectRings(t, 4)
	_, err = r.pool.CopyFrom(t.Context(), pgx.Identifier{"outbox_events"}, []string{"topic", "payload"}, pgx.CopyFromRows([][]any{{"t", "{}"}}))
	check(t, err)
	e.expectRings(t, 5)
	_, _, deafs := e.state()
	expect(t, "times it went deaf", deafs, 0)
}

func TestNothingIsSentThatNobodyNeeds(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	w := r.tap(t)
	insert := func() {
		for range 20 {
			r.exec(t, plainInsert)
		}
	}
	insert()
	expect(t, "notifications without a relay", w.count(t, r), 0)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectHears(t, true)
	insert()
	expect(t, "notifications while it sleeps", w.count(t, r), 20)
	e.Pause(true)
	e.expectHears(t, false)
	testserver.Eventually(t, func() error { return r.expectHolders(t, 0) })
	insert()
	expect(t, "notifications while it is awake", w.count(t, r), 0)
	e.Pause(false)
	e.expectHears(t, true)
	insert()
	expect(t, "notifications when it sleeps again", w.count(t, r), 20)
	e.stop()
	testserver.Eventually(t, func() error { return r.expectHolders(t, 0) })
	insert()
	expect(t, "notifications when it has gone", w.count(t, r), 0)
}

const holdersSQL = `
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objid = 'outbox_events'::regclass
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

func (r rung) expectHolders(t *testing.T, want int) error {
	t.Helper()
	var n int
	check(t, r.pool.QueryRow(t.Context(), holdersSQL).Scan(&n))
	if n != want {
		return fmt.Errorf("%d sessions hold the lock, %d were expected", n, want)
	}
	return nil
}

// Who inserted without ringing keeps the relay from falling asleep until it can see what
// was inserted; meanwhile others ring.
func TestNobodyFallsAsleepBesideAnOpenInsert(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	w := r.tap(t)
	tx, err := r.pool.Begin(t.Context())
	check(t, err)
	_, err = tx.Exec(t.Context(), plainInsert)
	check(t, err)
	r.exec(t, "BEGIN; "+plainInsert+"; PREPARE TRANSACTION 'open'")
	e := r.listen(t, r.url, buffer.WakeNotify)
	testserver.Eventually(t, func() error { // it stands in the queue every now and then
		r.exec(t, plainInsert)
		if w.count(t, r) == 0 {
			return errors.New("nobody stood in the queue while others inserted")
		}
		return nil
	})
	check(t, tx.Commit(t.Context()))
	_, hears, _ := e.state()
	expect(t, "it hears beside a prepared transaction", hears, false)
	r.exec(t, "COMMIT PREPARED 'open'")
	e.expectHears(t, true)
	expect(t, "warnings", strings.Count(e.log.String(), "level=WARN"), 0)
}

func TestPrepareTransactionNeedsARelayThatIsAwake(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectHears(t, true)
	prepare := func() error {
		conn, err := pgx.Connect(t.Context(), r.url)
		check(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(), "BEGIN; "+plainInsert+"; PREPARE TRANSACTION 'two'")
		return err
	}
	var refused *pgconn.PgError
	if err := prepare(); !errors.As(err, &refused) || refused.Code != "0A000" {
		t.Errorf("PREPARE TRANSACTION while the relay sleeps: %v", err)
	}
	e.Pause(true)
	testserver.Eventually(t, func() error { return r.expectHolders(t, 0) })
	check(t, prepare())
	r.exec(t, "ROLLBACK PREPARED 'two'")
}

func TestALostConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	for n := range 2 {
		e.expectHears(t, true)
		_, _, deafs := e.state()
		expect(t, "times it said that it is deaf", deafs, n)
		r.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_locks
			WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objid = 'outbox_events'::regclass`)
		testserver.Eventually(t, func() error {
			if _, _, now := e.state(); now == deafs {
				return errors.New("it does not say that it was deaf")
			}
			return nil
		})
	}
	e.expectHears(t, true)
	rings, _, _ := e.state()
	r.exec(t, plainInsert)
	e.expectRings(t, rings+1)
	e.expectLog(t, "commits cannot be heard", 2)
	e.expectLog(t, "commits wake the relay", 2)
}

// The second does without, until the first has gone.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	first := r.listen(t, r.url, buffer.WakeNotify)
	first.expectHears(t, true)
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
	first.expectRings(t, 1)
	_, hears, _ := second.state()
	expect(t, "the second hears", hears, false)
	first.stop()
	second.expectHears(t, true)
	rings, _, _ := second.state()
	r.exec(t, plainInsert)
	second.expectRings(t, rings+1)
	expect(t, "warnings", strings.Count(second.log.String(), "level=WARN"), 0)
}

// Through a pooler nothing is listened to, and nothing is left on its sessions.
func TestAPoolerIsSeen(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	url := testserver.PgBouncer(t, r.url)
	asked, auto := r.listen(t, url, buffer.WakeNotify), r.listen(t, url, buffer.WakeAuto)
	asked.expectLog(t, "goes through a pooler", 1)
	auto.expectLog(t, "goes through a pooler", 1)
	asked.expectLog(t, "level=WARN", 1)
	auto.expectLog(t, "level=WARN", 0)
	check(t, r.expectHolders(t, 0))
	for _, e := range []*ear{asked, auto} {
		_, hears, _ := e.state()
		expect(t, "it hears through a pooler", hears, false)
	}
	conn, err := pgx.ConnectConfig(t.Context(), simply(t, url))
	check(t, err)
	defer conn.Close(context.Background())
	var channels int
	check(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_listening_channels()").Scan(&channels))
	expect(t, "channels that a pooled session listens to", channels, 0)
}

func simply(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	check(t, err)
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return c
}

func TestWithoutTheTriggerNothingIsHeard(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	for _, statement := range []string{
		"ALTER TABLE outbox_events DISABLE TRIGGER outbox_notify", "DROP TRIGGER outbox_notify ON outbox_events",
	} {
		r.exec(t, statement)
		asked, auto := r.listen(t, r.url, buffer.WakeNotify), r.listen(t, r.url, buffer.WakeAuto)
		asked.expectLog(t, "no trigger outbox_notify", 1)
		asked.expectLog(t, "relay migrate", 1)
		asked.stop()
		auto.stop()
		expect(t, "what is said by auto", auto.log.String(), "")
	}
	applied, err := postgres.Migrate(t.Context(), r.url, postgres.SchemaConfig{Notify: true})
	check(t, err)
	if diff := cmp.Diff([]string{"trigger outbox_notify"}, applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	r.listen(t, r.url, buffer.WakeAuto).expectHears(t, true)
}

// Whoever inserts needs no more than INSERT, and what he put in the way of the search
// path is not looked at.
func TestTheTriggerNeedsNothingOfTheApplication(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	e := r.listen(t, r.url, buffer.WakeNotify)
	e.expectHears(t, true)
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
	e.expectRings(t, 3)
}

// One function serves buffers of any name, and the trigger is made once.
func TestTheTriggerOfAnyTable(t *testing.T) {
	t.Parallel()
	p := newTestDB(t, testserver.Postgres(t), buffertest.Options{})
	r := rung{p}
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
			expect(t, fmt.Sprintf("triggers made on %s", c.Table), n, want)
		}
		b, err := postgres.Open(postgres.Config{URL: p.url, Table: c.Table, Schema: c.Schema, Pipeline: fmt.Sprint("p", i)})
		check(t, err)
		bell := b.Bell(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { bell.Run(ctx) })
		waitFor := func(what string, is func(commits int, hears bool) bool) {
			t.Helper()
			for {
				select {
				case <-bell.Notifications():
				case <-time.After(30 * time.Second):
					t.Fatalf("%s: %s: nothing within 30 seconds", c.Table, what)
				}
				if is(bell.Drain()) {
					return
				}
			}
		}
		waitFor("hears", func(_ int, hears bool) bool { return hears })
		tx, err := p.pool.Begin(t.Context())
		check(t, err)
		check(t, postgres.Table{Name: c.Table}.Insert(t.Context(), tx, outbox.Event{Topic: "t", Payload: []byte("1")}))
		check(t, tx.Commit(t.Context()))
		waitFor("rings", func(commits int, _ bool) bool { return commits == 1 })
		cancel()
		running.Wait()
		check(t, b.Close())
	}
	// Without being asked for it is neither made nor dropped.
	_, err := postgres.Migrate(t.Context(), p.url, postgres.SchemaConfig{})
	check(t, err)
	var n int
	check(t, p.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_notify'").Scan(&n))
	expect(t, "triggers in the end", n, 4)
}

func TestExamineTellsHowTheRelayIsWoken(t *testing.T) {
	t.Parallel()
	r := newRung(t)
	pooled := testserver.PgBouncer(t, r.url)
	for _, c := range []struct {
		url, before string
		wake        buffer.WakeMode
		level       buffer.Level
		want        string
	}{
		{r.url, "", buffer.WakeNotify, buffer.LevelOK, "commits ring"},
		{r.url, "", buffer.WakeAuto, buffer.LevelOK, "commits ring"},
		{pooled, "", buffer.WakeNotify, buffer.LevelWarning, "goes through a pooler"},
		{pooled, "", buffer.WakeAuto, buffer.LevelOK, "goes through a pooler"},
		{r.url, "DROP TRIGGER outbox_notify ON outbox_events", buffer.WakeNotify, buffer.LevelWarning, "no trigger outbox_notify"},
		{r.url, "", buffer.WakeAuto, buffer.LevelOK, "events are looked for"},
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
					t.Errorf("wake %s: %+v, %q was expected", c.wake, f, c.want)
				}
			}
		}
		expect(t, "it is told how the relay is woken", found, true)
		check(t, b.Close())
	}
}
