package delivery

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// maxDivided is how many parts a batch is divided into at once; see maxRuns.
const maxDivided = maxRuns

// unreadReads is how many reads of a batch in a row must break, or be slow, before the batch counts as the cause: servers
// that restart break as many connections as one likes.
const unreadReads = 3

// divide decides on a batch that was not read. If its events are too large together, or cannot be read in time, it is
// divided by ids into parts that are due at once, each smaller than the batch. Otherwise, and if its event is alone or its events are unknown, it
// waits as for an outage. Nothing was sent, and no attempt is counted.
//
// A batch that may have been sent before is divided only when nothing else helps, because its parts have other group_ids: a sink
// that accepted the batch would accept them once more. reads is how many reads of the batch in a row failed, this one included.
func (p *policy) divide(l *buffer.Lease, reads int) []buffer.Outcome {
	ids, why := l.IDs(), ""
	if !errors.Is(l.NotRead, buffer.ErrTooLarge) {
		why = l.NotRead.Error()
	}
	waits := false
	switch fresh := l.UnfinishedLeases <= 1 && l.Attempts == 0 && l.Outages == 0; {
	case errors.Is(l.NotRead, buffer.ErrTooLarge), errors.Is(l.NotRead, buffer.ErrUnreadable): // at every read
	case errors.Is(l.NotRead, buffer.ErrSlowRead):
		waits = !fresh && reads < unreadReads
	default:
		waits = reads < unreadReads
	}
	if len(ids) <= 1 || waits {
		err := l.NotRead
		switch {
		case len(ids) != 1:
		case errors.Is(err, buffer.ErrUnreadable):
			err = fmt.Errorf("event %s cannot be read: correct its row, or delete it: %w", l.AllEvents()[0].Identity(), err)
		case reads >= unreadReads:
			err = fmt.Errorf("event %s could not be read %d times in a row; if others can, its row may be damaged: %w", l.AllEvents()[0].Identity(), reads, err)
		}
		o := p.retry(l, part{verdict: verdict{kind: unavailable, err: err}, attempts: l.Attempts})
		o.Address = nil
		return []buffer.Outcome{o}
	}
	outages := l.Outages
	if l.UnfinishedLeases > 1 || l.Attempts > 0 { // its parts must not count as fresh
		outages = max(1, outages)
	}
	var outcomes []buffer.Outcome
	for size := min(l.PartSize, (len(ids)+1)/2); len(ids) > 0; ids = ids[size:] {
		if len(outcomes) == maxDivided-1 {
			size = len(ids)
		}
		size = min(size, len(ids))
		o := sendNow(l, ids[:size], why)
		o.Outages = outages
		outcomes = append(outcomes, o)
	}
	return p.carryAttempts(l, outcomes)
}

// divide decides on a batch that was not read, and counts that.
func (w *Worker) divide(l *buffer.Lease) []buffer.Outcome {
	outcomes := w.policy.divide(l, w.failedReads.failed(l.GroupID))
	if len(outcomes) > 1 {
		w.failedReads.forget(l.GroupID)
	}
	return outcomes
}

// failedReads counts, for each batch, the reads in a row that failed in this process. Safe for concurrent use.
type failedReads struct {
	mu      sync.Mutex
	batches map[uuid.UUID]int
}

// failed returns how many reads of the batch failed in a row, with this one.
func (f *failedReads) failed(groupID uuid.UUID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.batches == nil {
		f.batches = map[uuid.UUID]int{}
	}
	if _, known := f.batches[groupID]; !known && len(f.batches) >= maxBatches {
		for other := range f.batches { // one of them is counted anew
			delete(f.batches, other)
			break
		}
	}
	f.batches[groupID]++
	return f.batches[groupID]
}

// forget is told that the batch was read, or is divided.
func (f *failedReads) forget(groupID uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.batches, groupID)
}
