// Package watermark keeps the position beyond which claims look for events, so that they do not
// walk over the batches that wait. There is no floor as with PostgreSQL: with one writer no event
// commits behind the cursor. It also keeps where to look for delayed events, which the cursor passes.
package watermark

import (
	"math"
	"sync"
	"time"
)

// sweepEvery is how often a count starts at the beginning, for the ids and stamps that were
// changed by hand.
const sweepEvery = 5 * time.Minute

// lateInterval is between counts that look behind the cursor, if rows become events after their insert. lateRest is the rest after one, in multiples
// of how long it took.
const (
	lateInterval = 2 * time.Second
	lateRest     = 50
)

// Beginning is before all ids. An application may insert an event with an id of its own, and that may be 0 or less.
const Beginning = math.MinInt64

// Cursor is the id beyond which claims look. It is safe for concurrent use.
type Cursor struct {
	mu      sync.Mutex
	at      int64
	highest int64 // id claimed so far
	swept   time.Time
	late    time.Time // when to look behind it again
	delayed delayedEvents
}

// NewCursor returns a Cursor at the beginning.
func NewCursor() *Cursor { return &Cursor{at: Beginning, highest: Beginning} }

// Position returns the id beyond which to look.
func (c *Cursor) Position() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// SweepDue reports whether it is time to look at everything; true at the start.
func (c *Cursor) SweepDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.swept) >= sweepEvery
}

// Swept records a sweep and moves the cursor to the beginning.
func (c *Cursor) Swept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.swept = Beginning, time.Now()
	c.delayed.forget()
}

// Claimed records a claim that looked beyond from and took ids up to last. The cursor moves there, or to
// just before skipped, the first event that the claim left behind (nil: none). If the cursor is no
// longer at from, a sweep began or another claim moved it, and it stays.
func (c *Cursor) Claimed(from, last int64, skipped *int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.highest = max(c.highest, last)
	if c.at != from {
		return
	}
	c.at = last
	if skipped != nil {
		c.at = min(last, *skipped-1)
	}
}

// Exhausted records that nothing unclaimed lies beyond from: later events have ids beyond all
// claimed ones.
func (c *Cursor) Exhausted(from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == from {
		c.at = max(c.at, c.highest)
	}
}

// Renumbered moves the cursor to the beginning because ids are used again.
func (c *Cursor) Renumbered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.highest = Beginning, Beginning
}

// Restart makes the cursor a new one, because another file is read.
func (c *Cursor) Restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.highest, c.swept = Beginning, Beginning, time.Time{}
	c.delayed = delayedEvents{}
}

// LateDue reports whether it is time to look behind the cursor.
func (c *Cursor) LateDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !time.Now().Before(c.late)
}

// LateSwept records a look behind the cursor, which moves to the beginning if there were events.
func (c *Cursor) LateSwept(took time.Duration, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found {
		c.at = Beginning
		return
	}
	c.late = time.Now().Add(min(max(lateInterval, lateRest*took), sweepEvery))
}

// Passed records that no row up to an id is an event that is not claimed.
func (c *Cursor) Passed(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.highest = max(c.highest, id)
}

// Reset moves the cursor to the beginning after a claim whose commit is unknown.
func (c *Cursor) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = Beginning
}
