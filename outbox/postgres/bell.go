package postgres

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Bell rings when events are committed: it listens, on a connection of its own, for
// what the trigger sends (see schema/notify). It is a distributor.Bell; its methods but
// Run never block. Make one with Buffer.Bell.
//
// A notification holds a lock of the whole database while its transaction waits for the
// disk, so none is sent that nobody needs. There is an advisory lock for each buffer. A
// relay that sleeps holds it alone; the trigger sends only where it cannot share the
// lock. So nothing is sent while the relay is awake, and while none is there. And
// whoever inserted without ringing shares the lock until his transaction is over: when
// the relay has it alone, all of those can be seen, and all who come after ring.
type Bell struct {
	b     *Buffer
	log   *slog.Logger
	rings chan struct{} // holds one when there is something to hear

	mu      sync.Mutex
	commits int  // that rang, and nobody was told yet
	hears   bool // the lock is held alone, and the connection listens
	lapsed  bool // it did not hear for a moment, and nobody was told yet
	muted   bool
	disturb context.CancelFunc // ends a wait for notifications; nil: there is none
}

// Bell is what the buffer's commits ring, once it runs. log takes what becomes of it;
// nil: slog.Default.
func (b *Buffer) Bell(log *slog.Logger) *Bell {
	if log == nil {
		log = slog.Default()
	}
	return &Bell{b: b, log: log, rings: make(chan struct{}, 1)}
}

// Notifications is described by distributor.Bell.
func (l *Bell) Notifications() <-chan struct{} { return l.rings }

// Drain is described by distributor.Bell.
func (l *Bell) Drain() (commits int, hears bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	commits, hears = l.commits, l.hears && !l.lapsed
	if l.hears && l.lapsed {
		l.signal() // that it hears again is said next
	}
	l.commits, l.lapsed = 0, false
	return commits, hears
}

// Pause is described by distributor.Bell.
func (l *Bell) Pause(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.muted = on
	if on {
		l.deafen()
	}
	if l.disturb != nil {
		l.disturb()
	}
}

func (l *Bell) isMuted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.muted
}

func (l *Bell) signal() {
	select {
	case l.rings <- struct{}{}:
	default:
	}
}

// ring counts a commit.
func (l *Bell) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits++
	l.signal()
}

// hear begins to hear, unless muted meanwhile: the lock is held alone.
func (l *Bell) hear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.muted && !l.hears {
		l.hears = true
		l.signal()
	}
}

func (l *Bell) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deafen()
}

func (l *Bell) deafen() {
	if l.hears {
		l.hears, l.lapsed = false, true
		l.signal()
	}
}

const (
	reconnectFirst = 250 * time.Millisecond
	reconnectMost  = 10 * time.Second
	// askAgain is how often it is looked whether the trigger is there by now, or the
	// pooler gone.
	askAgain = time.Minute
)

// Why nothing can be heard although the database answers.
var (
	errNoRing = errors.New("table has no trigger outbox_notify that is enabled")
	errPooled = errors.New("source.url goes through a pooler, where notifications get lost")
)

// Run listens until ctx is done. What keeps it from listening is said once, and while
// it lasts tried again.
func (l *Bell) Run(ctx context.Context) {
	var (
		said error
		wait = reconnectFirst
	)
	for {
		began := time.Now()
		err := l.listen(ctx, func() {
			if said != nil {
				l.log.InfoContext(ctx, "commits wake the relay")
			}
			said = nil
		})
		l.silence()
		if ctx.Err() != nil {
			return
		}
		l.tell(ctx, said, err)
		said = err
		switch {
		case errors.Is(err, errNoRing), errors.Is(err, errPooled):
			wait = askAgain
		case time.Since(began) > reconnectMost: // it had been well
			wait = reconnectFirst
		default:
			wait = min(2*wait, reconnectMost)
		}
		again := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-again.C:
		}
	}
}

const instead = "events are looked for instead: a few milliseconds after others, else every second"

// tell says why nothing is heard, unless that was said before.
func (l *Bell) tell(ctx context.Context, said, err error) {
	asked := l.b.config.Wake == buffer.WakeNotify
	switch {
	case errors.Is(err, errNoRing):
		if asked && !errors.Is(said, errNoRing) {
			l.log.WarnContext(ctx, "wake is notify, and the "+err.Error()+"; "+instead, "mend", mendRing)
		}
	case errors.Is(err, errPooled):
		switch {
		case errors.Is(said, errPooled):
		case asked:
			l.log.WarnContext(ctx, "wake is notify, and "+err.Error()+"; "+instead, "mend", mendPooled)
		default:
			l.log.InfoContext(ctx, err.Error()+"; "+instead)
		}
	case said == nil || errors.Is(said, errNoRing) || errors.Is(said, errPooled):
		l.log.WarnContext(ctx, "commits cannot be heard; "+instead+", until they can", "error", l.b.db.ConnectError(err))
	}
}

// What mends it.
const (
	mendRing   = "relay migrate -c relay.yaml; ALTER TABLE ... ENABLE TRIGGER outbox_notify where it is disabled"
	mendPooled = "a source.url that goes to the database directly, or wake: poll"
)
