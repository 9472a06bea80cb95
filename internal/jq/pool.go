package jq

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// maxChildren bounds the memory of all programs of this process. One child is for short runs.
	maxChildren = 4
	// idleTime is how long a child waits for another run.
	idleTime = time.Minute
	// slotWait is how long a run waits for the runs of others. It is shorter than a Send may take, because a run that
	// waits is not to blame.
	slotWait = 15 * time.Second
)

// children are the child processes of this process. All programs share them, because their memory counts together.
var children = &pool{runs: queue{free: min(maxChildren-1, runtime.GOMAXPROCS(0)), reserved: 1}}

// pool lends children. It ends those that have been idle for idleTime, and all when no program uses it. It has no
// goroutine.
type pool struct {
	runs queue

	mu    sync.Mutex
	users int
	idle  []*process // the one that was used last is last
	timer *time.Timer
}

// enter waits for the runs of others. A run whose request was sent waits until ctx is done: its batch would be sent again.
func (p *pool) enter(ctx context.Context, s *share, sent, long bool) (turn, error) {
	waitCtx := ctx
	if !sent {
		var cancel func()
		waitCtx, cancel = context.WithTimeout(ctx, slotWait)
		defer cancel()
	}
	begun, ok := p.runs.enter(waitCtx, s, long)
	switch {
	case ok:
		return begun, nil
	case ctx.Err() != nil:
		return turn{}, context.Cause(ctx)
	}
	return turn{}, processError("all processes for jq programs were busy for %v", slotWait)
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
