package pipeline

import (
	"context"
	"slices"
	"sync"
)

// semaphore bounds the batches that are sent at once. Its size may change, and it is first
// come, first served, so that a batch which was claimed ahead does not wait behind one that was
// claimed later. (golang.org/x/sync/semaphore has a fixed size.)
type semaphore struct {
	mu      sync.Mutex
	size    int
	taken   int
	closed  bool
	waiting []chan bool // each takes one answer
}

// acquire waits for a slot. ok is false when the semaphore is closed and no slot is free, its size is 0,
// or ctx is done. A slot must be released once.
func (s *semaphore) acquire(ctx context.Context) (release func(), ok bool) {
	s.mu.Lock()
	if s.closed || s.size == 0 || s.taken < s.size && len(s.waiting) == 0 {
		defer s.mu.Unlock()
		if s.taken >= s.size {
			return nil, false
		}
		s.taken++
		return s.release, true
	}
	answer := make(chan bool, 1)
	s.waiting = append(s.waiting, answer)
	s.mu.Unlock()
	select {
	case ok := <-answer:
		return s.release, ok
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, answer)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 && <-answer { // it came at the same moment
		s.release()
	}
	return nil, false
}

func (s *semaphore) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.serve()
}

// resize changes how many slots there are. A slot that is taken stays so until it is released. Size 0 ends all
// waits: nobody knows when there will be a slot.
func (s *semaphore) resize(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = size
	s.serve()
}

func (s *semaphore) serve() {
	for len(s.waiting) > 0 && s.taken < s.size {
		s.waiting[0] <- true
		s.waiting = s.waiting[1:]
		s.taken++
	}
	if s.size == 0 {
		s.refuse()
	}
}

// close ends all waits, now and later.
func (s *semaphore) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.refuse()
}

func (s *semaphore) refuse() {
	for _, answer := range s.waiting {
		answer <- false
	}
	s.waiting = nil
}
