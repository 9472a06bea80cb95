package listen

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	// checkInterval is how often a session is checked. A server of version 14 or later ends a session that is silent
	// for three times as long: a relay that hangs must not keep the locks.
	checkInterval = 20 * time.Second
	// lockRetry is how long to wait before trying again to get a lock. Another relay
	// is idle, or a long transaction has inserted.
	lockRetry = 5 * time.Second
	// callTimeout bounds a statement.
	callTimeout = 10 * time.Second
)

// session is a connection that listens for its members.
type session struct {
	hub         *Hub
	userTimeout string
	cancel      context.CancelFunc
	members     map[*member]struct{} // guarded by hub.mu

	// Owned by run.
	conn   *pgx.Conn
	waitAt time.Time // when a lock may be waited for

	mu      sync.Mutex
	changed bool               // a member came, leaves, was paused or resumed, since run last looked
	wake    context.CancelFunc // ends a wait for notifications; nil if there is none
}

// member is a listener in a session, and its table.
type member struct {
	*Listener
	table    string
	tableOID int64

	leaves, seen bool // guarded by hub.mu
	// err is why the member does not listen any more; set before ended is closed.
	err   error
	ended chan struct{}

	// Owned by the session.
	checked bool // its trigger was looked at
	listens bool // LISTEN was executed
	locked  bool
	lockAt  time.Time // when to try to get the lock
}

func (m *member) channel() string { return fmt.Sprint("relay_", m.tableOID) }

const sessionSQL = `
SELECT set_config('statement_timeout', '15s', false),
       set_config('tcp_keepalives_idle', '15', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', $1, false),
       (SELECT set_config(name, $2, false) FROM pg_settings WHERE name = 'idle_session_timeout')`

// The session is the listeners' own: see pg.SearchPath.
const searchPathSQL = `
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)`

// run connects and serves the members until ctx is done or an error.
func (s *session) run(ctx context.Context) {
	defer s.cancel()
	s.hub.end(s, s.connectAndServe(ctx))
}

func (s *session) connectAndServe(ctx context.Context) error {
	config, err := pg.ConnConfig(s.hub.URL)
	if err != nil {
		return err
	}
	if s.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		s.conn.Close(closing)
	}()
	if err := s.checkDirect(ctx); err != nil {
		return err
	}
	if err := s.exec(ctx, searchPathSQL); err != nil {
		return err
	}
	if err := s.exec(ctx, sessionSQL, s.userTimeout, pg.Milliseconds(3*checkInterval)); err != nil {
		return err
	}
	return s.serve(ctx)
}

func (s *session) exec(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.conn.Exec(ctx, sql, args...)
	return err
}

// interrupt ends a wait for notifications, or keeps the next from beginning.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	if s.wake != nil {
		s.wake()
	}
}

// remove ends a member; hub.mu is held.
func (s *session) remove(m *member, err error) {
	m.setInterrupt(nil)
	delete(s.members, m)
	m.err = err
	close(m.ended)
}

// giveUp ends members that leave, or whose trigger is gone, unless they are the last: those wait for the session's end.
func (s *session) giveUp(gone []*member) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if len(gone) == len(s.members) {
		return
	}
	for _, m := range gone {
		s.remove(m, errNoTrigger) // one that leaves does not look
	}
}

// isLast reports whether no member has come meanwhile; then none comes any more.
func (s *session) isLast() bool {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for m := range s.members {
		if !m.leaves && !m.seen {
			return false
		}
	}
	if s.hub.session == s {
		s.hub.session = nil
	}
	return true
}

// current returns the members that stay, and those that leave.
func (s *session) current() (stay, leave []*member) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for m := range s.members {
		m.seen = true
		if m.leaves {
			leave = append(leave, m)
		} else {
			stay = append(stay, m)
		}
	}
	return stay, leave
}

