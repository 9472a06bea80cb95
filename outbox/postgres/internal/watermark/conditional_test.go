package watermark

import (
	"math"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestFullSweep_Conditional: rows that may become events at any time are swept for every two seconds, with a rest after a slow sweep. A claim of late
// ones begins where the last one ended.
func TestFullSweep_Conditional(t *testing.T) {
	t.Parallel()
	w, now := New(false), time.Now()
	w.StartAt(Stored{Floor: 100, Now: Sequence{LastValue: 100}})
	if after := w.UnclaimedAfter(true); after != 0 {
		t.Errorf("before the first sweep events are looked for after %d, want 0", after)
	}
	due := func(after time.Duration, want bool) {
		t.Helper()
		if _, due, _ := w.FullSweepDue(now.Add(after), false); due != want {
			t.Errorf("due %v after a sweep: %t, want %t", after, due, want)
		}
	}
	due(0, true)
	w.FullySwept(0, math.MinInt64, true, time.Millisecond, now)
	due(blockInterval, false)
	w.Counted(w.NextCount(now, 10), Count{Sequence: Sequence{LastValue: 100}, Conditional: true}, now)
	due(blockInterval-time.Millisecond, false)
	due(blockInterval, true)
	w.FullySwept(0, math.MinInt64, true, time.Second, now)
	due(blockRest*time.Second-time.Millisecond, false)
	due(blockRest*time.Second, true)
	if after := w.UnclaimedAfter(true); after != 100 {
		t.Errorf("after a sweep without events they are looked for after %d, want 100", after)
	}

	w.FullySwept(3, 41, true, time.Second, now)
	if after := w.UnclaimedAfter(true); after != 40 {
		t.Errorf("after a sweep that saw event 41 they are looked for after %d, want 40", after)
	}
	w.Claimed(Range{After: 40, UpTo: 100, Late: true, cursor: 100}, &buffer.Lease{LastID: 60}, Sequence{LastValue: 100})
	if w.lateFrom != 60 {
		t.Errorf("the next claim of late events begins after %d, want 60", w.lateFrom)
	}
	if after := w.UnclaimedAfter(false); after != 100 {
		t.Errorf("without a condition events are looked for after %d, want 100", after)
	}
}
