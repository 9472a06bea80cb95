package db

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// longTurn is after what time a transaction counts no more: it waits for a disk or for another process's lock, and keeps no processor busy.
const longTurn = 20 * time.Millisecond

// turns bound how many transactions run at once.
type turns chan struct{}

// ofProcess are the turns of this process. SQLite runs in it: the transactions of hundreds of files at once, as at the start of hundreds of pipelines, would
// keep everything else waiting for a processor, leases and the console too.
var ofProcess = make(turns, max(8, 4*runtime.GOMAXPROCS(0)))

// Turn waits until few transactions of this process run, first come, first served. end must be called when this one has ended. The error is that of ctx.
func Turn(ctx context.Context) (end func(), err error) { return ofProcess.wait(ctx) }

func (t turns) wait(ctx context.Context) (end func(), err error) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	free := sync.OnceFunc(func() { <-t })
	long := time.AfterFunc(longTurn, free)
	return func() {
		long.Stop()
		free()
	}, nil
}
