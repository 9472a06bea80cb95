package jq

import (
	"context"
	"slices"
	"sync"
	"time"
)

// queue decides which runs may begin. Among the programs that wait, the one whose runs took the least time is next:
// a program whose runs take seconds does not hold up those whose runs take milliseconds. (This is start-time fair
// queueing: Goyal, Vin and Cheng, SIGCOMM 1996.)
type queue struct {
	mu      sync.Mutex
	free    int       // runs that may begin
	waiting []*waiter // in order of arrival
	// clock is the time that the program whose run began last had taken. A program that comes back is not credited
	// for the time in which it ran nothing.
	clock time.Duration
}

// waiter is a run that waits.
type waiter struct {
	share *share
	begin chan struct{}
}

// share is what a program has taken of the queue. The queue's mutex protects it.
type share struct {
	taken time.Duration
	runs  int // that wait or run
}

// enter waits until a run may begin, in order of arrival for the runs of one program. leave must be called after the run. ok is false when
// ctx is done.
func (q *queue) enter(ctx context.Context, s *share) (leave func(), ok bool) {
	q.mu.Lock()
	if s.runs++; s.runs == 1 {
		s.taken = max(s.taken, q.clock)
	}
	w := &waiter{s, make(chan struct{})}
	q.waiting = append(q.waiting, w)
	q.next()
	q.mu.Unlock()
	select {
	case <-w.begin:
	case <-ctx.Done():
		if q.cancel(w) {
			return nil, false
		}
	}
	began := time.Now()
	return func() { q.leave(s, time.Since(began)) }, true
}

// cancel reports whether the run has not begun.
func (q *queue) cancel(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	w.share.runs--
	return true
}

func (q *queue) leave(s *share, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s.taken += took
	s.runs--
	q.free++
	q.next()
}

// next lets runs begin while there is room.
func (q *queue) next() {
	for q.free > 0 && len(q.waiting) > 0 {
		first := 0
		for i, w := range q.waiting {
			if w.share.taken < q.waiting[first].share.taken {
				first = i
			}
		}
		w := q.waiting[first]
		q.waiting = slices.Delete(q.waiting, first, first+1)
		q.free--
		q.clock = max(q.clock, w.share.taken)
		close(w.begin)
	}
}
