package sink

import (
	"context"
	"sync/atomic"
	"time"
)

// Waited tells the worker whose Send ctx belongs to that so much of it went by before a
// request could begin: for a rate, not for the sink, which is not to look slow because
// of it. Of another ctx it is ignored.
func Waited(ctx context.Context, d time.Duration) {
	if w, ok := ctx.Value(waitKey{}).(*atomic.Int64); ok {
		w.Add(int64(d))
	}
}

type waitKey struct{}

// WithWait lets Waited be heard: waited returns the sum.
func WithWait(ctx context.Context) (_ context.Context, waited func() time.Duration) {
	var sum atomic.Int64
	return context.WithValue(ctx, waitKey{}, &sum), func() time.Duration { return time.Duration(sum.Load()) }
}

// WithDrain tells the Sends that ctx is handed to when the process stops: no request of
// theirs that has not begun begins any more once drain is done.
func WithDrain(ctx, drain context.Context) context.Context {
	return context.WithValue(ctx, drainKey{}, drain)
}

type drainKey struct{}

// BeforeSend returns a context for what a Send has to wait for before a request can
// begin. It is ctx, and ends, with ErrNotSent as its cause, when the process drains
// (WithDrain). A Send that gives up for that answers ErrNotSent, and its batch is handed
// back; a request that has begun belongs to ctx, and is finished.
func BeforeSend(ctx context.Context) (context.Context, context.CancelFunc) {
	drain, ok := ctx.Value(drainKey{}).(context.Context)
	if !ok {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(drain, func() { end(ErrNotSent) })
	return ctx, func() {
		stop()
		end(nil)
	}
}
