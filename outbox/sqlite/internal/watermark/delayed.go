package watermark

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A delayed event (available_at) that is not due is no event yet: claims and counts pass over it, and so does the cursor. When it is due, it
// may be below the cursor. Looks along an index on available_at find it then. A look reads on after the last entry of the look before, as
// long as there is more to read; that is a round. The next round begins roundMargin before the last one began:
//
//   - with one writer, an event is visible before the cursor can pass it, and it is passed only while it is not due by the clock of that
//     transaction. So it is in the index when a look finds it due;
//   - the clock may be set back between two transactions: Clock makes the next round begin there.
//
// So what live batches hold is read once for each round, and nothing of it while the relay drains what became due at one time.
//
// With `order: key`, an event that is due waits while its key is in a live batch. Looks pass it all the same, and its lane is remembered
// with its first entry: when the lane is free, the next look begins there.
const (
	// roundMargin covers an application that makes an event available earlier, in a transaction that commits after a look.
	roundMargin = 5 * time.Second
	// Ids that are dueGap apart, or dueSpan from the first, are in different batches: a batch is read and deleted by its ids from the first
	// to the last, over all rows between them.
	dueGap, dueSpan = 1000, 10_000
	// maxBlocked is how many lanes are remembered. Events of others wait for the sweep.
	maxBlocked = 100_000
)

// timeFormat is how the index has times.
const timeFormat = "2006-01-02T15:04:05.000Z"

// Entry is one of the index on available_at: entries are in the order of their times, and then of their ids.
type Entry struct {
	At string // as the index has it; "" is before all times
	ID int64
}

// before reports whether e comes before other in the index.
func (e Entry) before(other Entry) bool {
	return cmp.Or(cmp.Compare(e.At, other.At), cmp.Compare(e.ID, other.ID)) < 0
}

// delayedEvents is what a process knows of delayed events. The zero value knows nothing.
type delayedEvents struct {
	last     time.Time // when the last complete round began; zero: none did
	began    time.Time // when the present round began
	after    *Entry    // the last entry that the present round has read; nil: the next look begins a round
	clock    time.Time // of the last transaction that may have passed an event
	due      [][]int64 // those that a look has found, in parts that are small enough to be claimed
	more     bool      // a look would find others, or read on
	turn     bool      // the next claim takes delayed events first
	again    bool      // the next claim looks: a lane that was blocked when events were counted may be free
	blocked  map[uint32]Entry
	existing bool // the last look saw events that are not due
}

// from is the entry after which the next look begins, but for the lanes that are free again.
func (d *delayedEvents) from() Entry {
	switch {
	case d.after != nil:
		return *d.after
	case !d.last.IsZero():
		return Entry{d.last.Add(-roundMargin).Format(timeFormat), math.MaxInt64}
	}
	return Entry{}
}

// forget makes the next look begin with the first entry.
func (d *delayedEvents) forget() {
	d.last, d.after, d.due, d.more, d.blocked = time.Time{}, nil, nil, false, nil
}

// Look is what a look has found.
type Look struct {
	// Now is its clock.
	Now time.Time
	// After is the entry that it began after.
	After Entry
	// Due are the events that no batch has, below the cursor. First is the first entry of them.
	Due   []int64
	First Entry
	// Last is the last entry that it read; nil: it read all that are due.
	Last *Entry
	// Blocked are the lanes of live batches with their first entries.
	Blocked map[uint32]Entry
	// Existing: there are events that are not due.
	Existing bool
	// Counted: the look is part of a count.
	Counted bool
}

// Clock records the clock of a transaction that may pass events which are not due.
func (c *Cursor) Clock(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.delayed
	if now.Before(d.clock) { // set back
		d.last, d.after = earlier(d.last, now), nil
	}
	d.clock = now
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// NextLook returns the entry after which a look begins. held reports whether a lane is one of a live batch; nil: no lane is.
func (c *Cursor) NextLook(now time.Time, held func(lane uint32) bool) Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.delayed
	from := d.from()
	if d.after == nil {
		d.began = now
	}
	for lane, first := range d.blocked {
		if held != nil && held(lane) {
			continue
		}
		delete(d.blocked, lane)
		if first.ID--; first.before(from) {
			from = first
		}
	}
	d.after = &from
	return from
}

// DelayedFrom returns the entry after which there may be events that are due, below the cursor and in no batch.
func (c *Cursor) DelayedFrom() Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.delayed
	from := d.from()
	for _, first := range d.blocked {
		if first.ID--; first.before(from) {
			from = first
		}
	}
	return from
}

// Looked records what a look has found. It returns how many lanes are blocked.
func (c *Cursor) Looked(l Look) (blocked int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.delayed
	switch {
	case len(l.Due) > 0: // a claim may fail: the next look finds them again
		l.First.ID--
		d.after = &l.First
	case l.Last != nil:
		d.after = l.Last
	default:
		d.last, d.after = d.began, nil
	}
	d.more = l.Last != nil
	d.existing = l.Existing
	for lane, first := range l.Blocked {
		if _, known := d.blocked[lane]; !known && len(d.blocked) < maxBlocked {
			if d.blocked == nil {
				d.blocked = map[uint32]Entry{}
			}
			d.blocked[lane] = first
		}
	}
	d.again = l.Counted && len(d.blocked) > 0
	d.due = dueParts(l.Due)
	return len(d.blocked)
}

// dueParts divides ids, which it sorts, into parts that are small enough to be claimed.
func dueParts(ids []int64) (parts [][]int64) {
	slices.Sort(ids)
	first := 0
	for i, id := range ids {
		if i > 0 && (uint64(id-ids[i-1]) > dueGap || uint64(id-ids[first]) > dueSpan) { //nolint:gosec // ids from one end to the other are far apart too
			parts = append(parts, ids[first:i])
			first = i
		}
	}
	if len(ids) > 0 {
		parts = append(parts, ids[first:])
	}
	return parts
}

// TakeDue returns up to limit delayed events that are due, for the caller to claim. looks: there are none, but a look may find some.
func (c *Cursor) TakeDue(limit int) (ids []int64, looks bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.delayed
	if len(d.due) == 0 {
		return nil, d.more
	}
	ids = d.due[0]
	if len(ids) > limit {
		ids, d.due[0] = ids[:limit], ids[limit:]
	} else {
		d.due = d.due[1:]
	}
	return ids, false
}

// Due reports whether TakeDue may return events, or a look find some, and whether a claim takes these before others. Delayed events that
// are due and others take turns.
func (c *Cursor) Due() (some, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.delayed
	if len(d.due) == 0 && !d.more && !d.again {
		return false, false
	}
	d.turn = !d.turn
	return true, d.turn
}

// LookAgain reports whether a claim looks before it claims. Without that, a key whose events follow each other would be blocked whenever
// a count looks. It is true once for each count.
func (c *Cursor) LookAgain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	again := c.delayed.again && len(c.delayed.due) == 0
	c.delayed.again = false
	return again
}

// Delayed reports whether the last look saw events that are not due.
func (c *Cursor) Delayed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.delayed.existing
}

// Skip records that no event lies between from and id that is available and that no batch has.
func (c *Cursor) Skip(from, id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == from {
		c.at = max(c.at, id-1)
	}
}
