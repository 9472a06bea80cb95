// Package claimer turns a ticket into a leased batch, and renews the lease while the batch is
// being worked on.
package claimer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Config of a claimer; both fields are required.
type Config struct {
	// Lease is how long a silent worker keeps a batch. It is renewed after a third of it. Suspects have longer ones.
	Lease time.Duration
	// Log takes warnings.
	Log *slog.Logger
}

const (
	// claimTimeout bounds a claim: a connection that hangs must not hold up a worker for ever. A buffer spends three
	// quarters of it at most before it lists by ids what it could not read.
	claimTimeout = 20 * time.Second
	// readTimeout bounds the reading of a single large event, whose lease is renewed meanwhile.
	readTimeout = 10 * time.Minute
)

// Claimer claims batches. Safe for concurrent use.
type Claimer struct {
	buffer buffer.Claimer
	config Config
}

// New makes a claimer on a buffer.
func New(b buffer.Claimer, c Config) *Claimer { return &Claimer{buffer: b, config: c} }

// Claim claims up to limit fresh events. nil, nil: there are none.
func (c *Claimer) Claim(ctx context.Context, limit int) (*buffer.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return c.buffer.Claim(ctx, limit, c.config.Lease)
}

// TakeOver takes over a batch of this kind that is due. nil, nil: there is none.
func (c *Claimer) TakeOver(ctx context.Context, due buffer.Due) (*buffer.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	l, err := c.buffer.TakeOver(ctx, c.config.Lease, due)
	if l == nil || err != nil || c.leaseOf(l) == c.config.Lease {
		return l, err
	}
	if err := c.buffer.Renew(ctx, l, c.leaseOf(l)); err != nil { // the shorter lease holds
		c.config.Log.DebugContext(ctx, "extending the lease of a suspect failed", "group_id", l.GroupID, "error", err)
	}
	return l, nil
}

// maxBackoff is how many times longer the lease of a suspect may become: its fifth one is its last.
const maxBackoff = 5

// leaseOf is how long the batch is leased at a time. When a suspect kills its owner again, nobody takes it over
// before the lease is over, so the leases that follow each other are the backoff.
func (c *Claimer) leaseOf(l *buffer.Lease) time.Duration {
	if l.DeliveryRecorded() {
		return c.config.Lease
	}
	return c.config.Lease * time.Duration(min(max(1, l.UnfinishedLeases-buffer.SuspectAfter), maxBackoff))
}

// Read reads a batch of a single event that could not be read in the time of a claim. Otherwise NotRead says why.
func (c *Claimer) Read(leaseCtx context.Context, l *buffer.Lease) {
	if l.NotRead == nil || errors.Is(l.NotRead, buffer.ErrKillsReader) || l.Len() != 1 {
		return
	}
	ctx, cancel := context.WithTimeout(leaseCtx, readTimeout)
	defer cancel()
	if err := c.buffer.Read(ctx, l); err != nil {
		l.NotRead = err
	}
}

// KeepAlive renews the lease until stop is called, which waits for a renewal under way and
// must be called once. leaseCtx is done when ctx is, when stop is called, or when the lease is
// lost or over; context.Cause then finds buffer.ErrLeaseLost.
func (c *Claimer) KeepAlive(ctx context.Context, l *buffer.Lease) (leaseCtx context.Context, stop func()) {
	leaseCtx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.renew(leaseCtx, cancel, l)
	}()
	return leaseCtx, func() {
		cancel(context.Canceled)
		<-ended
	}
}

func (c *Claimer) renew(ctx context.Context, lose context.CancelCauseFunc, l *buffer.Lease) {
	lease := c.leaseOf(l)
	next := time.NewTimer(min(lease/3, time.Until(l.Ends)/2))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		left := time.Until(l.Ends)
		if left <= 0 {
			c.config.Log.WarnContext(ctx, "lease ended before it could be renewed", "group_id", l.GroupID)
			lose(buffer.ErrLeaseLost)
			return
		}
		// A connection that hangs leaves time for another.
		renewCtx, cancel := context.WithTimeout(ctx, min(left, lease/3))
		err := c.buffer.Renew(renewCtx, l, lease)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, buffer.ErrLeaseLost):
			c.config.Log.WarnContext(ctx, "lease lost to another owner", "group_id", l.GroupID)
			lose(buffer.ErrLeaseLost)
			return
		case err != nil:
			c.config.Log.WarnContext(ctx, "renewing a lease failed, will retry", "group_id", l.GroupID, "error", err)
			next.Reset(max(0, min(time.Second, lease/10, time.Until(l.Ends))))
		default:
			next.Reset(lease / 3)
		}
	}
}
