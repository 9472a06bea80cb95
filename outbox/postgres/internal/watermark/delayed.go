package watermark

import (
	"math"
	"slices"
	"time"
)

// A delayed event (available_at) that is not due is no event yet: claims, counts and sweeps pass over it, and so do cursor and floor.
// When it is due, it may be below both. An index on available_at finds it then, from the dueFrom of this package on:
//
//   - an event that was visible before it was due is in the index when a look finds it due: dueFrom only moves to a time at
//     which a look found nothing more, so not past it;
//   - an event that is due when its transaction commits is like any other: the floor has not passed it, and sweeps find it.
//
// So the entries of delivered events, which stay in the index while a snapshot is pinned, are read for delayedMargin at most.
const (
	// delayedMargin is how far before dueFrom a look begins. It covers the time between a statement's clock and its snapshot, a clock that is
	// set back a little, and an application that makes an event available earlier.
	delayedMargin = 5 * time.Second
	// Ids that are dueGap apart, or dueSpan from the first, are in different ranges: a batch is read and deleted by its ids from
	// the first to the last, over all rows between them.
	dueGap, dueSpan = 1000, 10_000
)

// delayedEvents is what a process knows of delayed events.
type delayedEvents struct {
	dueFrom time.Time // what was due before was claimed; zero: not known
	due     []Range   // where those that are due are
	more    bool      // the last look found as many as it may
	turn    bool      // the next claim looks at due first
}

// Due is what a look for delayed events that are due has found.
type Due struct {
	// Now is the database's clock when it looked.
	Now time.Time
	// IDs are those that no batch has, in order.
	IDs []int64
	// Oldest is the first available_at of them.
	Oldest time.Time
	// Limited: there may be more.
	Limited bool
}

// DelayedAfter is the time after which delayed events may be due that no batch has.
func (w *Watermarks) DelayedAfter() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.delayed.dueFrom.IsZero() {
		return time.Time{}
	}
	return w.delayed.dueFrom.Add(-delayedMargin)
}

// FoundDue records what a look has found.
func (w *Watermarks) FoundDue(d Due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case d.Now.Before(w.delayed.dueFrom): // the clock was set back
		w.delayed.dueFrom = time.Time{}
	case len(d.IDs) == 0:
		w.delayed.dueFrom = d.Now
	default:
		w.delayed.dueFrom = d.Oldest.Add(-time.Microsecond)
	}
	fresh, _ := slices.BinarySearch(d.IDs, w.cursor+1) // claims find those beyond the cursor by themselves
	w.delayed.due, w.delayed.more = dueRanges(d.IDs[:fresh]), d.Limited
}

// dueRanges divides ids into ranges that are small enough to be claimed.
func dueRanges(ids []int64) (ranges []Range) {
	for i, id := range ids {
		if last := len(ranges) - 1; i > 0 && uint64(id-ids[i-1]) <= dueGap && uint64(id-ranges[last].After) <= dueSpan { //nolint:gosec // ids from one end to the other are far apart too
			ranges[last].UpTo = id
			continue
		}
		ranges = append(ranges, Range{After: max(id, math.MinInt64+1) - 1, UpTo: id, Late: true, Due: true})
	}
	return ranges
}

// TakeDue returns a range with delayed events that are due, for the caller to claim and to report to Claimed; first: before it looks
// for others. more: there is none, but a look would find some.
func (w *Watermarks) TakeDue() (r Range, ok, first, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.delayed.due) == 0 {
		return r, false, false, w.delayed.more
	}
	r, w.delayed.due = w.delayed.due[0], w.delayed.due[1:]
	r.cursor = w.cursor
	w.delayed.turn = !w.delayed.turn
	return r, true, w.delayed.turn, false
}

// MoreDue reports whether TakeDue would return a range, or a look find some.
func (w *Watermarks) MoreDue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.delayed.due) > 0 || w.delayed.more
}

// PutBackDue puts back a range that TakeDue returned.
func (w *Watermarks) PutBackDue(r Range) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delayed.due = append([]Range{r}, w.delayed.due...)
}
