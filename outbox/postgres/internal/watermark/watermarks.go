package watermark

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
)

const (
	sweepInterval    = time.Second     // between scans of (floor, cursor] for late commits
	maxSweepInterval = 3 * time.Second // if a count takes long
	// FullSweepInterval is between scans of everything, for ids given by hand.
	FullSweepInterval = 5 * time.Minute
	// blockInterval is between scans of everything if sessions draw ids in blocks: one that commits its last id an hour after
	// others have passed it holds no lock meanwhile. blockRest is the rest after a scan, in multiples of how long it took,
	// because dead rows that vacuum cannot remove make it slow.
	blockInterval  = 2 * time.Second
	blockRest      = 50
	windowRest     = 10               // the same, between the windows of a scan
	fullSweepDelay = time.Minute      // for which a backlog puts a full sweep off
	storeInterval  = 10 * time.Second // between writes of the floor; one more when the process ends

	// maxClaimed bounds the ranges that are remembered; sweeps look at the others.
	maxClaimed = 1024
)

// lateSpan is the ids within which a claim looks for late commits without a sweep; see lateScanDue.
const lateSpan = 2000

// Watermarks are safe for concurrent use.
type Watermarks struct {
	// ordered: claims begin at the floor and leave events of blocked keys behind.
	ordered bool

	mu sync.Mutex

	start         int64 // where cursor and floor begin; see Beginning
	cursor, floor int64
	numbering     string              // which ids they are; see Sequence
	lastValue     int64               // M, as last read
	lastCounted   int64               // M, as the last count read it
	watched       int64               // the M of step 2; start: none
	lockHolders   map[string]struct{} // step 2
	decided       int64               // the M of step 3; start: none
	sweepFrom     int64               // where the next sweep begins; see advanceSweep
	sweptM        int64               // the M of the last sweep
	sweptHolders  map[string]int64    // who held a lock on the sequence then, and the M before each of them was seen
	sweepNext     time.Time
	fullSweepNext time.Time
	lateCount     int   // late events that the last sweep saw and no claim has taken yet
	lateFrom      int64 // where that sweep began
	lastGap       int64 // the highest id behind a gap that a claim left
	due           DueLine
	storedAt      time.Time
	stored        int64
	// claimed are ranges beyond the floor that this process has claimed. Nothing can commit late among
	// them, so a sweep skips the one at the cursor, and a floor that reaches one moves to its end.
	claimed      idset.Set
	sweepAgain   bool      // the last scan of everything found some, and there may be more
	delayedSince time.Time // since when a full sweep waits for a smaller backlog
	blocks       bool      // sessions draw ids in blocks
	blockNext    time.Time // the next sweep for what they drew before
	// conditional: a row may become an event at any time after its insert, so full sweeps look for those as often as for ids from blocks.
	conditional bool
	swept       bool // a full sweep has ended
	// Until then new events may have ids of a batch that is still live (see package ledger), so the floor passes them. They are
	// swept for as those from blocks are.
	reusedUntil time.Time
	delayed     delayedEvents
}

// New returns the watermarks of a buffer. ordered is set for `order: key`.
func New(ordered bool) *Watermarks { return &Watermarks{ordered: ordered} }

// Range is where a claim looks: (After, UpTo].
type Range struct {
	After, UpTo int64
	// Late is set for a scan for late commits, beyond the cursor for fresh events too.
	Late bool
	// Due is set for one with delayed events that are due, whose ids are IDs.
	Due bool
	IDs []int64

	cursor int64 // when the range was made
}

// Ranges returns where the next claim looks, one after the other until it finds something. Late
// commits that a sweep saw come first, because they have waited longest.
func (w *Watermarks) Ranges() []Range {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := Range{After: w.cursor, UpTo: math.MaxInt64, cursor: w.cursor}
	late := Range{After: w.lateAfter(), UpTo: w.claimed.Before(w.cursor), Late: true, cursor: w.cursor}
	switch {
	case w.lateCount > 0:
		return []Range{{After: w.lateFrom, UpTo: w.cursor, Late: true, cursor: w.cursor}, fresh}
	case w.lateScanDue():
		late.UpTo = fresh.UpTo
		return []Range{late}
	case late.After < late.UpTo:
		return []Range{fresh, late}
	}
	return []Range{fresh}
}