// serve holds the locks of the members that are not paused, and counts notifications.
func (s *session) serve(ctx context.Context) error {
	checkAt := time.Now().Add(checkInterval)
	for {
		s.mu.Lock()
		s.changed = false
		s.mu.Unlock()
		now := time.Now()
		members, leaving := s.current()
		if !now.Before(checkAt) {
			if err := s.checkDirect(ctx); err != nil {
				return err
			}
			checkAt = now.Add(checkInterval)
			for _, m := range members {
				m.checked = false
			}
		}
		members, err := s.listen(ctx, members, leaving)
		if err != nil {
			return err
		}
		if len(members) == 0 && s.isLast() {
			return errNoTrigger
		}
		if err := s.unlock(ctx, now, members); err != nil {
			return err
		}
		if err := s.lock(ctx, now, members); err != nil {
			return err
		}
		until := checkAt
		for _, m := range members {
			if m.locked {
				m.onListening(ctx)
			} else if !m.isPaused() && m.lockAt.Before(until) {
				until = m.lockAt
			}
		}
		if err := s.wait(ctx, until, members); err != nil {
			return err
		}
	}
}

// checkDirect returns an obstacle if the connection leads to a pooler.
func (s *session) checkDirect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pooled, err := pg.ThroughPooler(ctx, s.conn)
	if err == nil && pooled {
		err = errPooled
	}
	return err
}

// triggersSQL are the tables of $1 that have the trigger. See otherLockSQL.
const triggersSQL = `
SELECT c.oid::bigint FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'outbox_notify' AND NOT t.tgisinternal
WHERE c.oid = ANY ($1::bigint[]::oid[]) AND t.tgenabled IN ('O', 'A') AND c.oid = ANY (SELECT to_regclass(n) FROM unnest($2::text[]) n)
  AND NOT ` + otherLockSQL

// listen listens for new members and gives up those that leave, or whose trigger is gone. It returns the others.
func (s *session) listen(ctx context.Context, members, leaving []*member) (listening []*member, err error) {
	armed, err := s.armed(ctx, members)
	if err != nil {
		return nil, err
	}
	gone, commands := leaving, []string(nil)
	for _, m := range members {
		if m.checked || armed[m.tableOID] {
			listening = append(listening, m)
		} else {
			gone = append(gone, m)
		}
	}
	for _, m := range gone {
		if m.listens {
			commands = append(commands, "UNLISTEN "+m.channel())
		}
	}
	for _, m := range listening {
		if !m.listens {
			commands = append(commands, "LISTEN "+m.channel())
		}
		m.checked, m.listens = true, true
	}
	if len(commands) > 0 {
		if err := s.simple(ctx, strings.Join(commands, "; ")); err != nil {
			return nil, err
		}
	}
	if err := s.release(ctx, gone); err != nil {
		return nil, err
	}
	s.giveUp(gone)
	return listening, nil
}

// armed returns which tables of the unchecked members have the trigger.
func (s *session) armed(ctx context.Context, members []*member) (map[int64]bool, error) {
	var (
		oids   []int64
		tables []string
		found  = map[int64]bool{}
	)
	for _, m := range members {
		if !m.checked {
			oids, tables = append(oids, m.tableOID), append(tables, m.table)
		}
	}
	if len(oids) == 0 {
		return found, nil
	}
	rows, err := s.query(ctx, triggersSQL, oids, tables)
	for _, row := range rows {
		found[row.oid] = true
	}
	return found, err
}

