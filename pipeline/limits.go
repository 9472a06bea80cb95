package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// limiter says how many batches are in flight at once, how many of those are being sent, and how many events
// a batch may hold. `batch_size: auto` and `workers: auto` change the limits; autotune finds them.
type limiter struct {
	slots semaphore // to send
	log   *slog.Logger

	mu       sync.Mutex
	tune     autotune
	weight   weight
	inFlight int // batches
	hung     int // calls of the sink that do not return
	upper    int // workers that there may be
}

// weight is how many bytes an event has, of the batches seen lately. It is pure.
type weight struct{ bytes, events float64 }

// keepWeight is how much of the weight a batch leaves: the last few count.
const keepWeight = 0.75

// record takes a batch into account.
func (w *weight) record(events, bytes int) {
	w.bytes, w.events = keepWeight*w.bytes+float64(bytes), keepWeight*w.events+float64(events)
}

// fit returns how many events of limit take three quarters of buffer.MaxBytes, at least 1. More would be cut, which
// takes longer than smaller claims.
func (w *weight) fit(limit int) int {
	if w.bytes*float64(limit) <= maxWeight*w.events {
		return limit
	}
	return max(1, int(maxWeight*w.events/w.bytes))
}

const maxWeight = buffer.MaxBytes * 3 / 4

// fit returns how many events a claim may take of limit, so that its batch is probably not too large.
func (l *limiter) fit(limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.weight.fit(limit)
}

// weigh learns from a batch how large events are. Of one that was not read it is known how many fit.
func (l *limiter) weigh(batch *buffer.Lease) {
	events, bytes := len(batch.Events), batch.Bytes()
	if events == 0 || batch.DeliveryRecorded() || errors.Is(batch.NotRead, buffer.ErrKillsReader) {
		return
	}
	if batch.NotRead != nil {
		bytes = events * (maxWeight / max(1, batch.PartSize))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.weight.record(events, bytes)
}

func newLimiter(c Config) *limiter {
	l := &limiter{log: c.Log, tune: newAutotune(c), upper: c.Workers}
	_, workers := l.current()
	l.slots.resize(workers)
	return l
}

// maxInFlight is how many batches are in flight when so many are sent at once: others are claimed
// or settled meanwhile, so that neither the sink nor the database waits for the other.
func maxInFlight(workers int) int { return workers + max(2, workers/2) }

// limits are the events of a batch and the batches that may be in flight.
func (l *limiter) limits() (batchSize, batches int) {
	batchSize, workers := l.current()
	if workers == 0 {
		return batchSize, 0
	}
	return batchSize, maxInFlight(workers)
}

// current are the events of a batch and the batches that are sent at once.
func (l *limiter) current() (batchSize, workers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now()
}

// now is current for callers that hold the lock. Calls that hang leave fewer workers, at last none.
func (l *limiter) now() (batchSize, workers int) {
	batchSize, workers = l.tune.current()
	return batchSize, max(0, min(workers, l.upper-l.hung))
}

// hang takes how many calls of the sink do not return. Each keeps its batch in memory, in a worker's place.
func (l *limiter) hang(calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hung = calls
	_, workers := l.now()
	l.slots.resize(workers)
}

// drainGrace is how long after a signal a batch that was claimed ahead may still be sent.
const drainGrace = time.Second

// begin and end count the batches in flight.
func (l *limiter) begin() { l.count(1) }
func (l *limiter) end()   { l.count(-1) }

func (l *limiter) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight += n
}

// record learns from a batch of fresh events, while it is still in flight.
func (l *limiter) record(ctx context.Context, s sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, workers := l.now()
	s.busy = l.inFlight > workers
	if !l.tune.record(s) {
		return
	}
	batchSize, workers := l.now()
	l.slots.resize(workers)
	l.log.DebugContext(ctx, "limits changed", "batch_size", batchSize, "workers", workers)
}
