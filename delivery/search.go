package delivery

import (
	"math"
	"time"

	"github.com/google/uuid"
)

// search is the one for the bad events of batches that the sink refused as a whole. The worker that halved one goes on with its parts, the smallest first, until
// each event is decided on, and then with others that were refused. If the sink refuses other batches meanwhile, and accepts none, nearly every batch has a bad
// event: then one at a time is sent, and searched. Otherwise they would all wait, refused, and the pause of a sink that refuses everything would be that of a sink that refuses every batch.
//
// The owner locks it.
type search struct {
	workers int       // so many are at it
	most    int       // so many may be
	events  int       // in the largest batch that one began with
	beside  int       // fresh batches that were refused, since one was accepted
	freshAt time.Time // while all that may search do, nothing is claimed before
}

const (
	// refusedInRow is how many fresh batches are refused, and none accepted, before one at a time is sent.
	refusedInRow = openAfter
	// maxSearching is how many batches are searched at once, and no more than there are workers. More are in flight, so fresh ones have their turn.
	maxSearching = 3
	// freshEvery is how often one batch is claimed while all that may search do: fresh events may be good. A bad one is halved, and its parts wait for the search.
	freshEvery = time.Second
)

// refused counts the refusal of a batch of n events. known: it, or one that it was a part of, was refused before.
func (s *search) refused(known bool, n int) {
	if n > 1 && !known {
		s.beside++
	}
}

// accepted notes that a fresh batch was.
func (s *search) accepted() { s.beside = 0 }

// oneByOne reports whether one batch at a time is sent.
func (s *search) oneByOne() bool { return s.beside >= refusedInRow }

// allow returns how many batches may be claimed: any number, or one that is searched, if it is refused, before the next.
func (s *search) allow(now time.Time) int {
	switch {
	case !s.oneByOne():
		return math.MaxInt
	case s.workers == 0 || s.workers < s.most:
		return 1
	case now.Before(s.freshAt):
		return 0
	}
	s.freshAt = now.Add(freshEvery)
	return 1
}

// requests is how many may be refused in a row while a batch of n, and those of the other workers, are searched.
func (s *search) requests(n int) int { return s.workers * requestsFor(max(n, s.events)) }

// Halved is a batch that the sink refused as a whole.
type Halved struct{ events int }

// BeginSearch begins the search for the bad events of a batch that was halved. The caller works on what is due (buffer.DueSmallest), as long as it was refused, and
// calls EndSearch. workers is how many batches are sent at once. ok is false if enough searches are under way: they take these parts as well.
func (w *Worker) BeginSearch(h *Halved, workers int) (ok bool) {
	d := &w.refusals
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.search.most = max(1, min(workers, maxSearching)); d.search.workers >= d.search.most {
		return false
	}
	d.search.workers++
	d.search.events = max(d.search.events, h.events)
	return true
}

// EndSearch ends the search. Parts that are left are taken over as any due batch.
func (w *Worker) EndSearch() {
	d := &w.refusals
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.search.workers--; d.search.workers == 0 {
		d.search.events = 0
	}
}

// knows reports whether the batch, or one that it was a part of, was refused by an answer that this process got.
func (d *refusals) knows(groupID uuid.UUID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.batches[groupID]
	return known
}
