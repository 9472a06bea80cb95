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

// withWait lets Waited be heard: waited returns the sum.
func withWait(ctx context.Context) (_ context.Context, waited func() time.Duration) {
	var sum atomic.Int64
	return context.WithValue(ctx, waitKey{}, &sum), func() time.Duration { return time.Duration(sum.Load()) }
}
