package httpsink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/sink"
)

// limiter decides when a request may begin: at the rate of Config.Rate, at most MaxInFlight at once, and
// none while the server's quota is used up.
//
// The rate is even, without bursts. An API may count in windows that begin at any time, and a bucket that
// saves tokens would let twice the rate through around the edge of a window. Requests that begin late,
// because a timer fired late, are made up for by the next ones. Still no window of Rate.Per, wherever it
// begins, has more than Rate.Requests. (Generic cell rate algorithm, ITU-T I.371, with a log of the last
// requests.) The network may still bring requests closer together than they began.
//
// One request at a time is at the head of the queue: it takes a token, waits until the token's time and
// leaves. A request that gives up leaves its token to the next one. So a process holds no token without a
// request for it, except one when it stops.
type limiter struct {
	rate     sink.Rate
	interval time.Duration      // between two requests; 0 means no limit
	shared   buffer.TokenBucket // nil if this process counts alone
	name     string             // of the shared bucket
	reserved time.Duration      // before a deadline, for the request itself

	maxInFlight int
	inFlight    *semaphore.Weighted // nil means no limit
	queue       *semaphore.Weighted // of one; it guards the fields below

	next   time.Time   // when the next token may be used
	taken  bool        // a token was taken from the shared bucket and not used
	began  []time.Time // ring of the last Rate.Requests
	oldest int         // index of began

	mu          sync.Mutex
	pausedUntil time.Time // by the server
	pauseReason string
}

const (
	// maxLateness is how late a token can be used. Beyond it the rate begins again from now.
	maxLateness = 20 * time.Millisecond
	// maxPause is how long a request waits for the server's quota. A longer pause is an outage: the batch
	// is released.
	maxPause = 5 * time.Second
)

func newLimiter(c Config) *limiter {
	l := &limiter{rate: c.Rate, shared: c.Shared, name: c.Pipeline, reserved: c.Timeout, queue: semaphore.NewWeighted(1)}
	if c.Rate.Requests > 0 {
		n := time.Duration(c.Rate.Requests)
		l.interval = max(1, (c.Rate.Per+n-1)/n)
	}
	if c.MaxInFlight > 0 {
		l.maxInFlight, l.inFlight = c.MaxInFlight, semaphore.NewWeighted(int64(c.MaxInFlight))
	}
	return l
}

// acquire waits until a request may begin. The request must begin then, and call release when it has
// ended. If a request cannot begin early enough for ctx's deadline, acquire returns an outage at once,
// with the time to wait if it is known, and uses no token.
func (l *limiter) acquire(ctx context.Context) (release func(), err error) {
	ctx, cancel := l.reserve(ctx, time.Now())
	defer cancel()
	release = func() {}
	if l.inFlight != nil {
		if l.inFlight.Acquire(ctx, 1) != nil {
			return nil, sink.Unavailable(fmt.Errorf("not sent: max_in_flight, %d requests were in flight until the deadline", l.maxInFlight))
		}
		release = func() { l.inFlight.Release(1) }
	}
	if err := l.acquireToken(ctx); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// reserve leaves time for the request itself before ctx's deadline, but no more than half of the time.
func (l *limiter) reserve(ctx context.Context, now time.Time) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(l.reserved, deadline.Sub(now)/2)))
}

func (l *limiter) acquireToken(ctx context.Context) error {
	if l.interval == 0 {
		return l.wait(ctx, time.Time{})
	}
	if l.queue.Acquire(ctx, 1) != nil {
		return l.limited(0, "no slot before the deadline")
	}
	defer l.queue.Release(1)
	at, err := l.token(ctx)
	if err != nil {
		// Only the text: a time-out of the database says nothing about the batch.
		return l.limited(0, "no token from the shared bucket: "+err.Error())
	}
	if err := l.wait(ctx, at); err != nil {
		return err
	}
	l.consume(time.Now())
	return nil
}

// limited is an outage for this long, which is never the batch's fault. 0 means an unknown time.
func (l *limiter) limited(wait time.Duration, reason string) error {
	err := fmt.Errorf("not sent: rate limit, %s (%d per %s)", reason, l.rate.Requests, l.rate.Per)
	if wait <= 0 {
		return sink.Unavailable(err)
	}
	return &sink.UnavailableError{RetryAfter: wait, Err: err}
}

// token returns when the next request may begin. Without consume it returns the same token again.
func (l *limiter) token(ctx context.Context) (time.Time, error) {
	now := time.Now()
	if l.shared == nil {
		at := l.next
		if at.Before(now.Add(-maxLateness)) {
			at = now
		}
		if len(l.began) == l.rate.Requests {
			if windowEnd := l.began[l.oldest].Add(l.rate.Per); windowEnd.After(at) {
				at = windowEnd
			}
		}
		l.next = at
		return at, nil
	}
	// If a request gave up, other processes may have used its time since.
	if !l.taken || l.next.Before(now.Add(-maxLateness)) {
		wait, err := l.shared.TakeToken(ctx, l.name, l.rate.Requests, l.rate.Per)
		if err != nil {
			l.taken = false
			return time.Time{}, err
		}
		l.next, l.taken = time.Now().Add(wait), true
	}
	return l.next, nil
}

// consume uses the token for a request that begins now.
func (l *limiter) consume(now time.Time) {
	l.next = l.next.Add(l.interval)
	switch {
	case l.shared != nil:
		l.taken = false
	case len(l.began) < l.rate.Requests:
		l.began = append(l.began, now)
	default:
		l.began[l.oldest] = now
		l.oldest = (l.oldest + 1) % len(l.began)
	}
}

// wait waits until the time of a token, and until the end of the server's pause.
func (l *limiter) wait(ctx context.Context, at time.Time) error {
	for {
		now := time.Now()
		wait := at.Sub(now)
		paused, reason := l.paused(now)
		deadline, hasDeadline := ctx.Deadline()
		switch {
		case paused > maxPause, paused > 0 && hasDeadline && now.Add(paused).After(deadline):
			return &sink.UnavailableError{RetryAfter: paused, Err: fmt.Errorf("not sent: %s, for another %s", reason, paused.Round(time.Second))}
		case wait > 0 && hasDeadline && at.After(deadline):
			return l.limited(wait, "next slot in "+wait.Round(time.Millisecond).String())
		case max(wait, paused) <= 0:
			return nil
		}
		select {
		case <-time.After(max(wait, paused)):
		case <-ctx.Done():
			return sink.Unavailable(errors.New("not sent: cancelled"))
		}
	}
}

// paused returns how long the server's pause still lasts, and why. It is over if that is 0 or less.
func (l *limiter) paused(now time.Time) (time.Duration, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pausedUntil.Sub(now), l.pauseReason
}

// resume ends the server's pause.
func (l *limiter) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pausedUntil = time.Time{}
}

// pause lets no request begin for this long. It never shortens an earlier pause.
func (l *limiter) pause(d time.Duration, reason string) {
	if d <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(d); until.After(l.pausedUntil) {
		l.pausedUntil, l.pauseReason = until, reason
	}
}

// Resume implements sink.Resumer.
func (s *Sink) Resume() { s.limiter.resume() }
