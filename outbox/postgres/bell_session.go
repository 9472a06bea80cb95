package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"

	"github.com/jackc/pgx/v5"
)

const (
	// stillThere is how often a connection that listens is tried; a server of version
	// 14 and later ends it when nothing was heard of it for three times as long: a
	// relay that hangs must not hold the lock.
	stillThere = 20 * time.Second
	// holdAgain is how long after a try in vain the lock is tried again: another relay
	// sleeps, or a long transaction has inserted.
	holdAgain = 5 * time.Second
	// askTimeout bounds a statement.
	askTimeout = 10 * time.Second
)

// listener is a connection that listens.
type listener struct {
	bell *Bell
	conn *pgx.Conn
	oid  int64 // of the table
}

// listen listens until ctx is done or something is in the way. well is called when it
// begins to hear for the first time.
func (l *Bell) listen(ctx context.Context, well func()) error {
	t, err := l.b.ready(ctx)
	if err != nil {
		return err
	}
	// Through the pool first: without the trigger no connection is needed.
	r, err := l.b.ring(ctx, t.events)
	if err != nil {
		return err
	}
	if !r.works() {
		return errNoRing
	}
	config, err := pg.ConnConfig(l.b.config.URL)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		conn.Close(closing)
	}()
	s := &listener{bell: l, conn: conn, oid: r.oid}
	if err := s.check(ctx, t); err != nil {
		return err
	}
	if err := s.begin(ctx, t); err != nil {
		return err
	}
	return s.serve(ctx, t, well)
}

// check asks whether the connection is the server's own, and the trigger there.
func (s *listener) check(ctx context.Context, t *table) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pooled, err := pg.ThroughPooler(ctx, s.conn)
	if err != nil {
		return err
	}
	if pooled {
		return errPooled
	}
	var r ring
	err = s.conn.QueryRow(ctx, ringSQL, t.events).Scan(&r.oid, &r.installed, &r.enabled)
	if err == nil && (!r.works() || r.oid != s.oid) {
		err = errNoRing
	}
	return err
}

const sessionSQL = `
SELECT set_config('statement_timeout', '15s', false), set_config('lock_timeout', '100ms', false),
       set_config('tcp_keepalives_idle', '15', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', $1, false),
       (SELECT set_config(name, $2, false) FROM pg_settings WHERE name = 'idle_session_timeout')`

// begin makes the connection listen.
func (s *listener) begin(ctx context.Context, t *table) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := s.conn.Exec(ctx, sessionSQL, s.bell.b.db.UserTimeout(), pg.Milliseconds(3*stillThere)); err != nil {
		return err
	}
	_, err := s.conn.Exec(ctx, fmt.Sprintf("LISTEN relay_%d", s.oid))
	return err
}

// serve holds the lock while the bell is not muted, and passes on what rings.
func (s *listener) serve(ctx context.Context, t *table, well func()) error {
	var (
		held    bool
		holdAt  time.Time // not before
		checkAt = time.Now().Add(stillThere)
	)
	for {
		now := time.Now()
		if !now.Before(checkAt) {
			if err := s.check(ctx, t); err != nil {
				return err
			}
			checkAt = time.Now().Add(stillThere)
		}
		var err error
		muted := s.bell.isMuted()
		switch {
		case muted && held:
			held, holdAt, err = false, now, s.release(ctx)
		case !muted && !held && !now.Before(holdAt):
			held, err = s.hold(ctx)
			holdAt = time.Now().Add(holdAgain)
		}
		if err != nil {
			return err
		}
		until := checkAt
		if held {
			well()
			s.bell.hear()
		} else if !muted && holdAt.Before(until) {
			until = holdAt
		}
		if err := s.wait(ctx, until, muted); err != nil {
			return err
		}
	}
}

// wait waits for a notification until then, or until the bell is muted, or is not any
// more.
func (s *listener) wait(ctx context.Context, until time.Time, muted bool) error {
	waitCtx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if s.bell.disturbedBy(cancel) != muted {
		return nil
	}
	defer s.bell.disturbedBy(nil)
	_, err := s.conn.WaitForNotification(waitCtx)
	switch {
	case err == nil:
		s.bell.ring()
	case ctx.Err() != nil:
		return ctx.Err()
	case waitCtx.Err() != nil && !s.conn.IsClosed():
		return nil
	}
	return err
}

// disturbedBy says how Mute ends a wait, and returns whether the bell is muted now.
func (l *Bell) disturbedBy(end context.CancelFunc) (muted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.disturb = end
	return l.muted
}

// The lock's key is "rlyw" and the table's oid, as the trigger has it.
const tryHoldSQL = `
SELECT pg_try_advisory_lock(1919711607, $1::bigint::oid::int4)`

// Beside inserts all the time the lock is never free by itself; but who stands in its
// queue keeps those away who would share it, and those have it not for long. That it
// cannot be had is caught, and so not in the server's log. Another relay that holds it
// is not waited for.
const waitHoldSQL = `
DO $wait$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_locks
     WHERE locktype = 'advisory' AND classid = 1919711607 AND objid = %[1]d AND objsubid = 2
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND mode = 'ExclusiveLock' AND granted) THEN
    PERFORM pg_advisory_lock(1919711607, %[1]d::bigint::oid::int4);
  END IF;
EXCEPTION WHEN lock_not_available THEN NULL;
END $wait$`

// hold tries to have the lock alone.
func (s *listener) hold(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := s.conn.QueryRow(ctx, tryHoldSQL, s.oid).Scan(&held); err != nil || held {
		return held, err
	}
	if _, err := s.conn.Exec(ctx, fmt.Sprintf(waitHoldSQL, s.oid)); err != nil {
		return false, err
	}
	err = s.conn.QueryRow(ctx, tryHoldSQL, s.oid).Scan(&held) // who has it gets it again
	return held, err
}

const releaseSQL = `SELECT pg_advisory_unlock_all()`

func (s *listener) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := s.conn.Exec(ctx, releaseSQL)
	return err
}
