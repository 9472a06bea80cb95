package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// flow says how many batches are in hand at once and how many of those are being
// sent, and how many events a batch may hold. It is where `batch_size: auto` and
// `workers: auto` are in force.
type flow struct {
	slots                 slots // to send
	autoSize, autoWorkers bool
	log                   *slog.Logger

	mu      sync.Mutex
	size    autoSize
	workers autoWorkers
	hand    int // batches in hand
}

func newFlow(c Config) *flow {
	f := &flow{autoSize: c.AutoBatchSize, autoWorkers: c.AutoWorkers, log: c.Log, size: newAutoSize(c.BatchSize), workers: newAutoWorkers(c.Workers)}
	if !f.autoSize {
		f.size.now = c.BatchSize
	}
	if !f.autoWorkers {
		f.workers.now = c.Workers
	}
	f.slots.set(f.workers.now)
	return f
}

// inHand is how many batches are in hand where so many are sent at once: beside those
// the next are being claimed, and the last being settled, so that neither the sink nor
// the database waits for the other. More than that would only be held, and
// a sink that stops answering leaves a few behind and not a second one each.
func inHand(workers int) int { return workers + max(2, workers/2) }

// limits are the events of a batch and the batches that may be in hand.
func (f *flow) limits() (batchSize, batches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.size.now, inHand(f.workers.now)
}

// inForce is the same, of the batches that are sent at once.
func (f *flow) inForce() (batchSize, workers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.size.now, f.workers.now
}

// turnWithin is how long after a signal a batch that was claimed ahead may still get
// its turn.
const turnWithin = time.Second

// hasTurn marks the context of a batch that has leave to send already.
type hasTurn struct{}

// turn waits for leave to send. After a signal there soon is none.
func (f *flow) turn(ctx context.Context) (done func(), ok bool) {
	if ctx.Value(hasTurn{}) != nil {
		return func() {}, true
	}
	if !f.slots.take(ctx) {
		return nil, false
	}
	return f.slots.give, true
}

// stop hands back what waits for its turn, or within a Send for its request's, and not
// at once: most sends take milliseconds. drain ends the context of sink.WithDrain.
func (f *flow) stop(drain context.CancelFunc) {
	time.AfterFunc(turnWithin, func() {
		f.slots.close()
		drain()
	})
}

// taken and left count the batches in hand.
func (f *flow) taken() { f.count(1) }
func (f *flow) left()  { f.count(-1) }

func (f *flow) count(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hand += n
}

// hear learns from a batch of fresh events, while it is still in hand.
func (f *flow) hear(ctx context.Context, h heard) {
	if !f.autoSize && !f.autoWorkers {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h.busy = f.hand > f.workers.now
	workers := f.workers.now
	resized := f.autoSize && f.size.hear(h)
	if f.autoWorkers {
		f.workers.hear(h)
		if resized {
			f.workers.rebase(h.ended)
		}
	}
	if f.workers.now != workers {
		f.slots.set(f.workers.now)
	}
	if resized || f.workers.now != workers {
		f.log.DebugContext(ctx, "limits changed", "batch_size", f.size.now, "workers", f.workers.now)
	}
}
