package delivery

import (
	"errors"
	"maps"
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
	// none and noneDelivered are when the last count found no batch that waits for a retry, or for its delete; zero: it found some.
	none, noneDelivered time.Time
}

type keptBatch struct {
	err error
	at  time.Time
	// delivered reports whether it waits for its delete; otherwise it waits for a retry.
	delivered bool
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

// deliveredFor reports whether a batch with such an error waits for its delete.
func deliveredFor(l *buffer.Lease, err error) bool {
	_, kept := errors.AsType[*buffer.KeptError](err)
	return kept || l.DeliveryRecorded()
}

// add notes a batch, and logs the first.
func (k *keptBatches) add(groupID uuid.UUID, err error, delivered bool, retryIn time.Duration, log func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.newest(now) == nil {
		log()
		k.batches = map[uuid.UUID]keptBatch{}
	}
	k.batches[groupID] = keptBatch{err, now, delivered, now.Add(retryIn + keptGrace)}
}

// remove forgets batches that are settled.
func (k *keptBatches) remove(groupIDs ...uuid.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, groupID := range groupIDs {
		delete(k.batches, groupID)
	}
}

// counted forgets batches that were noted before a count found none that waits for its delete, or for a retry, as this one does: the later of the two began
// after they were noted, and a batch that another process tries to settle is rarely leased in both.
func (k *keptBatches) counted(b buffer.Backlog, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, of := range []struct {
		delivered bool
		batches   int
		none      *time.Time
	}{{true, b.Delivered, &k.noneDelivered}, {false, b.Waiting, &k.none}} {
		if of.batches+b.Suspects > 0 {
			*of.none = time.Time{}
			continue
		}
		maps.DeleteFunc(k.batches, func(_ uuid.UUID, b keptBatch) bool { return b.delivered == of.delivered && b.at.Before(*of.none) })
		*of.none = now
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

// Counted takes a count of the backlog, of which no two overlap. When two in a row find no batch that waits, another process has settled those of [Worker.Kept].
func (w *Worker) Counted(b buffer.Backlog) { w.kept.counted(b, time.Now()) }
