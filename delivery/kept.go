package delivery

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// keptBatches are the delivered batches whose events the database does not delete.
type keptBatches struct {
	mu      sync.Mutex
	batches map[uuid.UUID]keptBatch
}

type keptBatch struct {
	err *buffer.KeptError
	// until is when another process has probably tried again.
	until time.Time
}

// keptGrace is how long after its time a batch may be taken over.
const keptGrace = time.Minute

// add notes a batch, and logs the first.
func (k *keptBatches) add(groupID uuid.UUID, err *buffer.KeptError, log func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.newest(now) == nil {
		log()
		k.batches = map[uuid.UUID]keptBatch{}
	}
	k.batches[groupID] = keptBatch{err, now.Add(err.RetryIn + keptGrace)}
}

// remove forgets a batch that is settled.
func (k *keptBatches) remove(groupID uuid.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.batches, groupID)
}

// newest forgets batches whose time is over, and returns the error of the batch that was tried last; nil if there is none.
func (k *keptBatches) newest(now time.Time) *buffer.KeptError {
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

// Kept is why delivered events are still in the buffer; nil if the database deletes them.
func (w *Worker) Kept() error {
	w.kept.mu.Lock()
	defer w.kept.mu.Unlock()
	if err := w.kept.newest(time.Now()); err != nil {
		return err
	}
	return nil
}
