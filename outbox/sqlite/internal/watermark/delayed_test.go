package watermark

import (
	"fmt"
	"math"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(second int) Entry {
	return Entry{noon.Add(time.Duration(second) * time.Second).Format(timeFormat), math.MaxInt64}
}

func expectFrom(t *testing.T, when string, got, want Entry) {
	t.Helper()
	if got != want {
		t.Errorf("%s, the look begins after %v, want %v", when, got, want)
	}
}

// TestLooked: a round goes on where the last look ended, and the next one begins a little before that one began.
func TestLooked(t *testing.T) {
	t.Parallel()
	c := NewCursor()
	now := noon
	look := func(seconds int) Entry {
		now = now.Add(time.Duration(seconds) * time.Second)
		c.Clock(now)
		return c.NextLook(now, nil)
	}
	expectFrom(t, "at first", look(0), Entry{})
	last := Entry{at(-9).At, 7}
	c.Looked(Look{Now: now, Last: &last})
	expectFrom(t, "after a part", look(1), last)
	first := Entry{at(-3).At, 9}
	c.Looked(Look{Now: now, Due: []int64{9}, First: first})
	expectFrom(t, "after one that found some", look(1), Entry{first.At, 8})
	if some, _ := c.Due(); !some {
		t.Error("nothing is due")
	}
	c.Looked(Look{Now: now})
	expectFrom(t, "after a round", look(1), at(-5))
	c.Looked(Look{Now: now})
	expectFrom(t, "after another round", look(1), at(3-5))
	c.Looked(Look{Now: now})
	expectFrom(t, "after the clock was set back", look(-60), at(4-60-5))
	c.Swept()
	expectFrom(t, "after a sweep", look(1), Entry{})
}

// TestLooked_Blocked: what waits for a lane is passed, and looked at again when the lane is free.
func TestLooked_Blocked(t *testing.T) {
	t.Parallel()
	c := NewCursor()
	held := map[uint32]bool{1: true, 2: true}
	isHeld := func(lane uint32) bool { return held[lane] }
	c.NextLook(noon, isHeld)
	if n := c.Looked(Look{Now: noon, Counted: true, Blocked: map[uint32]Entry{1: {at(-60).At, 5}, 2: {at(-30).At, 6}}}); n != 2 {
		t.Errorf("%d lanes are blocked", n)
	}
	if !c.LookAgain() || c.LookAgain() {
		t.Error("a claim does not look once")
	}
	expectFrom(t, "while both are held", c.NextLook(noon, isHeld), at(-5))
	c.Looked(Look{Now: noon})
	expectFrom(t, "for a status", c.DelayedFrom(), Entry{at(-60).At, 4})
	held[2] = false
	expectFrom(t, "when one is free", c.NextLook(noon, isHeld), Entry{at(-30).At, 5})
	if n := c.Looked(Look{Now: noon}); n != 1 {
		t.Errorf("%d lanes are blocked, want the one that is held", n)
	}
}

func TestDueParts(t *testing.T) {
	t.Parallel()
	for want, ids := range map[string][]int64{
		"[]":                  nil,
		"[[1 2 1002] [2003]]": {2003, 2, 1, 1002},
		"[[-5 5]]":            {5, -5},
		fmt.Sprint([][]int64{{0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000}, {10001}}): {0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 10001},
	} {
		if got := fmt.Sprint(dueParts(ids)); got != want {
			t.Errorf("parts %s, want %s", got, want)
		}
	}
}

// TestTakeDue: a claim takes a part of what a look has found, in turns with others.
func TestTakeDue(t *testing.T) {
	t.Parallel()
	c := NewCursor()
	c.NextLook(noon, nil)
	c.Looked(Look{Now: noon, Due: []int64{1, 2, 3, 9000}, First: Entry{at(-1).At, 1}, Last: &Entry{at(0).At, 9000}})
	turns := map[bool]bool{}
	for range 2 {
		_, first := c.Due()
		turns[first] = true
	}
	if len(turns) != 2 {
		t.Errorf("delayed events come first: %v", turns)
	}
	for _, want := range []string{"[1 2] false", "[3] false", "[9000] false", "[] true"} {
		ids, looks := c.TakeDue(2)
		if got := fmt.Sprint(ids, looks); got != want {
			t.Errorf("took %s, want %s", got, want)
		}
	}
}
