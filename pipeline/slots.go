package pipeline

import (
	"context"
	"slices"
	"sync"
)

// slots are leave to send, for so many batches at once; first come, first served, so
// that a batch which was claimed ahead does not wait behind one that was claimed later.
type slots struct {
	mu      sync.Mutex
	limit   int
	taken   int
	closed  bool
	waiting []chan bool // each holds the one answer it gets
}

// take waits for a slot; false: there is none any more, or ctx is done. What was taken
// must be given back, once.
func (s *slots) take(ctx context.Context) bool {
	s.mu.Lock()
	if s.closed || s.taken < s.limit && len(s.waiting) == 0 {
		defer s.mu.Unlock()
		if s.taken >= s.limit {
			return false
		}
		s.taken++
		return true
	}
	turn := make(chan bool, 1)
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case ok := <-turn:
		return ok
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, turn)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 && <-turn { // it came at the same moment
		s.give()
	}
	return false
}

// give gives a slot back.
func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.serve()
}

// set changes how many there are. Who has one keeps it.
func (s *slots) set(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
	s.serve()
}

func (s *slots) serve() {
	for len(s.waiting) > 0 && s.taken < s.limit {
		s.waiting[0] <- true
		s.waiting = s.waiting[1:]
		s.taken++
	}
}

// close sends everybody away who waits, or would have to.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, turn := range s.waiting {
		turn <- false
	}
	s.waiting = nil
}
