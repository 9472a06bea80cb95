package listen

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// Config describes a Listener. All fields are required.
type Config struct {
	DB *pg.DB
	// Hub has the connection that listens, to the database that DB is connected to.
	Hub *Hub
	// Wake decides whether an obstacle to listening is worth a warning.
	Wake buffer.WakeMode
	// Table returns the buffer table's quoted name, or why it is not ready. replaced is closed when another table has the name.
	Table func(context.Context) (name string, replaced <-chan struct{}, err error)
	Log   *slog.Logger
}

// Listener counts the commits that notify, while Run runs. It implements
// distributor.Listener; its methods except Run never block.
type Listener struct {
	config        Config
	notifications chan struct{} // holds one when Drain has something to return
	reported      error         // why it does not listen, as logged; owned by Run, and by the session while Run waits for it

	mu        sync.Mutex
	commits   int  // since the last Drain
	listening bool // the lock is held and the connection listens
	lapsed    bool // it did not listen at some time since the last Drain
	paused    bool
	interrupt func() // has the session look at paused; nil while there is no session
}

// New returns a Listener that does not listen before Run.
func New(c Config) *Listener { return &Listener{config: c, notifications: make(chan struct{}, 1)} }

// Notifications implements distributor.Listener.
func (l *Listener) Notifications() <-chan struct{} { return l.notifications }

// Drain implements distributor.Listener.
func (l *Listener) Drain() (commits int, listening bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	commits, listening = l.commits, l.listening && !l.lapsed
	if l.listening && l.lapsed {
		l.signal() // the next Drain returns that it listens again
	}
	l.commits, l.lapsed = 0, false
	return commits, listening
}

// Pause implements distributor.Listener.
func (l *Listener) Pause(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = on
	if on {
		l.setNotListening()
	}
	if l.interrupt != nil {
		l.interrupt()
	}
}

func (l *Listener) isPaused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused
}

func (l *Listener) signal() {
	select {
	case l.notifications <- struct{}{}:
	default:
	}
}

func (l *Listener) onCommit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits++
	l.signal()
}

// onListening records that the lock is held, unless the listener was paused meanwhile.
func (l *Listener) onListening(ctx context.Context) {
	if l.reported != nil {
		l.config.Log.InfoContext(ctx, "listening for commits")
		l.reported = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.paused && !l.listening {
		l.listening = true
		l.signal()
	}
}

func (l *Listener) stopListening() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setNotListening()
}

// setNotListening is stopListening with l.mu held.
func (l *Listener) setNotListening() {
	if l.listening {
		l.listening, l.lapsed = false, true
		l.signal()
	}
}

// setInterrupt sets how Pause is passed on.
func (l *Listener) setInterrupt(interrupt func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt = interrupt
}

const (
	firstReconnect = 250 * time.Millisecond
	maxReconnect   = 10 * time.Second
	// obstacleRetry is how often to look whether an obstacle is gone.
	obstacleRetry = time.Minute
)

// obstacle is a reason not to listen although the database answers.
type obstacle struct{ text, fix string }

func (o *obstacle) Error() string { return o.text }

var (
	errNoTrigger = &obstacle{
		"the buffer table has no enabled trigger outbox_notify",
		"relay migrate -c relay.yaml; if the trigger is disabled: ALTER TABLE ... ENABLE TRIGGER outbox_notify",
	}
	errPooled = &obstacle{
		"source.url leads through a pooler, which loses notifications",
		"use a source.url that leads to the database directly, or set wake: poll",
	}
)

// errReplaced is why a listener of a table that was replaced ends; Run begins again with the other.
var errReplaced = errors.New("another table has the name of the buffer table now")

const polling = "falling back to polling (5 ms to 1 s)"

// Run listens until ctx is done. While it cannot listen, it logs why once and keeps trying.
func (l *Listener) Run(ctx context.Context) {
	wait := firstReconnect
	for {
		began := time.Now()
		err := l.listen(ctx)
		l.stopListening()
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReplaced) {
			l.config.Log.WarnContext(ctx, err.Error(), "fix", "relay migrate -c relay.yaml, if that one lacks the relay's triggers")
			continue
		}
		l.report(ctx, err)
		switch {
		case asObstacle(err) != nil:
			wait = obstacleRetry
		case time.Since(began) > maxReconnect: // it listened for a while
			wait = firstReconnect
		default:
			wait = min(2*wait, maxReconnect)
		}
		retry := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-retry.C:
		}
	}
}

// listen listens until ctx is done or an error.
func (l *Listener) listen(ctx context.Context) error {
	table, replaced, err := l.config.Table(ctx)
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
	return l.config.Hub.serve(ctx, l, table, trigger.tableOID, replaced)
}

// report logs why the listener does not listen, unless that was reported before.
func (l *Listener) report(ctx context.Context, err error) {
	log, found, before := l.config.Log, asObstacle(err), l.reported
	l.reported = err
	switch {
	case found == nil:
		if before == nil || asObstacle(before) != nil {
			log.WarnContext(ctx, "cannot listen for commits; "+polling, "error", l.config.DB.ConnectError(err))
		}
	case errors.Is(before, err):
	case l.config.Wake == buffer.WakeNotify:
		log.WarnContext(ctx, "wake is notify, but "+found.text+"; "+polling, "fix", found.fix)
	case found == errPooled:
		log.InfoContext(ctx, found.text+"; "+polling)
	}
}

func asObstacle(err error) *obstacle {
	found, _ := errors.AsType[*obstacle](err)
	return found
}
