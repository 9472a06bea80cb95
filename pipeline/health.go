package pipeline

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/delivery"
	"github.com/outboxrelay/relay/outbox/buffer"
)

var errStarting = errors.New("starting")

// health is what readiness is told from.
type health struct {
	stalledAfter time.Duration

	mu        sync.Mutex
	bufferErr error
	sinkErr   error
	claimErr  error // the last claim failed, and there is something to claim
	heldErr   error // fresh events wait, and max_waiting keeps them from being claimed
	// Sends in a row that got nothing through because the sink, or the address
	// they went to, was away; and why. One alone may be a hiccup.
	unsent    int
	unsentWhy string
	waiting   bool // batches wait, as last seen or done
	sending   map[uuid.UUID]struct{}
	// There have been fresh events, or batches that were due, and nothing got
	// done, since.
	freshSince, dueSince time.Time
}

func (h *health) buffer(err error) { h.set(&h.bufferErr, err) }
func (h *health) sink(err error)   { h.set(&h.sinkErr, err) }
func (h *health) held(err error)   { h.set(&h.heldErr, err) }
func (h *health) claim(err error)  { h.set(&h.claimErr, err) }

// waits tells whether batches wait.
func (h *health) waits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

func (h *health) set(field *error, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*field = err
}

// looked hears of a look; only one that counted fresh events can tell whether
// there are any.
func (h *health) looked(backlog buffer.Backlog, counted bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bufferErr = err
	if err != nil {
		return
	}
	if backlog.Due == 0 && backlog.Waiting == 0 {
		h.unsent = 0 // nothing was put back, or somebody else has sent it
		if counted && backlog.Unclaimed == 0 {
			h.claimErr = nil
		}
	}
	h.waiting = backlog.Waiting > 0
	now := time.Now()
	note(&h.dueSince, backlog.Due > 0, now)
	if counted {
		note(&h.freshSince, backlog.Unclaimed > 0, now)
	}
}

// note keeps in since when something began that still is.
func note(since *time.Time, is bool, now time.Time) {
	switch {
	case !is:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	}
}

// mostSending bounds what is remembered of sends whose batch was lost meanwhile.
const mostSending = 1000

// sent hears of a batch that was sent.
func (h *health) sent(b *buffer.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sending == nil || len(h.sending) >= mostSending {
		h.sending = map[uuid.UUID]struct{}{}
	}
	h.sending[b.GroupID] = struct{}{}
}

// settled hears of a batch that was settled. That is progress, unless the whole
// of it only waits again.
func (h *health) settled(b *buffer.Lease, outcomes []buffer.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, sent := h.sending[b.GroupID]
	delete(h.sending, b.GroupID)
	for i := range outcomes {
		h.waiting = h.waiting || outcomes[i].Verdict == buffer.Retry
	}
	if len(outcomes) == 1 && outcomes[0].Verdict == buffer.Retry {
		if sent && outcomes[0].Outages > 0 { // not one put aside
			h.unsent++
			h.unsentWhy = outcomes[0].Error
		}
		return
	}
	h.unsent = 0
	h.freshSince, h.dueSince = time.Time{}, time.Time{}
}

func (h *health) ready(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.bufferErr != nil:
		return fmt.Errorf("database: %w", h.bufferErr)
	case h.claimErr != nil:
		return fmt.Errorf("database: %w", h.claimErr)
	case h.sinkErr != nil:
		return fmt.Errorf("sink: %w", h.sinkErr)
	case h.unsent >= 2:
		return fmt.Errorf("sink: %d sends in a row got nothing through, the last: %s", h.unsent, h.unsentWhy)
	case h.heldErr != nil:
		return h.heldErr
	}
	for _, since := range []time.Time{h.freshSince, h.dueSince} {
		if stalled := now.Sub(since); !since.IsZero() && stalled > h.stalledAfter {
			return fmt.Errorf("stalled: events wait, and none was delivered or buried for %v", stalled.Round(time.Second))
		}
	}
	return nil
}

// observer lets health hear what the worker sends and settles.
type observer struct {
	delivery.Observer
	health *health
}

func (o observer) Sent(b *buffer.Lease, took time.Duration) {
	o.health.sent(b)
	o.Observer.Sent(b, took)
}

func (o observer) Settled(b *buffer.Lease, outcomes []buffer.Outcome, took time.Duration) {
	o.health.settled(b, outcomes)
	o.Observer.Settled(b, outcomes, took)
}
