package delivery

import (
	"context"
	"errors"
	"github.com/outboxrelay/relay/sink"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// suspect tells whether an outage may be the batch's own doing.
func suspect(err error) bool {
	return errors.Is(err, sink.ErrMaybePoison) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// strikes remember the batches whose sends ended in an outage that may be their own
// doing, a 5xx or a time-out. Such an outage counts as a strike when since the last
// one other batches were accepted at the same address, more than twice as many as
// were not: a server of which every other answer is a 502 is away, and no event
// must die of that. After maxStrikes it is taken for a refusal of that batch.
//
// They are this process's own: a batch that is handed from one to the other takes
// a little longer.
type strikes struct {
	any atomic.Bool // whether there are some; read without the lock

	mu      sync.Mutex
	batches map[uuid.UUID]strike
	tallies map[string]tally // by address, since there are strikes
}

type strike struct {
	n     int
	at    tally // when it was counted, itself included
	own   int   // its sends since then that were not counted
	since time.Time
}

// tally counts what became of an address's sends.
type tally struct{ accepted, suspect int }

const (
	maxStrikes  = 3
	mostStrikes = 10_000 // batches remembered; more of them are no exception but an outage
)

// longAgo is when a strike is forgotten: another process may have sent the batch.
const longAgo = time.Hour

// hit counts an outage of the batch and tells whether it was one too many.
func (s *strikes) hit(groupID uuid.UUID, address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batches == nil || len(s.batches) >= mostStrikes {
		s.batches, s.tallies = map[uuid.UUID]strike{}, map[string]tally{}
	}
	s.any.Store(true)
	now := s.tallies[address]
	last, again := s.batches[groupID]
	accepted, others := now.accepted-last.at.accepted, now.suspect-last.at.suspect-last.own
	now.suspect++
	s.tallies[address] = now
	if again && accepted <= 2*others { // it is everybody's outage
		last.own++
		s.batches[groupID] = last
		return false
	}
	if !again {
		s.forget()
	}
	s.batches[groupID] = strike{n: last.n + 1, at: now, since: time.Now()}
	return last.n+1 >= maxStrikes
}

// forget drops what is long ago.
func (s *strikes) forget() {
	for groupID, one := range s.batches {
		if time.Since(one.since) > longAgo {
			delete(s.batches, groupID)
		}
	}
}

// inherit makes the parts of a batch that was struck out suspects that need no
// second strike: halving would take very long else.
func (s *strikes) inherit(from uuid.UUID, parts []uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.batches[from]
	delete(s.batches, from)
	for _, part := range parts {
		s.batches[part] = strike{n: maxStrikes - 1, at: last.at, since: last.since}
	}
}

// took hears that an address took events, "" the sink any at all.
func (s *strikes) took(address string) {
	if !s.any.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, struck := s.tallies[address]; struck { // there are addresses without number
		now.accepted++
		s.tallies[address] = now
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
		s.batches, s.tallies = nil, nil
		s.any.Store(false)
	}
}
