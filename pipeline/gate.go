package pipeline

import (
	"context"
	"sync"
	"time"

	weighted "golang.org/x/sync/semaphore"
)

// Gate keeps suspects alone: while a batch that may kill the process is in flight, no other batch of the process
// is. All pipelines of a process share one gate; see docs/decisions/0025-suspects.md.
//
// A suspect waits until what is in flight has ended, and keeps out what comes later. After it, the others have their
// turn, for as long as they had to stand still.
type Gate struct {
	// batches has all of its weight acquired by a suspect, one by any other batch. It is first come, first served.
	batches *weighted.Weighted
	// suspect holds a value while a suspect waits or is in flight. Its sender owns the other fields.
	suspect  chan struct{}
	turnEnds time.Time     // of the other batches
	patience time.Duration // how long the others stand still at most until the last of them has ended
}

const (
	allBatches = 1 << 30
	// A batch whose rate limit is slow, or whose database hangs, may not end for long. The other pipelines go on
	// meanwhile.
	minPatience = 5 * time.Second
	maxPatience = 10 * time.Minute
)

// NewGate makes a gate.
func NewGate() *Gate {
	return &Gate{batches: weighted.NewWeighted(allBatches), suspect: make(chan struct{}, 1), patience: minPatience}
}

// enter waits while a suspect is in flight. leave must be called, and may be called again. ok is false when ctx is done.
func (g *Gate) enter(ctx context.Context) (leave func(), ok bool) {
	if g.batches.Acquire(ctx, 1) != nil {
		return nil, false
	}
	return sync.OnceFunc(func() { g.batches.Release(1) }), true
}

// alone waits until no batch is in flight, and keeps it so until leave is called, as enter's. ok is false when ctx
// is done.
func (g *Gate) alone(ctx context.Context) (leave func(), ok bool) {
	select {
	case g.suspect <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	for waitUntil(ctx, g.turnEnds) {
		began := time.Now()
		waitCtx, cancel := context.WithTimeout(ctx, g.patience)
		err := g.batches.Acquire(waitCtx, allBatches)
		cancel()
		if err == nil {
			g.patience = minPatience
			return sync.OnceFunc(func() {
				g.endTurn(began)
				g.batches.Release(allBatches)
				<-g.suspect
			}), true
		}
		g.endTurn(began)
		g.patience = min(2*g.patience, maxPatience)
	}
	<-g.suspect
	return nil, false
}

// endTurn gives the other batches as much time as they stood still.
func (g *Gate) endTurn(began time.Time) {
	now := time.Now()
	g.turnEnds = now.Add(now.Sub(began))
}

// waitUntil returns false when ctx is done.
func waitUntil(ctx context.Context, t time.Time) bool {
	wait := time.NewTimer(time.Until(t))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
