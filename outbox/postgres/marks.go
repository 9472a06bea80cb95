package postgres

import (
	"math"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// How often the sweeps look.
const (
	sweepEvery     = time.Second     // for late commits, between floor and cursor
	sweepAtMost    = 3 * time.Second // even when a look takes long
	fullSweepEvery = 5 * time.Minute // everywhere: ids given by hand, sequences with CACHE
	fullSweepLater = time.Minute     // how long it is put off while a backlog waits
	floorMargin    = time.Minute     // ledger rows due before this are old ones, seen already
)

// Claims look for late commits by themselves (see soonLate) as often as lateEvery, where
// the last brought no more than few events, within lateSpan ids.
const (
	lateEvery = 10 * time.Millisecond
	lateSpan  = 5000
	few       = 100
)

// marks are this process' knowledge of the id line of its buffer and of the
// time line of its ledger. They only save work: whatever they hide is found by
// a sweep, and nothing is deleted or skipped for good because of them.
//
// The floor moves in four steps, each seen by a later statement than the one
// before, so that no commit can slip in between:
//
//  1. the sequence's last value M is read;
//  2. the holders of RowExclusiveLock on the sequence are noted: nextval takes
//     that lock before it draws and keeps it until its transaction is over;
//  3. all of them are gone: everything up to M is committed or never will be;
//  4. a look at (floor, M] finds nothing unclaimed: the floor is M.
type marks struct {
	// inOrder: claims begin at the floor, and leave behind what is not free.
	inOrder bool

	mu sync.Mutex

	cursor, floor int64
	lastValue     int64               // M, as last read
	lastSeen      int64               // M, as the last look read it
	watched       int64               // the M of step 2; 0: none is being watched
	holders       map[string]struct{} // step 2
	decided       int64               // the M of step 3
	sweepNext     time.Time
	fullNext      time.Time
	lateWaits     int   // late events the last sweep saw and no claim has taken yet
	lateFrom      int64 // where that sweep began
	gapAt         int64 // up to there a claim has passed ids by
	few           bool  // events came with the last claim of fresh ones
	lateNext      time.Time
	dueFloor      time.Time
	dueAllNext    time.Time
	storedAt      time.Time
	stored        int64
	runs          runs      // claimed here, beyond the floor
	waitsSince    time.Time // a look everywhere waits until less is waiting
}

// stretch is where a claim looks: (after, upTo]. late: for late commits, not
// for fresh events.
type stretch struct {
	after, upTo int64
	late        bool
}

// stretches are where the next claim looks, one after the other until it finds
// something.
func (m *marks) stretches() []stretch {
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh, late := stretch{after: m.cursor, upTo: math.MaxInt64}, stretch{after: m.floor, upTo: m.runs.before(m.cursor), late: true}
	switch {
	case m.lateWaits > 0:
		return []stretch{{after: m.lateFrom, upTo: m.cursor, late: true}, fresh}
	case m.soonLate(time.Now()):
		return []stretch{late, fresh}
	case late.after < late.upTo:
		return []stretch{fresh, late}
	}
	return []stretch{fresh}
}

// soonLate tells whether to look for late events first although no sweep saw one. Of
// two transactions that overlap the later often commits first; when every claim finds
// something fresh, the other would wait for a sweep. Where much is claimed, or to be
// walked, that is time enough.
func (m *marks) soonLate(now time.Time) bool {
	if m.floor >= m.gapAt || !m.few || m.cursor-m.floor > lateSpan || now.Before(m.lateNext) {
		return false
	}
	m.lateNext = now.Add(lateEvery)
	return true
}

// claimed tells what a claim in such a stretch brought; batch may be nil.
// lastValue is M, read before the claim looked.
func (m *marks) claimed(where stretch, batch *buffer.Lease, lastValue int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := where.after
	if where.late {
		began = where.upTo
	}
	if m.sequenceIs(lastValue, began) {
		return
	}
	defer m.passRuns(batch)
	switch {
	case where.late && batch == nil:
		m.lateWaits = 0
	case where.late:
		m.lateWaits = max(0, m.lateWaits-len(batch.Events))
	case batch != nil:
		// An id beyond M was given by hand; a cursor beyond M would hide what
		// the sequence hands out next.
		m.cursor = max(m.cursor, min(batch.LastID, lastValue))
		m.few = len(batch.Events) <= few
		if batch.FirstID > where.after+1 || batch.LastID-batch.FirstID >= int64(len(batch.Events)) {
			m.gapAt = batch.LastID
		}
	}
}

// passRuns notes what was claimed, batch may be nil, and moves the floor over what
// has no gap.
func (m *marks) passRuns(batch *buffer.Lease) {
	if batch != nil && batch.LastID <= m.cursor {
		m.runs.add(batch)
	}
	m.floor = m.runs.follow(m.floor)
	m.cursor = max(m.cursor, m.floor)
}

// sequenceIs takes an M that was read after the cursor was seen at began. One
// below that means that the sequence was set back (a restore, RESTART IDENTITY):
// look everywhere again. One that is only below the cursor of now is old news.
// void: whatever else was seen since began says nothing any more.
func (m *marks) sequenceIs(lastValue, began int64) (void bool) {
	switch {
	case m.cursor < began: // it was set back meanwhile
		return true
	case lastValue < began:
		m.cursor, m.floor, m.watched, m.decided, m.stored, m.runs = 0, 0, 0, 0, 0, nil
		m.lateWaits, m.gapAt, m.lastValue, m.lastSeen = 0, 0, lastValue, 0
		return true
	}
	m.lastValue = max(m.lastValue, lastValue)
	return false
}

// lookRange is what the next look counts: fresh events beyond cursor, and late
// ones in (lateAfter, lateUpTo], an empty range while no sweep is due.
type lookRange struct {
	cursor              int64
	lateAfter, lateUpTo int64
	sweep               bool // lateAfter is the floor; who holds the sequence is asked too
	limit               int  // counts stop here; 0: events are not looked at
	dueAfter            time.Time
	lastValue           int64 // M, as last read
}

func (m *marks) nextLook(now time.Time, limit int) lookRange {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := lookRange{cursor: m.cursor, lateAfter: m.cursor, lateUpTo: m.cursor, dueAfter: m.dueFloor, limit: limit, lastValue: m.lastValue}
	if limit > 0 && m.floor < m.cursor && (m.inOrder || !now.Before(m.sweepNext)) {
		r.lateAfter, r.lateUpTo, r.sweep = m.floor, m.runs.before(m.cursor), true
	}
	if !now.Before(m.dueAllNext) {
		r.dueAfter = time.Time{}
		m.dueAllNext = now.Add(floorMargin)
	}
	return r
}

// fullSweepDue tells whether to look everywhere, and up to where. While more waits than
// was counted it is put off for a minute: it would walk over all of that.
func (m *marks) fullSweepDue(now time.Time, more bool) (upTo int64, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lateWaits > 0 && !m.inOrder || now.Before(m.fullNext) {
		return 0, false
	}
	if more {
		if m.waitsSince.IsZero() {
			m.waitsSince = now
		}
		if now.Sub(m.waitsSince) < fullSweepLater {
			return 0, false
		}
	}
	m.waitsSince = time.Time{}
	m.fullNext = now.Add(fullSweepEvery)
	if m.inOrder {
		return m.floor, true // what waits beyond is seen anyway
	}
	return m.cursor, true
}

// fullySwept tells what a full sweep found. One that found something is
// repeated at once.
func (m *marks) fullySwept(found int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found > 0 {
		m.lateWaits, m.lateFrom, m.fullNext = found, math.MinInt64, now
	}
}

// looked is what a look saw.
type looked struct {
	fresh, late int
	lastValue   int64
	holders     []string
	now         time.Time // the database's clock
	oldestDue   time.Time // of the live batches; zero: there are none
	took        time.Duration
}

// saw takes a look's answer.
func (m *marks) saw(r lookRange, l looked, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sequenceIs(l.lastValue, r.cursor) { // everything this look knew is void
		return
	}
	if l.fresh == 0 && r.limit > 0 {
		// What is not there yet may still come: then it is a late commit. Those
		// that are open no longer than from one look to the next are spared that.
		m.cursor = max(m.cursor, min(m.lastSeen, l.lastValue))
	}
	m.lastSeen = l.lastValue
	m.dueFloor = l.now.Add(-floorMargin)
	if !l.oldestDue.IsZero() && l.oldestDue.Before(m.dueFloor) {
		m.dueFloor = l.oldestDue.Add(-time.Microsecond)
	}
	if !r.sweep {
		return
	}
	m.lateWaits, m.lateFrom = l.late, r.lateAfter
	m.sweepNext = now.Add(min(max(sweepEvery, 20*l.took), sweepAtMost))
	m.advanceFloor(r, l)
}

func (m *marks) advanceFloor(r lookRange, l looked) {
	// Step 4 for the M decided before this look began.
	if m.decided > 0 && l.late == 0 {
		m.floor = m.runs.follow(max(m.floor, min(m.decided, r.lateUpTo)))
		m.decided = 0
	}
	// Step 3.
	still := make(map[string]struct{}, len(l.holders))
	for _, h := range l.holders {
		still[h] = struct{}{}
	}
	for h := range m.holders {
		if _, ok := still[h]; !ok {
			delete(m.holders, h)
		}
	}
	if m.watched > 0 && len(m.holders) == 0 {
		m.decided, m.watched = max(m.decided, m.watched), 0
	}
	// Steps 1 and 2: this look read M and, in a later statement of the same
	// round trip, the holders.
	if m.watched == 0 {
		m.watched, m.holders = l.lastValue, still
	}
}

// floorToStore returns the floor when it is time to write it down.
func (m *marks) floorToStore(now time.Time) (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.floor == m.stored || now.Sub(m.storedAt) < 10*time.Second {
		return 0, false
	}
	m.stored, m.storedAt = m.floor, now
	return m.floor, true
}

// startAt sets the marks at the floor a former process wrote down.
func (m *marks) startAt(floor int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cursor, m.floor, m.stored = floor, floor, floor
}

func (m *marks) dueAfter() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dueFloor
}

// span is where unclaimed events can be: beyond floor, up to lastValue.
func (m *marks) span() (floor, lastValue int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.floor, m.lastValue
}
