package sqlite

import (
	"sync"
	"time"
)

// sweepEvery is how often a look begins at the beginning. With one writer no
// event commits behind the cursor; this is for what is done by hand.
const sweepEvery = 5 * time.Minute

// cursor is where claims look: beyond it. The zero cursor is at the beginning.
type cursor struct {
	mu      sync.Mutex
	at      int64
	highest int64 // id claimed so far
	swept   time.Time
}

// from returns the id beyond which to look.
func (c *cursor) from() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// sweepDue tells whether it is time to look at everything, at the start too.
func (c *cursor) sweepDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.swept) >= sweepEvery
}

// sweep begins at the beginning.
func (c *cursor) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.swept = 0, time.Now()
}

// claimed tells what a claim that looked beyond from took last. The cursor moves up to
// there, or to just before left, the first event that was left behind; 0: none was.
// When it is not at from any more, a sweep began or another claim moved it, and it
// stays.
func (c *cursor) claimed(from, last, left int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.highest = max(c.highest, last)
	if c.at != from {
		return
	}
	c.at = last
	if left > 0 {
		c.at = min(last, left-1)
	}
}

// nothingBeyond: whoever looked beyond from saw nothing unclaimed there, so what
// there is to come has ids beyond all that were claimed.
func (c *cursor) nothingBeyond(from int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == from {
		c.at = max(c.at, c.highest)
	}
}

// restart goes back to the beginning: a claim was cut off, and nobody knows
// whether it happened.
func (c *cursor) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = 0
}
