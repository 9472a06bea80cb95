package pipeline

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// recoveries are the addresses that recovered, whose waiting batches are to be made due.
type recoveries struct {
	wake      chan struct{} // holds one when retryDeferred may have something to do
	mu        sync.Mutex
	addresses []string
	accepting bool // and the sink accepts events that may be decided on
}

// signal has retryDeferred look. It never blocks.
func (r *recoveries) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// wait waits for the next tick, every recoveryInterval since a time; first, unless defers says that batches may wait, for a signal. It returns
// false when ctx is done. The ticks keep their times, so that what comes together is done together.
func (r *recoveries) wait(ctx context.Context, began time.Time, defers func() bool) bool {
	if !defers() {
		select {
		case <-ctx.Done():
			return false
		case <-r.wake:
		}
	}
	return waitUntil(ctx, time.Now().Add(recoveryInterval-time.Since(began)%recoveryInterval))
}

func (r *recoveries) add(address string) {
	defer r.signal()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.addresses, address) {
		r.addresses = append(r.addresses, address)
	}
}

func (r *recoveries) accepts() {
	defer r.signal()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepting = true
}

func (r *recoveries) take() (addresses []string, accepting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	addresses, accepting = r.addresses, r.accepting
	r.addresses, r.accepting = nil, false
	return addresses, accepting
}

const (
	// recoveryInterval is how often a half-open probe may be due while batches wait, and how
	// far apart two recoveries are at least.
	recoveryInterval = 250 * time.Millisecond
	recoveryTimeout  = 10 * time.Second
)

// retryDeferred makes batches due that wait for an address: one now and then while it is unavailable, as a
// half-open probe, and all of them once it has recovered. recount asks for a count of due batches. It ticks only while
// batches wait or the sink is not known to take them: an idle pipeline must not wake the process.
func (p *Pipeline) retryDeferred(ctx context.Context, recount func()) {
	began := time.Now()
	var requests retryRequests
	for p.recovered.wait(ctx, began, p.defers) {
		recovered, accepting := p.recovered.take()
		for _, address := range recovered {
			p.retryNow(ctx, address, 0, recount)
		}
		if accepting {
			p.makeDue(ctx, p.buffer.RetryRefused, recount)
		}
		if p.health.waits() {
			p.probe(ctx, recount)
		} else {
			p.worker.ProbesDue(nil, 0) // forgets addresses
		}
		if p.worker.Paused() && requests.isNew(ctx, p.buffer) {
			p.config.Log.InfoContext(ctx, "trying waiting batches at once, as requested")
			p.worker.TryNow()
			recount()
		}
	}
}

// defers reports whether batches may wait for an address, or for the sink.
func (p *Pipeline) defers() bool { return p.health.waits() || p.worker.Paused() }

// retryRequests are an operator's requests to try waiting batches now (`relay retry`). They come from another
// process, which has made the batches due; this one may be in a pause.
type retryRequests struct {
	last  string
	asked time.Time
}

// isNew reports, once, that there is a request. It asks the buffer once a second.
func (r *retryRequests) isNew(ctx context.Context, from buffer.Deferrer) bool {
	if time.Since(r.asked) < time.Second {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	request, err := from.RetryRequest(ctx)
	r.asked = time.Now()
	if err != nil || request <= r.last { // the database is away, or others of its batches still wait
		return false
	}
	r.last = request
	return true
}

// probe makes one batch due of each address whose half-open probe is due.
func (p *Pipeline) probe(ctx context.Context, recount func()) {
	queryCtx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	deferred, err := p.buffer.DeferredAddresses(queryCtx)
	if err != nil {
		p.config.Log.DebugContext(ctx, "listing the addresses that batches wait for failed", "error", err)
		return
	}
	_, workers := p.limiter.current()
	due := p.worker.ProbesDue(deferred, workers)
	if refuses := p.worker.Refusal() != nil; refuses || len(deferred) > 0 {
		p.probes.Store(refuses || p.worker.Probes(deferred))
	}
	for _, address := range due {
		p.retryNow(ctx, address, 1, recount)
	}
}

func (p *Pipeline) retryNow(ctx context.Context, address string, limit int, recount func()) {
	p.makeDue(ctx, func(ctx context.Context) (int, error) { return p.buffer.RetryNow(ctx, address, limit) }, recount)
}

// makeDue makes batches due, and has them counted.
func (p *Pipeline) makeDue(ctx context.Context, retry func(context.Context) (int, error), recount func()) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	n, err := retry(ctx)
	switch {
	case err != nil: // they are due by themselves, later
		p.config.Log.DebugContext(ctx, "making waiting batches due failed", "error", err)
	case n > 0:
		recount()
	}
}
