package pipeline

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

var errStarting = errors.New("starting")

// health is what readiness is told from.
type health struct {
	stalledAfter time.Duration

	mu        sync.Mutex
	bufferErr error
	sinkErr   error
	workSince time.Time // there has been work, and nothing got done, since
}

func (h *health) buffer(err error) { h.set(&h.bufferErr, err) }
func (h *health) sink(err error)   { h.set(&h.sinkErr, err) }

func (h *health) set(field *error, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*field = err
}

// looked hears of a look; only one that counted fresh events can tell that there
// is nothing to do.
func (h *health) looked(backlog outbox.Backlog, counted bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bufferErr = err
	switch {
	case err != nil:
	case backlog.Unclaimed > 0 || backlog.Due > 0:
		if h.workSince.IsZero() {
			h.workSince = time.Now()
		}
	case counted:
		h.workSince = time.Time{}
	}
}

// progressed: a batch was settled.
func (h *health) progressed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workSince = time.Time{}
}

func (h *health) ready(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.bufferErr != nil:
		return fmt.Errorf("database: %w", h.bufferErr)
	case h.sinkErr != nil:
		return fmt.Errorf("sink: %w", h.sinkErr)
	case !h.workSince.IsZero() && now.Sub(h.workSince) > h.stalledAfter:
		return fmt.Errorf("stalled: events wait, and no batch was settled for %v", now.Sub(h.workSince).Round(time.Second))
	}
	return nil
}
