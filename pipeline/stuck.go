package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// stuckBatches knows the batches that outages keep hitting while others are delivered, and those of an event that cannot
// be read. Readiness must not forget one with each other batch that is delivered. Each process knows those that it sent.
type stuckBatches struct {
	mu       sync.Mutex
	batches  map[uuid.UUID]stuckBatch
	progress time.Time // the last time that events were delivered or buried
}

// stuckBatch is a batch that waits because of an outage.
type stuckBatch struct {
	since    time.Time // the first outage
	failedAt time.Time // the last one
	passed   int       // outages before which others were delivered, each time anew
	due      time.Time
	err      string

	unreadable bool // the database cannot send its event
}

const (
	// stuckAfter is how many outages must hit a batch while others are delivered: the sink may be away in between.
	stuckAfter = 3
	// maxStuck batches are remembered.
	maxStuck = 10_000
)

// settled takes what became of a batch.
func (s *stuckBatches) settled(l *buffer.Lease, outcomes []buffer.Outcome, sent, progress bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.batches[l.GroupID]
	delete(s.batches, l.GroupID)
	for i := range outcomes {
		o := &outcomes[i]
		if o.Verdict != buffer.Retry || o.Outages == 0 || o.Error == "" {
			continue
		}
		if s.batches == nil || len(s.batches) >= maxStuck {
			s.batches = map[uuid.UUID]stuckBatch{}
		}
		one := before
		if one.since.IsZero() {
			one.since = now
		}
		if l.Len() == 1 && errors.Is(l.NotRead, buffer.ErrUnreadable) { // no outage: another try changes nothing
			one.unreadable, one.err = true, o.Error
		} else if sent {
			if !one.failedAt.IsZero() && s.progress.After(one.failedAt) {
				one.passed++
			}
			one.failedAt, one.err = now, o.Error
		}
		one.due = now.Add(o.After)
		s.batches[o.GroupID] = one
	}
	if progress {
		s.progress = now
	}
}

// forget forgets all batches.
func (s *stuckBatches) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.batches)
}

// reason names the batch that has been stuck the longest, for longer than after; nil if there is none. A batch that this process
// did not see again for so long after it was due has another owner.
func (s *stuckBatches) reason(now time.Time, after time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.batches, func(_ uuid.UUID, one stuckBatch) bool { return now.Sub(one.due) > after })
	var stuck []uuid.UUID
	for id, one := range s.batches {
		if (one.unreadable || one.passed >= stuckAfter) && now.Sub(one.since) > after {
			stuck = append(stuck, id)
		}
	}
	if len(stuck) == 0 {
		return nil
	}
	oldest := slices.MinFunc(stuck, func(a, b uuid.UUID) int {
		return cmp.Or(s.batches[a].since.Compare(s.batches[b].since), slices.Compare(a[:], b[:]))
	})
	one := s.batches[oldest]
	what := "not accepted while others are"
	if one.unreadable {
		what = "stuck"
	}
	batches := "1 batch is"
	if len(stuck) > 1 {
		batches = fmt.Sprintf("%d batches are", len(stuck))
	}
	return fmt.Errorf("%s %s; batch %s has waited for %v: %s", batches, what, oldest, now.Sub(one.since).Round(time.Second), one.err)
}