// lateScanDue reports whether a claim takes late events too although no sweep saw one. Of two
// transactions that overlap, the later one often commits first; if every claim finds fresh events,
// the other would wait for a sweep. Over many ids a sweep is soon enough.
func (w *Watermarks) lateScanDue() bool {
	return w.floor < w.lastGap && w.lateAfter() >= w.cursor-lateSpan
}

// lateAfter returns where claims look for late commits. A large transaction that is open has many rows beyond the floor,
// which a claim must not read while others wait for it; what it passes over so is a sweep's.
func (w *Watermarks) lateAfter() int64 {
	if w.floor >= w.cursor-lateSpan {
		return w.floor
	}
	return max(w.floor, w.sweepFrom)
}

// Sequence is what a statement read of the buffer's sequence before it looked for events.
type Sequence struct {
	LastValue int64 // M
	// Numbering changes whenever ids may be used again: with TRUNCATE RESTART IDENTITY and with a restore the sequence has
	// another file, after a failover the server has started at another time, and another table under the buffer's name has another
	// oid. Otherwise a sequence that went back, and passed the cursor before anybody looked, would not be noticed.
	Numbering string
}

// Claimed records what a claim in a range returned; batch may be nil. seen was read before the claim looked. void: the
// ranges mean nothing any more, and the claim looks again.
func (w *Watermarks) Claimed(in Range, batch *buffer.Lease, seen Sequence) (void bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sequenceIs(seen, in.cursor) {
		return true
	}
	defer w.addClaimed(batch)
	switch {
	case in.Due:
		if batch != nil && batch.LastID < in.UpTo {
			in.After = batch.LastID
			claimed, _ := slices.BinarySearch(in.IDs, batch.LastID+1)
			in.IDs = in.IDs[claimed:]
			w.delayed.due = append([]Range{in}, w.delayed.due...)
		}
	case in.Late && in.UpTo == math.MaxInt64 && batch == nil:
	case in.Late && in.UpTo == math.MaxInt64:
		w.cursor = max(w.cursor, min(batch.LastID, seen.LastValue))
		w.lastGap = w.cursor // unless addClaimed moves the floor there
	case in.Late && batch == nil:
		w.lateCount = 0
	case in.Late:
		w.lateCount = max(0, w.lateCount-batch.Len())
		if w.conditional { // what is left before it is a sweep's: a claim must not walk over the dead rows again
			w.lateFrom = max(w.lateFrom, batch.LastID)
		}
	case batch != nil:
		// An id beyond M was given by hand; a cursor beyond M would hide the sequence's next ids.
		w.cursor = max(w.cursor, min(batch.LastID, seen.LastValue))
		if batch.FirstID > in.After+1 || batch.LastID-batch.FirstID >= int64(batch.Len()) {
			w.lastGap = batch.LastID
		}
	}
	return false
}

// addClaimed remembers the ids of a batch, which may be nil, and moves the floor over the ranges that it reaches.
func (w *Watermarks) addClaimed(batch *buffer.Lease) {
	if batch != nil && batch.LastID <= w.cursor {
		events := batch.Events
		for first, last := 0, 0; first < len(events); first = last + 1 {
			for last = first; last+1 < len(events) && events[last+1].ID == events[last].ID+1; {
				last++
			}
			w.claimed.Add(idset.Range{First: events[first].ID, Last: events[last].ID})
		}
		if more := len(w.claimed) - maxClaimed; more > 0 {
			w.claimed = w.claimed[more:]
		}
	}
	w.floor = w.claimed.Advance(w.floor)
	w.cursor = max(w.cursor, w.floor)
}

// OrderedFrom returns where claims that keep order by key begin.
func (w *Watermarks) OrderedFrom() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lateCount > 0 { // a full sweep may have found some below the floor
		return min(w.lateFrom, w.floor)
	}
	return w.floor
}

