package watermark

import (
	"math"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Two claims overlap, and the one that read the sequence first ends last. Its last value is
// below the cursor by then. Later claims must not start at the beginning again.
func TestClaimed_OldLastValue(t *testing.T) {
	t.Parallel()
	m := New(false)
	m.StartAt(Stored{Floor: 100, Now: Sequence{LastValue: 100}})
	fresh := Range{After: 100, UpTo: math.MaxInt64, cursor: 100}
	m.Claimed(fresh, &buffer.Lease{LastID: 190}, Sequence{LastValue: 200})
	m.Claimed(fresh, &buffer.Lease{LastID: 150}, Sequence{LastValue: 160})
	if m.cursor != 190 || m.floor != 100 {
		t.Errorf("cursor %d, floor %d; want 190, 100", m.cursor, m.floor)
	}
}

func TestClaimed_SequenceSetBack(t *testing.T) {
	t.Parallel()
	m := New(false)
	m.StartAt(Stored{Floor: 100, Now: Sequence{LastValue: 100}})
	r := CountRange{Cursor: 100, LateAfter: 100, Sweep: true, limit: 10}
	m.Claimed(Range{After: 100, UpTo: math.MaxInt64, cursor: 100}, nil, Sequence{LastValue: 7})
	if m.cursor != 0 || m.floor != 0 {
		t.Errorf("cursor %d, floor %d; want 0, 0", m.cursor, m.floor)
	}
	// A count that began before, and read the sequence before.
	m.Counted(r, Count{Sequence: Sequence{LastValue: 100}}, r.DueAfter)
	if m.cursor != 0 || m.watched != 0 {
		t.Errorf("cursor %d, watched %d; want 0, 0", m.cursor, m.watched)
	}
}

// The floor passes no id whose transaction may still commit: it waits for the transactions
// that held the sequence when its last value was read, and for a count after they are gone.
func TestFloor_WaitsForHolders(t *testing.T) {
	t.Parallel()
	var (
		m   = New(false)
		now = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	)
	count := func(wantFloor int64, late int, holders ...string) {
		t.Helper()
		now = now.Add(maxSweepInterval)
		m.Counted(m.NextCount(now, 1000), Count{Sequence: Sequence{LastValue: 100}, LockHolders: holders, Late: late, Now: now}, now)
		if m.floor != wantFloor {
			t.Errorf("floor %d, want %d", m.floor, wantFloor)
		}
	}
	m.Claimed(Range{UpTo: math.MaxInt64}, &buffer.Lease{LastID: 90}, Sequence{LastValue: 100})
	for range 5 {
		count(0, 0, "early", "fast")
	}
	count(0, 0, "early", "new")
	count(0, 0, "early")
	count(0, 0, "newer") // early is gone: what it inserted is visible now
	count(0, 7)          // and is counted
	count(0, 7)          // still not claimed
	count(100, 0)
}

// While every claim finds fresh events, a claim after one that left a gap scans it too, before a sweep is due, if
// there are few ids to scan.
func TestRanges_LateBeforeSweep(t *testing.T) {
	t.Parallel()
	lateFirst := func(m *Watermarks) bool {
		all := m.Ranges()
		return all[0].Late && all[0].After == m.floor && all[0].UpTo == math.MaxInt64
	}
	claim := func(m *Watermarks, first, last int64, events int) {
		where := Range{After: m.cursor, UpTo: math.MaxInt64, cursor: m.cursor}
		m.Claimed(where, &buffer.Lease{FirstID: first, LastID: last, Batch: buffer.Batch{Events: make([]outbox.Event, events)}}, Sequence{LastValue: last})
	}
	for name, c := range map[string]struct {
		first, last int64
		events      int
		want        bool
	}{
		"no gap":                       {101, 103, 3, false},
		"a gap before the batch":       {102, 104, 3, true},
		"a gap within the batch":       {101, 104, 3, true},
		"a large claim":                {102, 1101, 1000, true},
		"many ids to scan":             {6000, 6001, 2, false},
		"a batch of one without a gap": {101, 101, 1, false},
	} {
		m := New(false)
		m.StartAt(Stored{Floor: 100, Now: Sequence{LastValue: 100}})
		claim(m, c.first, c.last, c.events)
		if got := lateFirst(m); got != c.want {
			t.Errorf("%s: late range first: %t", name, got)
		}
	}
	m := New(false)
	m.StartAt(Stored{Floor: 100, Now: Sequence{LastValue: 100}})
	claim(m, 102, 102, 1)
	m.floor = 102
	if lateFirst(m) {
		t.Error("late range first below the floor")
	}
}

// A live batch may hold ids that are used again, and the floor passes their new events meanwhile: the sweep over all keys
// runs more often for a while.
func TestFullSweep_ReusedIDs(t *testing.T) {
	t.Parallel()
	m, now := New(false), time.Now()
	m.StartAt(Stored{Floor: 100, Numbering: "before", Now: Sequence{LastValue: 100, Numbering: "before"}})
	sweep := func(want bool) {
		t.Helper()
		now = now.Add(blockInterval)
		_, due, orphans := m.FullSweepDue(now, false)
		if due != want || orphans {
			t.Errorf("due %t, with orphans %t; want %t, false", due, orphans, want)
		}
		m.FullySwept(0, math.MinInt64, true, time.Millisecond, now)
	}
	m.FullSweepDue(now, false) // the first one
	sweep(false)
	m.Claimed(Range{After: 100, UpTo: math.MaxInt64, cursor: 100}, nil, Sequence{LastValue: 200, Numbering: "after"})
	sweep(true)
	sweep(true)
	m.fullSweepNext = now.Add(2 * FullSweepInterval)
	now = now.Add(FullSweepInterval + time.Minute)
	sweep(false)
}

// TestStartAt: a stored floor counts for the ids that it is about only.
func TestStartAt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		now    Sequence
		floor  int64
		reused bool
	}{
		"the same":          {Sequence{120, "a"}, 100, false},
		"another numbering": {Sequence{120, "b"}, 0, true},
		"set back":          {Sequence{99, "a"}, 0, true},
	} {
		m, now := New(false), time.Now()
		m.StartAt(Stored{Floor: 100, Numbering: "a", Now: c.now})
		if floor, _ := m.Span(); floor != c.floor || m.cursor != c.floor {
			t.Errorf("%s: floor %d, cursor %d; want %d", name, floor, m.cursor, c.floor)
		}
		m.FullSweepDue(now, false) // the first one
		if _, due, _ := m.FullSweepDue(now.Add(blockInterval), false); due != c.reused {
			t.Errorf("%s: swept often: %t, want %t", name, due, c.reused)
		}
		if m.Claimed(Range{After: c.floor, cursor: c.floor}, nil, c.now) {
			t.Errorf("%s: the first claim begins again", name)
		}
	}
}

