// Package claimer turns a ticket into a leased batch, and keeps the lease while
// the batch is being worked on.
package claimer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Buffer is what a claimer needs of a buffer.
type Buffer interface {
	Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error)
	TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error)
	Renew(ctx context.Context, b *buffer.Lease, lease time.Duration) error
}

// Config of a claimer. Lease is required.
type Config struct {
	// Lease is how long a silent worker keeps a batch. It is renewed after a
	// third of it.
	Lease time.Duration
	// Claimed hears how long each claim or take over took that brought a batch.
	// nil: nobody.
	Claimed func(b *buffer.Lease, took time.Duration)
	// Log takes warnings; nil: slog.Default.
	Log *slog.Logger
}

// claimTimeout bounds a claim: a connection that hangs must not hold a worker.
const claimTimeout = 15 * time.Second

// Claimer claims batches. Safe for concurrent use.
type Claimer struct {
	buffer Buffer
	config Config
}

// New makes a claimer on a buffer.
func New(b Buffer, c Config) *Claimer {
	if c.Claimed == nil {
		c.Claimed = func(*buffer.Lease, time.Duration) {}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Claimer{buffer: b, config: c}
}

// Claim claims up to limit fresh events, or takes over a batch that is due. nil, nil:
// there is none.
func (c *Claimer) Claim(ctx context.Context, limit int, due bool) (*buffer.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	began := time.Now()
	var (
		b   *buffer.Lease
		err error
	)
	if due {
		b, err = c.buffer.TakeOver(ctx, c.config.Lease)
	} else {
		b, err = c.buffer.Claim(ctx, limit, c.config.Lease)
	}
	if b != nil {
		c.config.Claimed(b, time.Since(began))
	}
	return b, err
}

// Hold keeps b's lease until release is called, which waits for a renewal under
// way and must be called once. held is done when ctx is, when release is called,
// or when the lease is lost or over; context.Cause then finds buffer.ErrLeaseLost.
func (c *Claimer) Hold(ctx context.Context, b *buffer.Lease) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.renew(held, cancel, b)
	}()
	return held, func() {
		cancel(context.Canceled)
		<-ended
	}
}

func (c *Claimer) renew(ctx context.Context, lose context.CancelCauseFunc, b *buffer.Lease) {
	next := time.NewTimer(min(c.config.Lease/3, time.Until(b.Ends)/2))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		left := time.Until(b.Ends)
		if left <= 0 {
			c.config.Log.WarnContext(ctx, "lease is over before it could be renewed", "group_id", b.GroupID)
			lose(buffer.ErrLeaseLost)
			return
		}
		// A connection that hangs leaves time for another.
		renewCtx, cancel := context.WithTimeout(ctx, min(left, c.config.Lease/3))
		err := c.buffer.Renew(renewCtx, b, c.config.Lease)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, buffer.ErrLeaseLost):
			c.config.Log.WarnContext(ctx, "lease was lost to another owner", "group_id", b.GroupID)
			lose(buffer.ErrLeaseLost)
			return
		case err != nil:
			c.config.Log.WarnContext(ctx, "cannot renew a lease", "group_id", b.GroupID, "error", err)
			next.Reset(max(0, min(time.Second, c.config.Lease/10, time.Until(b.Ends))))
		default:
			next.Reset(c.config.Lease / 3)
		}
	}
}
