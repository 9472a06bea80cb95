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
	// Lease is how long a silent worker keeps a batch. It is renewed after a third of it.
	Lease time.Duration
	// Log takes warnings.
	Log *slog.Logger
}

// claimTimeout bounds a claim: a connection that hangs must not hold up a worker for ever.
const claimTimeout = 15 * time.Second

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
	return c.buffer.TakeOver(ctx, c.config.Lease, due)
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
	next := time.NewTimer(min(c.config.Lease/3, time.Until(l.Ends)/2))
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
		renewCtx, cancel := context.WithTimeout(ctx, min(left, c.config.Lease/3))
		err := c.buffer.Renew(renewCtx, l, c.config.Lease)
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
			next.Reset(max(0, min(time.Second, c.config.Lease/10, time.Until(l.Ends))))
		default:
			next.Reset(c.config.Lease / 3)
		}
	}
}
