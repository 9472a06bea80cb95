package sqlite

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRuns: ids are the same after they were written down and read, and what is chosen
// among them is what is in both.
func TestRuns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string) []int64 {
			ids := rapid.SliceOfDistinct(rapid.Int64Range(-20, 60), func(id int64) int64 { return id }).Draw(t, what)
			return ids
		}
		ids, some := draw("ids"), draw("some")
		slices.Sort(ids)
		text, err := runsOf(ids).text()
		if err != nil {
			t.Fatal(err)
		}
		r, err := parseRuns(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !slices.Equal(r.ids(), ids) {
			t.Fatalf("%v were written down as %s and read as %v", ids, text, r.ids())
		}
		var both []int64
		for _, id := range ids {
			if slices.Contains(some, id) {
				both = append(both, id)
			}
		}
		if got := r.among(some).ids(); !slices.Equal(got, both) {
			t.Fatalf("of %v among %v are %v, want %v", some, ids, got, both)
		}
	})
}

// TestChoose: a claim takes a full batch where the window has one, and the cursor
// passes nothing that was left.
func TestChoose(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(t, "limit")
		window := rapid.SliceOfNDistinct(rapid.Int64Range(1, 100), 1, windowOf*limit, func(id int64) int64 { return id }).Draw(t, "window")
		slices.Sort(window)
		chosen, left := choose(window, limit, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "batch") })
		if len(chosen) != min(limit, len(window)) {
			t.Fatalf("of %v %v were chosen, want %d", window, chosen, limit)
		}
		first := int64(0)
		for _, id := range window {
			if !slices.Contains(chosen, id) {
				first = id
				break
			}
		}
		if left != first {
			t.Fatalf("of %v %v were chosen: the first that is left is %d, want %d", window, chosen, left, first)
		}
	})
}

// The highest id there is ends the list, and not the memory.
func TestRunsUpToTheHighestID(t *testing.T) {
	t.Parallel()
	got := runs{{1, 2}, {math.MaxInt64 - 1, math.MaxInt64}}.ids()
	want := []int64{1, 2, math.MaxInt64 - 1, math.MaxInt64}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
