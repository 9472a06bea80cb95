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
	if !w.NextLook().After.IsZero() {
		t.Errorf("the first look begins at %v", w.NextLook().After)
	}
	w.cursor = 3000
	w.FoundDue(Due{Now: now, Oldest: now.Add(-time.Minute), IDs: []int64{5, 6, 1006, 2007, 2008, 3001}})
	if got, want := w.NextLook().After, now.Add(-time.Minute-delayedMargin-time.Microsecond); !got.Equal(want) {
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
	want := []Range{
		{After: 4, UpTo: 1006, Late: true, Due: true, IDs: []int64{5, 6, 1006}},
		{After: 2006, UpTo: 2008, Late: true, Due: true, IDs: []int64{2007, 2008}},
	}
	if d := cmp.Diff(want, ranges, cmpopts.IgnoreUnexported(Range{})); d != "" {
		t.Errorf("ranges (-want +got):\n%s", d)
	}

	w.FoundDue(Due{Now: now})
	if got, want := w.NextLook().After, now.Add(-delayedMargin); !got.Equal(want) {
		t.Errorf("the look after one that found none begins at %v, want %v", got, want)
	}
	w.FoundDue(Due{Now: now.Add(-time.Hour)})
	if !w.NextLook().After.IsZero() {
		t.Errorf("after the clock was set back a look begins at %v", w.NextLook().After)
	}
}

// TestFoundDue_Blocked: with `order: key`, looks pass events of blocked lanes and remember the lanes.
func TestFoundDue_Blocked(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Microsecond)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	lanes := func(n int) (blocked []Blocked) {
		for i := range n {
			blocked = append(blocked, Blocked{Lane: int32(i), Oldest: ago(time.Hour - time.Duration(i)*time.Second)})
		}
		return blocked
	}
	for name, c := range map[string]struct {
		found Due
		after time.Time
		lanes int
		rows  int
	}{
		"all are read":               {Due{Blocked: lanes(2)}, ago(delayedMargin), 2, lookRows},
		"one is free":                {Due{Blocked: lanes(2), IDs: []int64{1}, Oldest: ago(time.Minute)}, ago(time.Minute + delayedMargin + time.Microsecond), 2, lookRows},
		"some are read":              {Due{Blocked: lanes(2), ReadUpTo: ago(time.Minute)}, ago(time.Minute + time.Microsecond), 2, 2 * lookRows},
		"some are read, just due":    {Due{Blocked: lanes(2), ReadUpTo: now}, ago(delayedMargin), 2, 2 * lookRows},
		"more than are remembered":   {Due{Blocked: lanes(MaxBlocked + 1)}, lanes(MaxBlocked + 1)[MaxBlocked].Oldest.Add(-delayedMargin - time.Microsecond), MaxBlocked, lookRows},
		"the clock was set back":     {Due{Blocked: lanes(2), Now: ago(2 * time.Hour)}, time.Time{}, 0, lookRows},
		"some are read, one is free": {Due{Blocked: lanes(1), IDs: []int64{1}, Oldest: ago(time.Minute), ReadUpTo: ago(time.Second)}, ago(time.Minute + delayedMargin + time.Microsecond), 1, lookRows},
	} {
		w := New(true)
		w.cursor = 10
		w.FoundDue(Due{Now: ago(time.Minute)})
		if c.found.Now.IsZero() {
			c.found.Now = now
		}
		w.FoundDue(c.found)
		if l := w.NextLook(); !l.After.Equal(c.after) || len(l.Blocked) != c.lanes || l.Rows != c.rows {
			t.Errorf("%s: the next look begins at %v with %d lanes and reads %d; want %v, %d, %d", name, l.After, len(l.Blocked), l.Rows, c.after, c.lanes, c.rows)
		}
	}

	w := New(true)
	for range 10 {
		w.FoundDue(Due{Now: now, Blocked: lanes(1), ReadUpTo: now, Counted: true})
	}
	if l := w.NextLook(); l.Rows != maxLookRows {
		t.Errorf("a look reads %d, want %d at most", l.Rows, maxLookRows)
	}
	if !w.LookAgain() || w.LookAgain() {
		t.Error("a claim does not look once after a count that found a blocked lane")
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
	if !ok || first || r.After != 2 || r.UpTo != 4 || len(r.IDs) != 2 {
		t.Errorf("the rest is (%d, %d], %v, %t; their turn again: %t", r.After, r.UpTo, r.IDs, ok, first)
	}
	w.PutBackDue(r)
	if !w.MoreDue() {
		t.Error("a range that was put back is gone")
	}
	w.Claimed(Range{cursor: 100}, nil, Sequence{LastValue: 1, Numbering: "b"})
	if w.MoreDue() || !w.NextLook().After.IsZero() {
		t.Error("ranges of the old ids remain")
	}
}
