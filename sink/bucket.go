package sink

import (
	"context"
	"time"
)

// Rate is how many requests may begin in a time.
type Rate struct {
	Requests int
	Per      time.Duration
}

// Bucket is a token bucket that processes share: a buffer keeps it in its database.
type Bucket interface {
	// TakeToken takes one token of that name and returns how long to wait, from when it
	// returned, before it may be used; 0: at once. requests, at least 1, may begin per that
	// time, evenly spaced. The database's clock decides. A token cannot be given back. An
	// error: none was taken, or one is lost.
	TakeToken(ctx context.Context, name string, requests int, per time.Duration) (wait time.Duration, err error)
}