// simple executes several statements at once.
func (s *session) simple(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// The lock's key is "rlyw" and the table's oid, as in the trigger.
const unlockSQL = `
SELECT o, pg_advisory_unlock(1919711607, o::oid::int4) FROM unnest($1::bigint[]) o`

// unlock releases the locks of members that are paused.
func (s *session) unlock(ctx context.Context, now time.Time, members []*member) error {
	var paused []*member
	for _, m := range members {
		if m.locked && m.isPaused() {
			paused = append(paused, m)
			m.lockAt = now // to get it at once when it is resumed
		}
	}
	return s.release(ctx, paused)
}

// release releases the locks that members have.
func (s *session) release(ctx context.Context, members []*member) error {
	var oids []int64
	for _, m := range members {
		if m.locked {
			oids = append(oids, m.tableOID)
			m.locked = false
		}
	}
	if len(oids) == 0 {
		return nil
	}
	_, err := s.query(ctx, unlockSQL, oids)
	return err
}

// tryLocksSQL tries to get the locks of tables, and says which of the others another relay holds.
const tryLocksSQL = `
WITH tried AS MATERIALIZED (
  SELECT o, pg_try_advisory_lock(1919711607, o::oid::int4) AS locked FROM unnest($1::bigint[]) o
)
SELECT o, locked, NOT locked AND EXISTS (
  SELECT FROM pg_locks
  WHERE locktype = 'advisory' AND classid = 1919711607 AND objid = o::oid AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode = 'ExclusiveLock' AND granted)
FROM tried`

// With inserts all the time the lock is never free by itself. A session that waits in its queue keeps new
// transactions from sharing it, and those that share it end soon. A failure to get it is caught, so that it does not
// appear in the server's log.
const waitLockSQL = `
DO $wait$ BEGIN
  PERFORM set_config('lock_timeout', '%s', true);
  PERFORM pg_advisory_lock(1919711607, %d::bigint::oid::int4);
EXCEPTION WHEN lock_not_available THEN NULL;
END $wait$`

const haveLockSQL = `
SELECT $1::bigint, EXISTS (
  SELECT FROM pg_locks
  WHERE locktype = 'advisory' AND classid = 1919711607 AND objid = $1::bigint::oid AND objsubid = 2
    AND pid = pg_backend_pid() AND mode = 'ExclusiveLock' AND granted)`

// lock tries to get the locks of members that are not paused, all at once as soon as one of them is due.
func (s *session) lock(ctx context.Context, now time.Time, members []*member) error {
	var (
		oids []int64
		due  bool
		of   = map[int64]*member{}
	)
	for _, m := range members {
		if !m.locked && !m.isPaused() {
			due = due || !now.Before(m.lockAt)
			oids = append(oids, m.tableOID)
			of[m.tableOID] = m
		}
	}
	if !due {
		return nil
	}
	rows, err := s.query(ctx, tryLocksSQL, oids)
	if err != nil {
		return err
	}
	var wanted []*member
	for _, row := range rows {
		m := of[row.oid]
		m.locked = row.is
		if !row.is && !row.elsewhere { // a lock that another relay holds is not waited for
			wanted = append(wanted, m)
			continue
		}
		m.lockAt = now.Add(lockRetry)
	}
	if len(wanted) == 0 {
		return nil
	}
	if now.Before(s.waitAt) {
		for _, m := range wanted {
			m.lockAt = s.waitAt
		}
		return nil
	}
	first := slices.MinFunc(wanted, func(a, b *member) int { return a.lockAt.Compare(b.lockAt) })
	return s.waitLock(ctx, first, len(members) > 1)
}

// waitLock waits for a lock, at most a tenth of the time, and briefly if the session has others to notify.
func (s *session) waitLock(ctx context.Context, m *member, others bool) error {
	began, timeout := time.Now(), 100*time.Millisecond
	if others {
		timeout /= 4
	}
	if err := s.exec(ctx, fmt.Sprintf(waitLockSQL, pg.Milliseconds(timeout), m.tableOID)); err != nil {
		return err
	}
	has, err := s.query(ctx, haveLockSQL, m.tableOID)
	if err != nil {
		return err
	}
	m.locked = has[0].is
	now := time.Now()
	m.lockAt, s.waitAt = now.Add(lockRetry), now.Add(10*now.Sub(began))
	return nil
}

// answer is about one table.
type answer struct {
	oid           int64
	is, elsewhere bool
}

func (s *session) query(ctx context.Context, sql string, args ...any) (all []answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := s.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a answer, err error) {
		return a, row.Scan([]any{&a.oid, &a.is, &a.elsewhere}[:len(row.FieldDescriptions())]...)
	})
}

// wait returns after a notification, at until, or when it is interrupted.
func (s *session) wait(ctx context.Context, until time.Time, members []*member) error {
	waitCtx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if !s.waits(cancel) {
		return nil
	}
	defer s.waits(nil)
	got, err := s.conn.WaitForNotification(waitCtx)
	switch {
	case err == nil:
		for _, m := range members {
			if m.channel() == got.Channel {
				m.onCommit()
			}
		}
	case ctx.Err() != nil:
		return ctx.Err()
	case waitCtx.Err() != nil && !s.conn.IsClosed():
		return nil
	}
	return err
}

// waits sets how interrupt ends a wait; false: it must not begin.
func (s *session) waits(wake context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = wake
	return !s.changed
}
