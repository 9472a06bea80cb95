package watermark

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestFoundDue: what a look has found is divided into ranges, and the next look begins where this one found anything.
func TestFoundDue(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Microsecond)
	w := New(false)
	if !w.DelayedAfter().IsZero() {
		t.Errorf("the first look begins at %v", w.DelayedAfter())
	}
	w.cursor = 3000
	w.FoundDue(Due{Now: now, Oldest: now.Add(-time.Minute), IDs: []int64{5, 6, 1006, 2007, 2008, 3001}})
	if got, want := w.DelayedAfter(), now.Add(-time.Minute-delayedMargin-time.Microsecond); !got.Equal(want) {
		t.Errorf("the look after one that found some begins at %v, want %v", got, want)
	}
	var ranges []Range
	for {
		r, ok, _, more := w.TakeDue()
		if !ok {
			if more {
				t.Error("a look that was not limited left some")
			}
			break
		}
		ranges = append(ranges, r)
	}
	want := []Range{{After: 4, UpTo: 1006, Late: true, Due: true}, {After: 2006, UpTo: 2008, Late: true, Due: true}}
	if d := cmp.Diff(want, ranges, cmpopts.IgnoreUnexported(Range{})); d != "" {
		t.Errorf("ranges (-want +got):\n%s", d)
	}

	w.FoundDue(Due{Now: now})
	if got, want := w.DelayedAfter(), now.Add(-delayedMargin); !got.Equal(want) {
		t.Errorf("the look after one that found none begins at %v, want %v", got, want)
	}
	w.FoundDue(Due{Now: now.Add(-time.Hour)})
	if !w.DelayedAfter().IsZero() {
		t.Errorf("after the clock was set back a look begins at %v", w.DelayedAfter())
	}
}

// TestDueRanges_Bounded: no range is wider than dueSpan, and the least id has a range.
func TestDueRanges_Bounded(t *testing.T) {
	t.Parallel()
	ids := []int64{math.MinInt64, 1}
	for id := int64(1); id < 50*dueGap; id += dueGap {
		ids = append(ids, id+1)
	}
	covered := 0
	for _, r := range dueRanges(ids) {
		if r.UpTo-r.After > dueSpan && r.After != math.MinInt64 {
			t.Errorf("(%d, %d] is too wide", r.After, r.UpTo)
		}
		for _, id := range ids {
			if id > r.After && id <= r.UpTo {
				covered++
			}
		}
	}
	if covered != len(ids)-1 { // beyond the least id there is no range that has it
		t.Errorf("%d of %d ids are in a range", covered, len(ids))
	}
}

// TestClaimedDue: a claim that takes a part of a range leaves the rest for the next one, and numbering from anew forgets all.
func TestClaimedDue(t *testing.T) {
	t.Parallel()
	w := New(false)
	seen := Sequence{LastValue: 100, Numbering: "a"}
	w.Claimed(Range{}, nil, seen)
	w.cursor = 100
	w.FoundDue(Due{Now: time.Now(), Oldest: time.Now(), IDs: []int64{1, 2, 3, 4}, Limited: true})
	r, _, first, _ := w.TakeDue()
	if !first {
		t.Error("it is not the turn of due events")
	}
	w.Claimed(r, &buffer.Lease{FirstID: 1, LastID: 2}, seen)
	r, ok, first, _ := w.TakeDue()
	if !ok || first || r.After != 2 || r.UpTo != 4 {
		t.Errorf("the rest is (%d, %d], %t; their turn again: %t", r.After, r.UpTo, ok, first)
	}
	w.PutBackDue(r)
	if !w.MoreDue() {
		t.Error("a range that was put back is gone")
	}
	w.Claimed(Range{cursor: 100}, nil, Sequence{LastValue: 1, Numbering: "b"})
	if w.MoreDue() || !w.DelayedAfter().IsZero() {
		t.Error("ranges of the old ids remain")
	}
}
