package backlog

import (
	"math"
	"sync"
	"time"
)

// windows is how far a sweep has come. It is safe for concurrent use; one caller sweeps at a time.
type windows struct {
	mu      sync.Mutex
	active  bool
	started bool  // a sweep stopped at from
	from    int64 // where the next window begins
	rows    int64 // of the next window
}

const (
	firstWindow = 200_000 // rows
	minWindow   = 1000
	maxWindow   = 5_000_000
	// windowTime is what a window should take: short enough to fit into fullSweepTimeout on a slow day.
	windowTime = fullSweepTimeout / 4
)

// begin returns where a window begins and how many rows it has; all rows if the table has no windows. free is false if another
// caller sweeps.
func (w *windows) begin(divided bool) (from, rows int64, free bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active {
		return 0, 0, false
	}
	w.active = true
	if !divided {
		return math.MinInt64, math.MaxInt64, true
	}
	if w.rows == 0 {
		w.rows = firstWindow
	}
	if !w.started {
		w.from = math.MinInt64
	}
	return w.from, w.rows, true
}

// end notes what begin's caller found. whole: that was the last window, and the next one begins at the start. A window with
// unclaimed events is scanned again.
func (w *windows) end(found window, failed bool, took time.Duration) (whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.active = false
	switch {
	case failed:
		w.rows = max(w.rows/4, minWindow)
		return false
	case found.rows < found.asked:
		w.started = false
		return true
	case found.late == 0:
		w.from, w.started = found.last+1, true
	}
	if took < windowTime/2 {
		w.rows = min(2*w.rows, maxWindow)
	} else if took > windowTime {
		w.rows = max(w.rows/2, minWindow)
	}
	return false
}
