package httpsink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/sink"
)

// limiter says when a request may begin: one after the other in the pace of
// Config.Rate, no more than MaxInFlight at once, and none while the server has said that
// nothing is left of its quota.
//
// The pace is even, without a burst: an API may count in windows that begin whenever it
// likes, and a bucket that saves up tokens lets twice its rate through around such an
// edge. The wake-up of a timer that came late is made up for by the next requests, so
// that the rate is held in the long run; but in no window of Rate.Per, wherever it
// begins, do more than Rate.Requests begin. (Generic cell rate algorithm, ITU-T I.371,
// beside a log of when the last requests began.) The network may still bring requests
// closer together than they began.
//
// Whoever is next holds head, alone, takes a token, waits for its time, and hands head on.
// Who gives up leaves the token to the one behind it. So a process holds no token that it
// has no request for, but for one when it stops.
type limiter struct {
	rate     sink.Rate
	interval time.Duration // of two requests; 0: any number
	shared   sink.Bucket   // nil: this process counts alone
	name     string        // its, there
	need     time.Duration // what a request may take once it has begun

	flight  chan struct{} // a place for each that may be under way; nil: any number
	head    chan struct{} // one place
	waiting atomic.Int64  // for head, or with it

	// For whoever holds head.
	next  time.Time   // shared: of the tokens in hand; else of the next
	left  int         // shared: tokens in hand
	began []time.Time // of the last Rate.Requests, from at on around
	at    int

	mu     sync.Mutex
	closed time.Time // by the server
	why    string
}

const (
	// late is what is made up for: of a token older than that the pace begins anew.
	late = 20 * time.Millisecond
	// ahead is how long the tokens last at the most that are taken at once from a shared
	// bucket, by as many as wait for one.
	ahead = 100 * time.Millisecond
	// shortly is the longest a request waits for the server's quota with its batch in
	// hand; beyond, the batch goes back and the sink rests.
	shortly = 5 * time.Second
)

func newLimiter(c Config) *limiter {
	l := &limiter{rate: c.Rate, shared: c.Shared, name: c.Pipeline, need: c.Timeout, head: make(chan struct{}, 1)}
	if c.Rate.Requests > 0 {
		n := time.Duration(c.Rate.Requests)
		l.interval = max(1, (c.Rate.Per+n-1)/n)
	}
	if c.MaxInFlight > 0 {
		l.flight = make(chan struct{}, c.MaxInFlight)
	}
	return l
}

// begin waits until a request may begin; it has to, then, and done is called when it is
// over. Where that would be too late for ctx's deadline, the error says so at once, as a
// *sink.UnavailableError with the time, and no token is lost.
func (l *limiter) begin(ctx context.Context) (done func(), err error) {
	since := time.Now()
	defer func() { sink.Waited(ctx, time.Since(since)) }()
	until, cancel := l.until(ctx, since)
	defer cancel()
	done = func() {}
	if l.flight != nil {
		if !enter(until, l.flight) {
			return nil, sink.Unavailable(fmt.Errorf("not sent: no request could begin in time, %d were under way (max_in_flight)", cap(l.flight)))
		}
		done = func() { <-l.flight }
	}
	if err := l.pass(until); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// until is ctx without what the request itself may need, though no more than half of
// its time.
func (l *limiter) until(ctx context.Context, now time.Time) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(l.need, deadline.Sub(now)/2)))
}

func enter(ctx context.Context, place chan struct{}) bool {
	select {
	case place <- struct{}{}:
		return true
	default:
	}
	select {
	case place <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// pass waits for a token and takes it.
func (l *limiter) pass(ctx context.Context) error {
	if l.interval == 0 {
		return l.rest(ctx, time.Time{})
	}
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if !enter(ctx, l.head) {
		return l.notSent(0, "no request could begin in time")
	}
	defer func() { <-l.head }()
	at, err := l.token(ctx)
	if err != nil {
		// As text: a time-out there says nothing of the batch.
		return l.notSent(0, "no token could be taken: "+err.Error())
	}
	if err := l.rest(ctx, at); err != nil {
		return err
	}
	l.use(time.Now())
	return nil
}

// notSent is an outage for so long, 0 when that is not known, and nobody's fault.
func (l *limiter) notSent(wait time.Duration, why string) error {
	err := fmt.Errorf("not sent: %s (rate: %d per %s)", why, l.rate.Requests, l.rate.Per)
	if wait <= 0 {
		return sink.Unavailable(err)
	}
	return &sink.UnavailableError{RetryAfter: wait, Err: err}
}

// token returns when the next request may begin. It may be asked again without a use in
// between.
func (l *limiter) token(ctx context.Context) (time.Time, error) {
	now := time.Now()
	if l.shared == nil {
		at := l.next
		if at.Before(now.Add(-late)) {
			at = now
		}
		if len(l.began) == l.rate.Requests {
			if first := l.began[l.at].Add(l.rate.Per); first.After(at) {
				at = first
			}
		}
		l.next = at
		return at, nil
	}
	if l.left > 0 && l.next.Before(now.Add(-late)) {
		l.left = 0 // somebody gave up; its time has gone by, and others had theirs since
	}
	if l.left == 0 {
		// As many as wait here, so that a high rate does not cost as many statements.
		n := min(l.waiting.Load(), max(1, int64(ahead/l.interval)))
		wait, err := l.shared.TakeToken(ctx, l.name, l.rate.Requests, time.Duration(n)*l.rate.Per)
		if err != nil {
			return time.Time{}, err
		}
		l.next, l.left = time.Now().Add(wait), int(n)
	}
	return l.next, nil
}

// use takes the token for a request that begins now.
func (l *limiter) use(now time.Time) {
	l.next = l.next.Add(l.interval)
	switch {
	case l.shared != nil:
		l.left--
	case len(l.began) < l.rate.Requests:
		l.began = append(l.began, now)
	default:
		l.began[l.at] = now
		l.at = (l.at + 1) % len(l.began)
	}
}

// rest waits for the time, and for the end of a pause that the server asked for.
func (l *limiter) rest(ctx context.Context, at time.Time) error {
	for {
		now := time.Now()
		wait, paused, why := at.Sub(now), l.paused(now), ""
		if paused > 0 {
			l.mu.Lock()
			why = l.why
			l.mu.Unlock()
		}
		deadline, bounded := ctx.Deadline()
		switch {
		case paused > shortly, paused > 0 && bounded && now.Add(paused).After(deadline):
			return &sink.UnavailableError{RetryAfter: paused, Err: fmt.Errorf("not sent: %s, for %s more", why, paused.Round(time.Second))}
		case wait > 0 && bounded && at.After(deadline):
			return l.notSent(wait, "its turn is in "+wait.Round(time.Millisecond).String()+" only")
		case max(wait, paused) <= 0:
			return nil
		}
		timer := time.NewTimer(max(wait, paused))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return sink.Unavailable(errors.New("not sent: it was called off"))
		}
	}
}

// paused is how long the server's pause lasts yet; 0 or less: there is none.
func (l *limiter) paused(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed.Sub(now)
}

// pause lets no request begin for so long, because of why. It never ends one sooner.
func (l *limiter) pause(d time.Duration, why string) {
	if d <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := time.Now().Add(d); until.After(l.closed) {
		l.closed, l.why = until, why
	}
}
