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
	pause    bool      // the sink asked for it (Retry-After): until holds anyhow
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
		c.failures, c.err, c.pause = 0, nil, false
		return
	}
	c.failures++
	c.err = err
	if asked := retryAfter(err); asked > 0 {
		c.pause, c.until = true, time.Now().Add(asked)
		return
	}
	c.until = time.Now().Add(min(backoff.After(c.failures), pauseAtMost))
}

func (c *circuit) open() bool { return c.pause || c.failures >= openAfter }

func (c *circuit) allow(ctx context.Context, s Sink, log *slog.Logger) bool {
	c.mu.Lock()
	isOpen, waits, failures := c.open(), time.Now().Before(c.until), c.failures
	c.mu.Unlock()
	switch {
	case !isOpen:
		return true
	case waits:
		return false
	}
	checkCtx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := s.Check(checkCtx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.err = err
		c.until = time.Now().Add(min(time.Duration(failures)*time.Second, pauseAtMost))
		return false
	}
	log.InfoContext(ctx, "the sink answers again")
	c.failures, c.err, c.pause = 0, nil, false
	return true
}

func (c *circuit) outage() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open() {
		return nil
	}
	return c.err
}
