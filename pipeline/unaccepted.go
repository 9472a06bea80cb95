package pipeline

import (
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// unaccepted knows since when a sink has accepted nothing, and what it said last. It is safe for concurrent use; nil knows nothing.
type unaccepted struct {
	mu    sync.Mutex
	since time.Time
	err   string
}

// settled takes what became of a batch that was sent.
func (u *unaccepted) settled(outcomes []buffer.Outcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range outcomes {
		switch o := &outcomes[i]; {
		case o.Verdict == buffer.Delivered:
			u.since, u.err = time.Time{}, ""
			return
		case o.Error != "":
			if u.since.IsZero() {
				u.since = time.Now()
			}
			u.err = o.Error
		}
	}
}

// read returns what the sink said last; "" if it accepts events, or nothing was sent.
func (u *unaccepted) read() (text string, since time.Time) {
	if u == nil {
		return "", time.Time{}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err, u.since
}
