package delivery

import (
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// keptBatches are the batches that the database does not settle, though it is not away: it does not delete the delivered
// events, or refuses what the settle does to one.
type keptBatches struct {
	mu      sync.Mutex
	batches map[uuid.UUID]keptBatch
}

type keptBatch struct {
	err error
	// until is when another process has probably tried again.
	until time.Time
}

// keptGrace is how long after its time a batch may be taken over.
const keptGrace = time.Minute

// keptFor returns when a batch is due again that the database does not settle; ok is false if err is another one.
func keptFor(err error) (retryIn time.Duration, ok bool) {
	if kept, ok := errors.AsType[*buffer.KeptError](err); ok {
		return kept.RetryIn, true
	}
	if refused, ok := errors.AsType[*buffer.SettleError](err); ok {
		return refused.RetryIn, true
	}
	return 0, false
}

// add notes a batch, and logs the first.
func (k *keptBatches) add(groupID uuid.UUID, err error, retryIn time.Duration, log func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.newest(now) == nil {
		log()
		k.batches = map[uuid.UUID]keptBatch{}
	}
	k.batches[groupID] = keptBatch{err, now.Add(retryIn + keptGrace)}
}

// remove forgets batches that are settled.
func (k *keptBatches) remove(groupIDs ...uuid.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, groupID := range groupIDs {
		delete(k.batches, groupID)
	}
}

// newest forgets batches whose time is over, and returns the error of the batch that was tried last; nil if there is none.
func (k *keptBatches) newest(now time.Time) error {
	var newest keptBatch
	for groupID, b := range k.batches {
		if b.until.Before(now) {
			delete(k.batches, groupID)
		} else if b.until.After(newest.until) {
			newest = b
		}
	}
	return newest.err
}

// Kept is why batches are still in the buffer that were sent; nil if the database settles them.
func (w *Worker) Kept() error {
	w.kept.mu.Lock()
	defer w.kept.mu.Unlock()
	return w.kept.newest(time.Now())
}
