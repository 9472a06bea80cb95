package jq

import (
	"context"
	"slices"
	"sync"
	"time"
)

// shortRun is how long a run may take in the child for short runs.
const shortRun = 250 * time.Millisecond

// queue decides which runs may begin. Programs share the children by the time that their runs take. Next is the run for which
// the time that its program has taken, with the time that the run is expected to take, is least: many programs whose runs take
// seconds do not hold up one whose runs take milliseconds. (This is weighted fair queueing, which orders by finish times: Demers,
// Keshav and Shenker, SIGCOMM 1989.)
//
// A run that has begun cannot be interrupted, except in the child for short runs: one that takes longer there is ended,
// and begins again in another child.
type queue struct {
	mu       sync.Mutex
	free     int            // children for any run
	reserved int            // children for short runs
	waiting  []*waiter      // in order of arrival
	active   map[*share]int // runs that wait or have begun
	// clock is the least time that a program with runs has taken. A program that comes back is not credited for the time in
	// which it ran nothing.
	clock time.Duration
}

// share is what a program has taken of the queue. The queue's mutex protects it.
type share struct {
	taken    time.Duration // with what the runs that have begun are expected to take
	expected time.Duration // of a run
}

// waiter is a run that waits.
type waiter struct {
	share *share
	long  bool // not for the child for short runs
	begin chan turn
}

func (w *waiter) isShort() bool { return !w.long && w.share.expected < shortRun }

// turn is a run that has begun.
type turn struct {
	share    *share
	expected time.Duration
	short    bool // in the child for short runs
}

// enter waits until a run may begin, in order of arrival for the runs of one program. leave must be called after the run. ok is false
// when ctx is done.
func (q *queue) enter(ctx context.Context, s *share, long bool) (begun turn, ok bool) {
	q.mu.Lock()
	if q.active == nil {
		q.active = map[*share]int{}
	}
	if q.active[s] == 0 {
		q.advance()
		s.taken = max(s.taken, q.clock)
	}
	q.active[s]++
	w := &waiter{s, long, make(chan turn, 1)}
	q.waiting = append(q.waiting, w)
	q.next()
	q.mu.Unlock()
	select {
	case begun = <-w.begin:
	case <-ctx.Done():
		if q.cancel(w) {
			return turn{}, false
		}
		begun = <-w.begin
	}
	return begun, true
}

// advance sets the clock.
func (q *queue) advance() {
	var least *share
	for s := range q.active {
		if least == nil || s.taken < least.taken {
			least = s
		}
	}
	if least != nil {
		q.clock = max(q.clock, least.taken)
	}
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
	q.end(w.share)
	return true
}

// leave is for a run that has ended. One that takes long makes the next ones long, until several have been short.
func (q *queue) leave(t turn, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.share.taken += took - t.expected
	t.share.expected = max(took, t.share.expected/2)
	q.end(t.share)
	if t.short {
		q.reserved++
	} else {
		q.free++
	}
	q.next()
}

func (q *queue) end(s *share) {
	if q.active[s]--; q.active[s] == 0 {
		delete(q.active, s)
	}
	if len(q.active) == 0 {
		q.clock = max(q.clock, s.taken)
	}
}

// next lets runs begin while there is room.
func (q *queue) next() {
	for q.free > 0 && q.begin(false) {
		q.free--
	}
	for q.reserved > 0 && q.begin(true) {
		q.reserved--
	}
}

// begin lets the next run begin, and reports whether there is one.
func (q *queue) begin(short bool) bool {
	first := -1
	for i, w := range q.waiting {
		if (!short || w.isShort()) && (first < 0 || w.ends() < q.waiting[first].ends()) {
			first = i
		}
	}
	if first < 0 {
		return false
	}
	w := q.waiting[first]
	q.waiting = slices.Delete(q.waiting, first, first+1)
	w.share.taken += w.share.expected
	w.begin <- turn{w.share, w.share.expected, short}
	return true
}

// ends is what the program will have taken after the run.
func (w *waiter) ends() time.Duration { return w.share.taken + w.share.expected }
