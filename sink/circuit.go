package sink

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// circuit stops the claiming while the sink is away, so that the backlog stays
// unclaimed. It opens after two sends in a row that found no sink. Then the
// sink's own Check is asked now and then, and when that is content a single batch
// is let through for a trial, for a sink that answers may still take nothing. A
// send that goes through closes it.
//
// An address that is away must not stop those that work: sends that succeed in
// part keep the circuit closed, and the events that are left over from them, sent
// again and again, do not open it.
type circuit struct {
	mu       sync.Mutex
	failures int           // sends in a row that found no sink
	wait     time.Duration // between two trials
	until    time.Time     // no trial before
	pause    time.Time     // the sink asked for it (Retry-After): nothing before
	err      error
}

const (
	openAfter    = 2
	waitAtMost   = 5 * time.Second
	checkTimeout = 5 * time.Second
)

// sent hears how a send of b ended, and tells whether that ended an outage.
func (c *circuit) sent(b *outbox.Batch, err error, backoff Backoff) (back bool) {
	_, partly := errors.AsType[*BatchError](err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if partly || !errors.Is(err, ErrUnavailable) {
		back = c.failures >= openAfter
		c.failures = 0
		return back
	}
	c.err = err
	now := time.Now()
	if asked := now.Add(retryAfter(err)); asked.After(c.pause) {
		c.pause = asked // nor does a send that was under way end it sooner
	}
	if b.Outages > 0 && c.failures < openAfter {
		return false
	}
	c.failures++
	c.wait = min(backoff.After(c.failures), waitAtMost)
	c.until = now.Add(c.wait)
	return false
}

// allow returns how many batches may be claimed: any number, 1 for a trial, or 0.
func (c *circuit) allow(ctx context.Context, s Sink) int {
	now := time.Now()
	c.mu.Lock()
	open, paused, early := c.failures >= openAfter, now.Before(c.pause), now.Before(c.until)
	c.mu.Unlock()
	switch {
	case paused || open && early:
		return 0
	case !open:
		return math.MaxInt
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := s.Check(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = time.Now().Add(c.wait)
	if err != nil {
		c.err = err
		return 0
	}
	return 1
}

// outage is why nothing is claimed; nil when that is not so.
func (c *circuit) outage() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures >= openAfter || time.Now().Before(c.pause) {
		return c.err
	}
	return nil
}
