package sink

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// suspect tells whether an outage may be the batch's own doing.
func suspect(err error) bool {
	return errors.Is(err, ErrSuspect) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// strikes remember the batches whose sends ended in an outage that may be their own
// doing, a 5xx or a time-out. Such an outage counts as a strike when other events
// were accepted at the same address since the last one; after maxStrikes of them
// it is taken for a refusal of that batch.
//
// They are this process's own: a batch that is handed from one to the other takes
// a little longer.
type strikes struct {
	any atomic.Bool // whether there are some; read without the lock

	mu       sync.Mutex
	batches  map[uuid.UUID]strike
	accepted map[string]time.Time // when an address last took events
}

type strike struct {
	n  int
	at time.Time
}

const (
	maxStrikes  = 3
	mostStrikes = 10_000 // batches remembered; more of them are no exception but an outage
)

// hit counts an outage of the batch and tells whether it was one too many.
func (s *strikes) hit(groupID uuid.UUID, address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.batches == nil || len(s.batches) >= mostStrikes {
		s.batches, s.accepted = map[uuid.UUID]strike{}, map[string]time.Time{}
	}
	s.any.Store(true)
	last, again := s.batches[groupID]
	if again && !s.accepted[address].After(last.at) {
		return false // nothing was accepted: it is everybody's outage
	}
	last = strike{last.n + 1, now}
	s.batches[groupID] = last
	return last.n >= maxStrikes
}

// inherit makes the parts of a batch that was struck out suspects that need no
// second strike: halving would take very long else.
func (s *strikes) inherit(from uuid.UUID, parts []uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.batches, from)
	for _, part := range parts {
		s.batches[part] = strike{maxStrikes - 1, time.Now()}
	}
}

// took hears that an address took events, "" the sink any at all.
func (s *strikes) took(address string) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted != nil {
		s.accepted[address] = time.Now()
	}
}

// over forgets a batch: it was accepted, or refused.
func (s *strikes) over(groupID uuid.UUID) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.batches, groupID)
	if len(s.batches) == 0 {
		s.batches, s.accepted = nil, nil
		s.any.Store(false)
	}
}