// ClaimedInOrder is Claimed for a claim beyond from that keeps order by key.
func (w *Watermarks) ClaimedInOrder(from int64, batch *buffer.Lease, seen Sequence) (void bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sequenceIs(seen, from) {
		return true
	}
	if batch != nil {
		w.cursor = max(w.cursor, min(batch.LastID, seen.LastValue))
	}
	return false
}

// sequenceIs records what was read after the cursor was seen at began. Another numbering, or an M below began (setval),
// means that the sequence was set back: everything is scanned again. An M below only the present
// cursor is old. void: what was seen since began means nothing any more.
func (w *Watermarks) sequenceIs(seen Sequence, began int64) (void bool) {
	renumbered := seen.Numbering != w.numbering && (w.cursor > w.start || w.floor > w.start)
	w.numbering = seen.Numbering
	switch {
	case w.cursor < began: // it was set back meanwhile
		return true
	case renumbered, seen.LastValue < began:
		w.startAgain(seen.LastValue)
		return true
	}
	w.lastValue = max(w.lastValue, seen.LastValue)
	return false
}

// Beginning returns the id beyond which all ids are that a sequence with this MINVALUE draws. It is 0 but for a MINVALUE below 1.
func Beginning(minValue int64) int64 {
	return min(0, max(minValue, math.MinInt64+1)-1)
}

// beginAt sets everything that is an id to start.
func (w *Watermarks) beginAt(start int64) {
	w.start, w.cursor, w.floor, w.watched, w.decided = start, start, start, start, start
	w.sweepFrom, w.sweptM, w.lastGap, w.lastCounted = start, start, start, start
}

func (w *Watermarks) startAgain(lastValue int64) {
	w.beginAt(w.start)
	w.stored, w.claimed, w.sweptHolders = w.start, nil, nil
	w.lateCount, w.lastValue, w.delayed, w.swept = 0, lastValue, delayedEvents{}, false
	w.reusedUntil = time.Now().Add(FullSweepInterval)
}

// CountRange is what the next count covers: fresh events beyond Cursor, and late ones in
// (LateAfter, LateUpTo], which is empty while no sweep is due.
type CountRange struct {
	Cursor              int64
	LateAfter, LateUpTo int64
	// Sweep: whatever committed late is beyond LateAfter, and the lock holders of the sequence are read too.
	Sweep bool
	// DueAfter is where the live batches begin on the ledger's time line.
	DueAfter time.Time
	// LastValue is M, as last read.
	LastValue int64

	limit int // 0: events are not counted
}

// NextCount returns what a count up to limit covers; 0: no events.
func (w *Watermarks) NextCount(now time.Time, limit int) CountRange {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := CountRange{Cursor: w.cursor, LateAfter: w.cursor, LateUpTo: w.cursor, DueAfter: w.due.Next(now), limit: limit, LastValue: w.lastValue}
	if limit > 0 && w.floor < w.cursor && (w.ordered || !now.Before(w.sweepNext)) {
		r.LateAfter, r.LateUpTo, r.Sweep = w.floor, w.claimed.Before(w.cursor), true
		if !w.ordered { // otherwise events wait there for their keys too
			r.LateAfter = min(max(w.floor, w.sweepFrom), r.LateUpTo)
		}
	}
	return r
}

// FullSweepDue reports whether to scan everything up to an id, and whether for orphans too. That walks over the whole
// backlog, so while there is more than was counted it is put off for a minute.
func (w *Watermarks) FullSweepDue(now time.Time, more bool) (upTo int64, due, orphans bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lateCount > 0 && !w.ordered {
		return 0, false, false
	}
	orphans = w.orphansDue(now, more)
	due = orphans || (w.blocks || now.Before(w.reusedUntil)) && !now.Before(w.blockNext)
	if w.ordered {
		return w.floor, due, orphans // claims see what waits beyond
	}
	return w.cursor, due, orphans
}

