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
//
// With `order: key`, an event that is due waits while its key is in a live batch. dueFrom passes it all the same, and its lane is remembered
// with the first of its times: when the lane is free, the next look begins there. So what waits for a blocked key is read once.
const (
	// delayedMargin is how far before dueFrom a look begins. It covers the time between a statement's clock and its snapshot, a clock that is
	// set back a little, and an application that makes an event available earlier.
	delayedMargin = 5 * time.Second
	// Ids that are dueGap apart, or dueSpan from the first, are in different ranges: a batch is read and deleted by its ids from
	// the first to the last, over all rows between them.
	dueGap, dueSpan = 1000, 10_000
	// MaxBlocked is how many lanes are remembered. dueFrom passes no event of another one that is blocked.
	MaxBlocked = 1000
	// A look with `order: key` reads lookRows events that are due. While all of these are blocked, the next one reads twice as many, because it
	// cannot begin between events that became available at one time.
	lookRows, maxLookRows = 20_000, 1_000_000
)

// delayedEvents is what a process knows of delayed events.
type delayedEvents struct {
	dueFrom time.Time // what was due before was claimed; zero: not known
	due     []Range   // where those that are due are
	more    bool      // the last look found as many as it may
	turn    bool      // the next claim looks at due first

	// With `order: key`:
	blocked []Blocked // the lanes with events that are due before dueFrom
	rows    int       // what the next look reads; 0: lookRows
	again   bool      // the next claim looks: a lane that was blocked when events were counted may be free
}

// Blocked is a lane of live batches (see package claim) with delayed events that are due.
type Blocked struct {
	Lane int32
	// Oldest is the first available_at of them.
	Oldest time.Time
}

// LookFrom is what a look for delayed events that are due begins with.
type LookFrom struct {
	// After is the time after which there may be some that no batch has, but for those of the lanes Blocked.
	After   time.Time
	Blocked []Blocked
	// Rows is how many it reads at most, with `order: key`.
	Rows int
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
	// Blocked are the lanes with events that wait for their keys, those that became available first before others.
	Blocked []Blocked
	// ReadUpTo is the available_at of the last event that the look read; zero: it read all that are due.
	ReadUpTo time.Time
	// Counted: the look is part of a count.
	Counted bool
}

// DelayedAfter is the time after which there may be events that are due and in no batch; zero: not known.
func (w *Watermarks) DelayedAfter() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	after := w.delayed.after()
	if !after.IsZero() && len(w.delayed.blocked) > 0 {
		after = earlier(after, w.delayed.blocked[0].Oldest.Add(-time.Microsecond))
	}
	return after
}

// NextLook returns what the next look begins with.
func (w *Watermarks) NextLook() LookFrom {
	w.mu.Lock()
	defer w.mu.Unlock()
	return LookFrom{After: w.delayed.after(), Blocked: w.delayed.blocked, Rows: max(w.delayed.rows, lookRows)}
}

// after is the time after which there may be events that are due and in no batch, but for those of blocked lanes; zero: not known.
func (d *delayedEvents) after() time.Time {
	if d.dueFrom.IsZero() {
		return time.Time{}
	}
	return d.dueFrom.Add(-delayedMargin)
}

// ForgetDue makes the next look begin with the first delayed event. The clock may have been set back, and an application may have made an
// event available earlier.
func (w *Watermarks) ForgetDue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delayed.dueFrom = time.Time{}
}

// LookAgain reports whether a claim looks before it claims. Without that, a key whose events follow each other would be blocked whenever a
// count looks. It is true once for each count.
func (w *Watermarks) LookAgain() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	again := w.delayed.again && len(w.delayed.due) == 0
	w.delayed.again = false
	return again
}

// FoundDue records what a look has found.
func (w *Watermarks) FoundDue(d Due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case d.Now.Before(w.delayed.dueFrom): // the clock was set back
		w.delayed.dueFrom, d.Blocked = time.Time{}, nil
	case len(d.IDs) > 0:
		w.delayed.dueFrom = d.Oldest.Add(-time.Microsecond)
	case !d.ReadUpTo.IsZero():
		w.delayed.dueFrom = earlier(d.Now, d.ReadUpTo.Add(delayedMargin-time.Microsecond))
	default:
		w.delayed.dueFrom = d.Now
	}
	rows := 0
	if len(d.IDs) == 0 && !d.ReadUpTo.IsZero() {
		rows = min(2*max(w.delayed.rows, lookRows), maxLookRows)
	}
	if len(d.Blocked) > MaxBlocked {
		w.delayed.dueFrom = earlier(w.delayed.dueFrom, d.Blocked[MaxBlocked].Oldest.Add(-time.Microsecond))
		d.Blocked = d.Blocked[:MaxBlocked]
	}
	w.delayed.blocked, w.delayed.rows = d.Blocked, rows
	w.delayed.again = d.Counted && len(d.Blocked) > 0
	fresh, _ := slices.BinarySearch(d.IDs, w.cursor+1) // claims find those beyond the cursor by themselves
	w.delayed.due, w.delayed.more = dueRanges(d.IDs[:fresh]), d.Limited
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// dueRanges divides ids into ranges that are small enough to be claimed.
func dueRanges(ids []int64) (ranges []Range) {
	first := 0
	for i, id := range ids {
		if last := len(ranges) - 1; i > 0 && uint64(id-ids[i-1]) <= dueGap && uint64(id-ranges[last].After) <= dueSpan { //nolint:gosec // ids from one end to the other are far apart too
			ranges[last].UpTo, ranges[last].IDs = id, ids[first:i+1]
			continue
		}
		first = i
		ranges = append(ranges, Range{After: max(id, math.MinInt64+1) - 1, UpTo: id, Late: true, Due: true, IDs: ids[i : i+1]})
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
