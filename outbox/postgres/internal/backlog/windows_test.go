package backlog

import (
	"math"
	"testing"
	"time"
)

// TestWindows: a sweep goes on where it stopped, and begins again when it was whole.
func TestWindows(t *testing.T) {
	t.Parallel()
	var w windows
	step := func(from, rows int64, found window, failed bool, took time.Duration, whole bool) {
		t.Helper()
		gotFrom, gotRows, free := w.begin(true)
		if !free || gotFrom != from || gotRows != rows {
			t.Errorf("the window begins at %d with %d rows, %v; want %d and %d", gotFrom, gotRows, free, from, rows)
		}
		if _, _, free := w.begin(true); free {
			t.Error("two callers sweep")
		}
		found.asked = rows
		if got := w.end(found, failed, took); got != whole {
			t.Errorf("whole is %v", got)
		}
	}
	full := func(rows, last int64, late int) window { return window{rows: rows, last: last, late: late} }
	step(math.MinInt64, firstWindow, full(firstWindow, 300, 0), false, windowTime*3/4, false)
	step(301, firstWindow, window{}, true, fullSweepTimeout, false)
	step(301, firstWindow/4, full(firstWindow/4, 400, 0), false, time.Millisecond, false)
	step(401, firstWindow/2, full(firstWindow/2, 500, 7), false, 2*windowTime, false)
	step(401, firstWindow/4, full(firstWindow/4, 500, 0), false, windowTime*3/4, false)
	step(501, firstWindow/4, full(3, math.MaxInt64, 0), false, time.Millisecond, true)
	if from, _, _ := w.begin(true); from != math.MinInt64 {
		t.Errorf("the next sweep begins at %d", from)
	}
}