func (w *Watermarks) orphansDue(now time.Time, more bool) bool {
	if now.Before(w.fullSweepNext) {
		return false
	}
	if more {
		if w.delayedSince.IsZero() {
			w.delayedSince = now
		}
		if now.Sub(w.delayedSince) < fullSweepDelay {
			return false
		}
	}
	w.delayedSince = time.Time{}
	w.fullSweepNext = now.Add(FullSweepInterval)
	return true
}

// fullSweepFrom puts the next scan of everything off, unless the last one found something that no claim has taken yet.
func (w *Watermarks) fullSweepFrom(next time.Time) {
	if next.After(w.fullSweepNext) && !w.sweepAgain {
		w.fullSweepNext = next
	}
}

// FullySwept records how many late events a window of a full sweep found, from an id on. If it found some, it is repeated at once; a
// sweep that is not whole goes on after a rest.
func (w *Watermarks) FullySwept(found int, from int64, whole bool, took time.Duration, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blockNext = now.Add(min(max(blockInterval, blockRest*took), FullSweepInterval))
	w.sweepAgain, w.swept = found > 0, true
	switch {
	case found == 0 && !whole:
		w.fullSweepNext = now.Add(windowRest * took)
		return
	case found == 0:
		return
	case w.blocks || now.Before(w.reusedUntil):
		w.blockNext = now
	default:
		w.fullSweepNext = now
	}
	w.lateCount, w.lateFrom = found, max(from, math.MinInt64+1)-1
}

// Count is the result of a count.
type Count struct {
	Fresh, Late int
	Sequence
	// Start is where ids begin: see Beginning.
	Start int64
	// Blocks reports whether sessions draw ids in blocks: CACHE, or an INCREMENT that the application divides. Conditional reports whether a row may become
	// an event at any time after its insert.
	Blocks, Conditional bool
	// LockHolders are the transactions that hold a lock on the sequence.
	LockHolders []string
	// Now is the database's clock.
	Now time.Time
	// SweptAt is when a process last scanned everything; zero: never.
	SweptAt time.Time
	// OldestDue is that of the live batches; zero: there are none.
	OldestDue time.Time
	Took      time.Duration
}

// Counted records a count. void: it means nothing, and the caller counts again.
func (w *Watermarks) Counted(r CountRange, c Count, now time.Time) (void bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocks, w.conditional = c.Blocks || c.Conditional, c.Conditional
	if c.Start < w.start { // ALTER SEQUENCE
		w.start = c.Start
		w.startAgain(c.LastValue)
		return true
	}
	if w.sequenceIs(c.Sequence, r.Cursor) {
		return true
	}
	if c.Fresh == 0 && r.limit > 0 {
		// What appears there later is a late commit. The M of the count before spares that to
		// transactions that are shorter than the time between two counts.
		w.cursor = max(w.cursor, min(w.lastCounted, c.LastValue))
	}
	w.lastCounted = c.LastValue
	if !c.SweptAt.IsZero() { // by this process or another
		w.fullSweepFrom(now.Add(FullSweepInterval - max(0, c.Now.Sub(c.SweptAt))))
	}
	w.due.Counted(c.Now, c.OldestDue)
	if !r.Sweep {
		return false
	}
	w.lateCount, w.lateFrom = c.Late, r.LateAfter
	w.sweepNext = now.Add(min(max(sweepInterval, 20*c.Took), maxSweepInterval))
	w.advanceFloor(r, c)
	w.advanceSweep(r, c)
	return false
}

// advanceSweep sets where the next sweep begins, by what the one of r and c, number k, has found. An event becomes one to find
// if its transaction commits, or if the cursor passes it. What has committed since the snapshot of sweep k
//
//   - held a lock on the sequence at k-1, and not any more at k. Then its ids are beyond the M that was read before it was first seen;
//   - or came after the locks were read at k-1. Then its ids are beyond the M that was read before them;
//   - or holds its lock still, or came after k. It is seen at k+1, and found at k+2.
//
// So a transaction that is open costs nothing, however many rows it has inserted.
func (w *Watermarks) advanceSweep(r CountRange, c Count) {
	from := min(w.sweptM, r.LateUpTo)
	if c.Late > 0 { // some are left until a sweep finds none
		from = min(from, r.LateAfter)
	}
	holders := make(map[string]int64, len(c.LockHolders))
	for _, h := range c.LockHolders {
		since, seen := w.sweptHolders[h]
		switch {
		case seen:
		case strings.HasPrefix(h, recoveredPrefix): // it was there before
			since = w.floor
		default:
			since = w.sweptM
		}
		holders[h] = since
	}
	for h, since := range w.sweptHolders {
		if _, still := holders[h]; !still {
			from = min(from, since)
		}
	}
	w.sweepFrom, w.sweptM, w.sweptHolders = from, c.LastValue, holders
}

