package postgres

import (
	"math"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Two claims overlap; the one that read the sequence first ends last. What it read
// is below the cursor by then, which must not send everybody back to the
// beginning, where the dead rows are.
func TestAnOldLastValueDoesNotSetTheCursorBack(t *testing.T) {
	t.Parallel()
	var m marks
	m.startAt(100)
	fresh := stretch{after: 100, upTo: math.MaxInt64}
	m.claimed(fresh, &buffer.Lease{LastID: 190}, 200)
	m.claimed(fresh, &buffer.Lease{LastID: 150}, 160)
	if m.cursor != 190 || m.floor != 100 {
		t.Errorf("cursor %d, floor %d; want 190, 100", m.cursor, m.floor)
	}
}

func TestASequenceThatWasSetBackDoes(t *testing.T) {
	t.Parallel()
	var m marks
	m.startAt(100)
	r := lookRange{cursor: 100, lateAfter: 100, sweep: true, limit: 10}
	m.claimed(stretch{after: 100, upTo: math.MaxInt64}, nil, 7)
	if m.cursor != 0 || m.floor != 0 {
		t.Errorf("cursor %d, floor %d; want 0, 0", m.cursor, m.floor)
	}
	// A look that began before, and read the sequence before.
	m.saw(r, looked{lastValue: 100}, r.dueAfter)
	if m.cursor != 0 || m.watched != 0 {
		t.Errorf("cursor %d, watched %d; want 0, 0", m.cursor, m.watched)
	}
}

// The floor passes no id whose transaction may still commit: it waits for those
// that held the sequence when its last value was read, and for a look after they
// were gone.
func TestTheFloorWaitsForWhoeverHoldsTheSequence(t *testing.T) {
	t.Parallel()
	var (
		m   marks
		now = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	)
	look := func(wantFloor int64, late int, holders ...string) {
		t.Helper()
		now = now.Add(sweepAtMost)
		m.saw(m.nextLook(now, 1000), looked{lastValue: 100, holders: holders, late: late, now: now}, now)
		if m.floor != wantFloor {
			t.Errorf("floor %d, want %d", m.floor, wantFloor)
		}
	}
	m.claimed(stretch{upTo: math.MaxInt64}, &buffer.Lease{LastID: 90}, 100)
	for range 5 {
		look(0, 0, "early", "fast")
	}
	look(0, 0, "early", "new")
	look(0, 0, "early")
	look(0, 0, "newer") // early is gone: what it inserted is there to be seen now
	look(0, 7)          // and is seen
	look(0, 7)          // still not claimed
	look(100, 0)
}

// Claims find something fresh all the time, and one of them passed an id by: it is
// looked for before a sweep is due, now and then, and where there is little to walk.
func TestALateCommitDoesNotWaitForASweep(t *testing.T) {
	t.Parallel()
	lateFirst := func(m *marks) bool {
		all := m.stretches()
		return len(all) == 2 && all[0].late
	}
	claim := func(m *marks, first, last int64, events int) {
		where := stretch{after: m.cursor, upTo: math.MaxInt64}
		m.claimed(where, &buffer.Lease{FirstID: first, LastID: last, Batch: buffer.Batch{Events: make([]outbox.Event, events)}}, last)
	}
	for name, c := range map[string]struct {
		first, last int64
		events      int
		want        bool
	}{
		"nothing was passed by":       {101, 103, 3, false},
		"an id before the batch was":  {102, 104, 3, true},
		"an id within the batch was":  {101, 104, 3, true},
		"much is claimed":             {102, 1101, 1000, false},
		"there is much to walk":       {6000, 6001, 2, false},
		"a batch of one, and no gaps": {101, 101, 1, false},
	} {
		var m marks
		m.startAt(100)
		claim(&m, c.first, c.last, c.events)
		if got := lateFirst(&m); got != c.want {
			t.Errorf("%s: late events are looked for first: %t", name, got)
		}
		if lateFirst(&m) {
			t.Errorf("%s: they are looked for again at once", name)
		}
	}
	var m marks
	m.startAt(100)
	claim(&m, 102, 102, 1)
	m.floor = 102
	if lateFirst(&m) {
		t.Error("they are looked for below the floor")
	}
}
