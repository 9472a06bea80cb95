package delivery

import (
	"math"

	"github.com/google/uuid"
)

// search is the one for the bad events of batches that the sink refused as a whole. The worker that halved one goes on with its parts, the smallest first, until
// each event is decided on, and then with others that were refused. If the sink refuses other batches meanwhile, and accepts none, nearly every batch has a bad
// event: then one at a time is sent, and searched. Otherwise they would all wait, refused, and the pause of a sink that refuses everything would be that of a sink that refuses every batch.
//
// The owner locks it.
type search struct {
	workers int       // so many are at it
	events  int       // in the largest batch that one began with
	beside  int       // batches that were refused beside it, since a fresh one was accepted
	besides uuid.UUID // the last of them
}

// refusedInRow is how many different batches are refused, and no fresh one accepted, before one at a time is sent.
const refusedInRow = openAfter

// maxSearching is how many workers search at once. Others stay for fresh events.
const maxSearching = 3

// refused counts the refusal of n events, which were first a part of the batch root.
func (s *search) refused(root uuid.UUID, n int) {
	if n > 1 && root != s.besides {
		s.beside, s.besides = s.beside+1, root
	}
}

// accepted notes that a fresh batch was.
func (s *search) accepted() { s.beside, s.besides = 0, uuid.Nil }

// oneByOne reports whether one batch at a time is sent.
func (s *search) oneByOne() bool { return s.beside >= refusedInRow }

// allow returns how many batches may be claimed: any number, or one that is searched, if it is refused, before the next.
func (s *search) allow() int {
	switch {
	case !s.oneByOne():
		return math.MaxInt
	case s.workers >= maxSearching:
		return 0
	}
	return 1
}

// requests is how many may be refused in a row while a batch of n, and those of the other workers, are searched.
func (s *search) requests(n int) int { return s.workers * requestsFor(max(n, s.events)) }

// Halved is a batch that the sink refused as a whole.
type Halved struct{ events int }

// BeginSearch begins the search for the bad events of a batch that was halved. The caller works on what is due (buffer.DueSmallest), as long as it was refused, and
// calls EndSearch. ok is false if enough workers search, who will come to these parts.
func (w *Worker) BeginSearch(h *Halved) (ok bool) {
	d := &w.refusals
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.search.workers >= maxSearching {
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
