package listen

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

const (
	// checkInterval is how often a session is checked. A server of version 14 or later ends a session that is silent
	// for three times as long: a relay that hangs must not keep the lock.
	checkInterval = 20 * time.Second
	// lockRetry is how long to wait before trying again to get the lock. Another relay
	// is idle, or a long transaction has inserted.
	lockRetry = 5 * time.Second
	// callTimeout bounds a statement.
	callTimeout = 10 * time.Second
)

// session is a connection that listens.
type session struct {
	*Listener
	conn     *pgx.Conn
	table    string
	tableOID int64
}

const sessionSQL = `
SELECT set_config('statement_timeout', '15s', false), set_config('lock_timeout', '100ms', false),
       set_config('tcp_keepalives_idle', '15', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', $1, false),
       (SELECT set_config(name, $2, false) FROM pg_settings WHERE name = 'idle_session_timeout')`

// The session is the listener's own: see pg.SearchPath.
const searchPathSQL = `
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)`

// listen listens until ctx is done or an error.
func (l *Listener) listen(ctx context.Context) error {
	table, err := l.config.Table(ctx)
	if err != nil {
		return err
	}
	// Look through the pool first: without the trigger no connection is needed.
	trigger, err := findTrigger(ctx, l.config.DB, table)
	if err != nil {
		return err
	}
	if !trigger.enabled {
		return errNoTrigger
	}
	conn, err := connect(ctx, l.config.URL)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(closing)
	}()
	s := &session{Listener: l, conn: conn, table: table, tableOID: trigger.tableOID}
	if err := s.checkDirect(ctx); err != nil {
		return err
	}
	if err := s.exec(ctx, searchPathSQL); err != nil {
		return err
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	if err := s.exec(ctx, sessionSQL, l.config.DB.UserTimeout(), pg.Milliseconds(3*checkInterval)); err != nil {
		return err
	}
	if err := s.exec(ctx, fmt.Sprintf("LISTEN relay_%d", s.tableOID)); err != nil {
		return err
	}
	return s.serve(ctx)
}

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pg.ConnConfig(url)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config)
}

func (s *session) exec(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.conn.Exec(ctx, sql, args...)
	return err
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

// check returns an obstacle if the connection leads to a pooler, or the trigger is gone.
func (s *session) check(ctx context.Context) error {
	if err := s.checkDirect(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var t trigger
	err := s.conn.QueryRow(ctx, triggerSQL, s.table).Scan(&t.tableOID, &t.installed, &t.enabled)
	if err == nil && (!t.enabled || t.tableOID != s.tableOID) {
		return errNoTrigger
	}
	return err
}

// serve holds the lock unless the listener is paused, and counts notifications.
func (s *session) serve(ctx context.Context) error {
	var (
		locked  bool
		lockAt  time.Time
		checkAt = time.Now().Add(checkInterval)
	)
	for {
		now := time.Now()
		if !now.Before(checkAt) {
			if err := s.check(ctx); err != nil {
				return err
			}
			checkAt = time.Now().Add(checkInterval)
		}
		var err error
		paused := s.isPaused()
		switch {
		case paused && locked:
			locked, lockAt, err = false, now, s.exec(ctx, unlockSQL)
		case !paused && !locked && !now.Before(lockAt):
			locked, err = s.lock(ctx)
			lockAt = time.Now().Add(lockRetry)
		}
		if err != nil {
			return err
		}
		until := checkAt
		if locked {
			s.onListening(ctx)
		} else if !paused && lockAt.Before(until) {
			until = lockAt
		}
		if err := s.wait(ctx, until, paused); err != nil {
			return err
		}
	}
}

// wait returns after a notification, at until, or when the listener is paused or resumed.
func (s *session) wait(ctx context.Context, until time.Time, paused bool) error {
	waitCtx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if s.setInterrupt(cancel) != paused {
		return nil
	}
	defer s.setInterrupt(nil)
	_, err := s.conn.WaitForNotification(waitCtx)
	switch {
	case err == nil:
		s.onCommit()
	case ctx.Err() != nil:
		return ctx.Err()
	case waitCtx.Err() != nil && !s.conn.IsClosed():
		return nil
	}
	return err
}

// The lock's key is "rlyw" and the table's oid, as in the trigger.
const tryLockSQL = `
SELECT pg_try_advisory_lock(1919711607, $1::bigint::oid::int4)`

// With inserts all the time the lock is never free by itself. A session that waits in its queue keeps new
// transactions from sharing it, and those that share it end soon. A failure to get it is caught, so that it does not
// appear in the server's log. A lock that another relay holds is not waited for.
const waitLockSQL = `
DO $wait$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_locks
     WHERE locktype = 'advisory' AND classid = 1919711607 AND objid = %[1]d AND objsubid = 2
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND mode = 'ExclusiveLock' AND granted) THEN
    PERFORM pg_advisory_lock(1919711607, %[1]d::bigint::oid::int4);
  END IF;
EXCEPTION WHEN lock_not_available THEN NULL;
END $wait$`

// lock tries to get the lock.
func (s *session) lock(ctx context.Context) (locked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.conn.QueryRow(ctx, tryLockSQL, s.tableOID).Scan(&locked); err != nil || locked {
		return locked, err
	}
	if err := s.exec(ctx, fmt.Sprintf(waitLockSQL, s.tableOID)); err != nil {
		return false, err
	}
	err = s.conn.QueryRow(ctx, tryLockSQL, s.tableOID).Scan(&locked) // a session may take its lock twice
	return locked, err
}

const unlockSQL = `SELECT pg_advisory_unlock_all()`
