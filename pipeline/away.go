package pipeline

import (
	"context"
	"slices"
	"sync"
	"time"
)

// addresses are those that take batches again and whose waiting ones are still to be
// made due.
type addresses struct {
	news chan struct{} // holds one when there are some

	mu  sync.Mutex
	all []string
}

// add never blocks.
func (a *addresses) add(address string) {
	a.mu.Lock()
	if !slices.Contains(a.all, address) {
		a.all = append(a.all, address)
	}
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default:
	}
}

func (a *addresses) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

const (
	// wakeEvery is how often it is looked whether a trial is due while batches
	// wait, and how far two recoveries are apart at least.
	wakeEvery   = 250 * time.Millisecond
	wakeTimeout = 10 * time.Second
)

// wake makes batches due that wait for an address: one now and then while it is
// away, for a trial, and all of them when it is back. look asks for a look at them.
func (p *Pipeline) wake(ctx context.Context, look func()) {
	tick := time.NewTicker(wakeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-p.back.news:
			for _, address := range p.back.take() {
				p.wakeUp(ctx, address, 0, look)
			}
		default:
			if p.health.waits() {
				p.probe(ctx, look)
			}
		}
	}
}

// probe makes one batch due of each address whose trial is due.
func (p *Pipeline) probe(ctx context.Context, look func()) {
	askCtx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	waitedFor, err := p.buffer.DeferredAddresses(askCtx)
	if err != nil {
		p.config.Log.DebugContext(ctx, "cannot ask what batches wait for", "error", err)
		return
	}
	for _, address := range p.worker.Probe(waitedFor) {
		p.wakeUp(ctx, address, 1, look)
	}
}

func (p *Pipeline) wakeUp(ctx context.Context, address string, limit int, look func()) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	n, err := p.buffer.RetryNow(ctx, address, limit)
	switch {
	case err != nil: // they are due by themselves, later
		p.config.Log.DebugContext(ctx, "cannot make waiting batches due", "error", err)
	case n > 0:
		look()
	}
}