// TestFullSweep_ByAnother: a sweep of another process counts, unless this one has found something since.
func TestFullSweep_ByAnother(t *testing.T) {
	t.Parallel()
	w, now, clock := New(false), time.Now(), time.Now().Add(time.Hour) // the database's clock is another
	counted := func(age time.Duration) {
		t.Helper()
		w.Counted(w.NextCount(now, 10), Count{Now: clock, SweptAt: clock.Add(-age)}, now)
	}
	sweep := func(what string, want bool) {
		t.Helper()
		if _, due, _ := w.FullSweepDue(now, false); due != want {
			t.Errorf("%s: due %t, want %t", what, due, want)
		}
	}
	counted(time.Minute)
	sweep("a minute after another's", false)
	now = now.Add(FullSweepInterval - time.Minute)
	sweep("five minutes after another's", true)
	w.FullySwept(3, math.MinInt64, true, time.Second, now)
	w.Claimed(Range{After: 5, UpTo: 5, Late: true}, nil, Sequence{}) // the three are claimed
	counted(0)
	sweep("after one that found some", true)
	w.FullySwept(0, math.MinInt64, true, time.Second, now)
	counted(0)
	now = now.Add(time.Minute)
	counted(-time.Hour) // a clock that was set back
	sweep("after one in the future", false)
	now = now.Add(FullSweepInterval)
	sweep("five minutes after it", true)
}

// TestCounted_LowerMinValue: claims in order begin where an altered sequence begins, before a sweep has found anything there.
func TestCounted_LowerMinValue(t *testing.T) {
	t.Parallel()
	w, now := New(true), time.Now()
	w.StartAt(Stored{Floor: 100, Now: Sequence{LastValue: 100}})
	count := func() (void bool) {
		return w.Counted(w.NextCount(now, 10), Count{Sequence: Sequence{LastValue: 120}, Start: Beginning(-3)}, now)
	}
	if !count() || w.OrderedFrom() != -4 || count() {
		t.Errorf("claims begin at %d, want -4", w.OrderedFrom())
	}
}

func TestBeginning(t *testing.T) {
	t.Parallel()
	for minValue, want := range map[int64]int64{1: 0, 0: -1, 1000: 0, -3: -4, math.MinInt64: math.MinInt64} {
		if got := Beginning(minValue); got != want {
			t.Errorf("Beginning(%d) = %d, want %d", minValue, got, want)
		}
	}
}

// TestFullSweep_Windows: a full sweep that is not whole goes on soon, and claims look only where its window found something.
func TestFullSweep_Windows(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := New(false)
	due := func() bool {
		_, due, orphans := w.FullSweepDue(now, false)
		return due && orphans
	}
	if !due() {
		t.Fatal("the first one is not due")
	}
	w.FullySwept(0, math.MinInt64, false, time.Second, now)
	if due() {
		t.Error("the next window is due at once")
	}
	now = now.Add(windowRest * time.Second)
	if !due() {
		t.Error("the next window is not due after a rest")
	}
	w.FullySwept(2, 500, false, time.Second, now)
	if ranges := w.Ranges(); ranges[0].After != 499 || !ranges[0].Late {
		t.Errorf("claims begin at %+v, want 499", ranges[0])
	}
}