// recoveredPrefix is that of a prepared transaction in pg_locks once the server has recovered from the crash of a backend. It had
// another name before, under which it seems to have ended.
const recoveredPrefix = "-1/"

func (w *Watermarks) advanceFloor(r CountRange, c Count) {
	for _, h := range c.LockHolders {
		if _, seen := w.sweptHolders[h]; !seen && strings.HasPrefix(h, recoveredPrefix) {
			w.watched, w.decided = w.start, w.start
		}
	}
	// Step 4 for the M decided before this count began.
	if w.decided > w.start && c.Late == 0 {
		w.floor = w.claimed.Advance(max(w.floor, min(w.decided, r.LateUpTo)))
		w.decided = w.start
	}
	// Step 3.
	still := make(map[string]struct{}, len(c.LockHolders))
	for _, h := range c.LockHolders {
		still[h] = struct{}{}
	}
	for h := range w.lockHolders {
		if _, ok := still[h]; !ok {
			delete(w.lockHolders, h)
		}
	}
	if w.watched > w.start && len(w.lockHolders) == 0 {
		w.decided, w.watched = max(w.decided, w.watched), w.start
	}
	// Steps 1 and 2: this count read M and, in a later statement of the same round trip, the holders.
	if w.watched == w.start {
		w.watched, w.lockHolders = c.LastValue, still
	}
}

// FloorToStore returns the floor, and the numbering of its ids, if it is time to write them to the database.
func (w *Watermarks) FloorToStore(now time.Time) (floor int64, numbering string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.floor == w.stored || now.Sub(w.storedAt) < storeInterval {
		return 0, "", false
	}
	w.stored, w.storedAt = w.floor, now
	return w.floor, w.numbering, true
}

// LastFloor returns the floor, and the numbering of its ids, if it was not written since it moved.
func (w *Watermarks) LastFloor() (floor int64, numbering string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.floor, w.numbering, w.floor != w.stored
}

// Stored is the floor that an earlier process stored.
type Stored struct {
	Floor int64 // 0: none
	// Start is where ids begin: see Beginning.
	Start int64
	// Numbering is that of the ids when it was stored; Now is what the sequence is now.
	Numbering string
	Now       Sequence
}

// StartAt sets cursor and floor to a stored floor, or to the beginning if that is about ids of another numbering.
func (w *Watermarks) StartAt(s Stored) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginAt(s.Start)
	w.stored, w.numbering = w.start, s.Now.Numbering
	if s.Floor == 0 {
		return
	}
	w.cursor, w.floor, w.stored = s.Floor, s.Floor, s.Floor
	if s.Numbering != s.Now.Numbering || s.Now.LastValue < s.Floor {
		w.startAgain(0)
	}
}

// DueAfter returns where the live batches begin on the ledger's time line.
func (w *Watermarks) DueAfter() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.due.After()
}

// Span returns where unclaimed events can be: beyond floor, up to lastValue.
func (w *Watermarks) Span() (floor, lastValue int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.floor, w.lastValue
}

// UnclaimedAfter returns the id beyond which all unclaimed events are that this process knows of: the floor, or, if rows become events after their insert
// (conditional), the first of those that the last full sweep saw; everything until there was one.
func (w *Watermarks) UnclaimedAfter(conditional bool) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !conditional:
		return w.floor
	case !w.swept:
		return w.start
	case w.lateCount > 0:
		return min(w.lateFrom, w.floor)
	}
	return w.floor
}
