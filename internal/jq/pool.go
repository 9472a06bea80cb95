package jq

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// maxChildren bounds the memory of all programs of this process.
	maxChildren = 4
	// idleTime is how long a child waits for another run.
	idleTime = time.Minute
	// slotWait is how long a run waits for the runs of others. It is shorter than a Send may take, because a run that
	// waits is not to blame.
	slotWait = 15 * time.Second
)

// children are the child processes of this process. All programs share them, because their memory counts together.
var children = &pool{slots: semaphore.NewWeighted(int64(min(maxChildren, runtime.GOMAXPROCS(0))))}

// pool lends children. It ends those that have been idle for idleTime, and all when no program uses it. It has no
// goroutine.
type pool struct {
	slots *semaphore.Weighted // of runs

	mu    sync.Mutex
	users int
	idle  []*process // the one that was used last is last
	timer *time.Timer
}

// acquire waits until one run more may begin. Those that wait have their turn in order.
func (p *pool) acquire(ctx context.Context) error {
	waitCtx, cancel := context.WithTimeout(ctx, slotWait)
	defer cancel()
	if p.slots.Acquire(waitCtx, 1) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return processError("all processes for jq programs were busy for %v", slotWait)
}

// get returns an idle child, or starts one.
func (p *pool) get(ctx context.Context) (*process, error) {
	p.mu.Lock()
	if last := len(p.idle) - 1; last >= 0 {
		child := p.idle[last]
		p.idle = p.idle[:last]
		p.mu.Unlock()
		return child, nil
	}
	p.mu.Unlock()
	return start(ctx)
}

// put takes a child back, unless it has ended.
func (p *pool) put(child *process) {
	if child.ended {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	child.isNew, child.idleSince = false, time.Now()
	p.idle = append(p.idle, child)
	if p.timer == nil {
		p.timer = time.AfterFunc(idleTime, p.endIdle)
	}
}

func (p *pool) endIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 && time.Since(p.idle[0].idleSince) >= idleTime {
		p.idle[0].end()
		p.idle = p.idle[1:]
	}
	p.timer = nil
	if len(p.idle) > 0 {
		p.timer = time.AfterFunc(idleTime-time.Since(p.idle[0].idleSince), p.endIdle)
	}
}

func (p *pool) join() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
}

func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	for _, child := range p.idle {
		child.end()
	}
	p.idle = nil
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
