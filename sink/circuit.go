package sink

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// circuit stops the claiming while the sink is away, so that the backlog stays
// unclaimed. It opens after several sends in a row that found no sink, and
// closes when the sink's own Check, or a send, succeeds.
//
// Sends that go through in between keep it closed: an address that is away must
// not stop those that work.
type circuit struct {
	mu       sync.Mutex
	failures int       // sends in a row that found no sink
	until    time.Time // no ticket before, while failures >= openAfter
	pause    time.Time // the sink asked for it (Retry-After): no ticket before
	err      error
}

const (
	openAfter    = 2
	pauseAtMost  = 5 * time.Second
	checkTimeout = 5 * time.Second
)

// sent hears how a send ended.
func (c *circuit) sent(err error, backoff Backoff) {
	_, partly := errors.AsType[*BatchError](err)
	away := errors.Is(err, ErrUnavailable) && !partly
	c.mu.Lock()
	defer c.mu.Unlock()
	if !away {
		c.failures = 0
		return
	}
	c.failures++
	c.err = err
	now := time.Now()
	c.until = now.Add(min(backoff.After(c.failures), pauseAtMost))
	if asked := now.Add(retryAfter(err)); asked.After(c.pause) {
		c.pause = asked // nor does a send that was under way end it sooner
	}
}

// open tells whether tickets are to be held back, and whether Check may be asked
// for leave.
func (c *circuit) open() (open, ask bool) {
	now := time.Now()
	paused, away := now.Before(c.pause), c.failures >= openAfter
	return paused || away, !paused && !now.Before(c.until)
}

func (c *circuit) allow(ctx context.Context, s Sink, log *slog.Logger) bool {
	c.mu.Lock()
	open, ask := c.open()
	failures := c.failures
	c.mu.Unlock()
	if !open || !ask {
		return !open
	}
	checkCtx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := s.Check(checkCtx)
	if err == nil {
		log.InfoContext(ctx, "the sink answers again")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.err = err
		c.until = time.Now().Add(min(time.Duration(failures)*time.Second, pauseAtMost))
		return false
	}
	c.failures = 0
	return true
}

func (c *circuit) outage() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if open, _ := c.open(); open {
		return c.err
	}
	return nil
}
