package idset_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/internal/idset"
)

func draw(t *rapid.T, what string) []int64 {
	return rapid.SliceOfDistinct(rapid.Int64Range(-20, 60), func(id int64) int64 { return id }).Draw(t, what)
}

func TestSet_JSON(t *testing.T) {
	t.Parallel()
	t.Run("RoundTrip", rapid.MakeCheck(func(t *rapid.T) {
		ids := draw(t, "ids")
		text := idset.Of(ids).JSON()
		slices.Sort(ids)
		s, err := idset.ParseJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !slices.Equal(s.IDs(), ids) {
			t.Fatalf("%v became %s and then %v", ids, text, s.IDs())
		}
	}))
	for _, text := range []string{"", "{}", "[1]", "[[2,1]]", "[[1,2],[2,3]]", "[[3,4],[1,2]]", "[[1,100000000]]", "[[1,1.5]]"} {
		t.Run("Rejects "+text, func(t *testing.T) {
			t.Parallel()
			if s, err := idset.ParseJSON(text); err == nil {
				t.Errorf("got %v; expected an error", s)
			}
		})
	}
}

func TestSet_Intersect(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids, some := draw(t, "ids"), draw(t, "some")
		slices.Sort(ids)
		var both []int64
		for _, id := range ids {
			if slices.Contains(some, id) {
				both = append(both, id)
			}
		}
		if got := idset.Of(ids).Intersect(some).IDs(); !slices.Equal(got, both) {
			t.Fatalf("%v and %v have %v in common; expected %v", some, ids, got, both)
		}
	})
}

// TestSets: unions, overlaps and differences are those of the ids one by one.
func TestSets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			sets  []idset.Set
			times = map[int64]int{}
			all   = draw(t, "ids")
		)
		for range rapid.IntRange(0, 4).Draw(t, "sets") {
			ids := draw(t, "set")
			for _, id := range ids {
				times[id]++
			}
			sets = append(sets, idset.Of(ids))
		}
		var union, overlap, rest []int64
		for id := int64(-20); id <= 60; id++ {
			if times[id] > 0 {
				union = append(union, id)
			}
			if times[id] > 1 {
				overlap = append(overlap, id)
			}
		}
		for _, id := range all {
			if times[id] == 0 {
				rest = append(rest, id)
			}
		}
		if got := idset.Union(sets...); !slices.Equal(got.IDs(), union) || got.Len() != int64(len(union)) {
			t.Fatalf("the union of %v is %v; expected %v", sets, got, union)
		}
		if got := idset.Overlap(sets...).IDs(); !slices.Equal(got, overlap) {
			t.Fatalf("%v are in several of %v; expected %v", got, sets, overlap)
		}
		if got := idset.Without(all, sets...); !slices.Equal(got, rest) {
			t.Fatalf("%v without %v is %v; expected %v", all, sets, got, rest)
		}
	})
}

func TestSet_IDs_HighestID(t *testing.T) {
	t.Parallel()
	got := idset.Set{{1, 2}, {math.MaxInt64 - 1, math.MaxInt64}}.IDs()
	want := []int64{1, 2, math.MaxInt64 - 1, math.MaxInt64}
	if !slices.Equal(got, want) {
		t.Errorf("got %v; expected %v", got, want)
	}
}

func TestSet_Multirange(t *testing.T) {
	t.Parallel()
	for want, ids := range map[string][]int64{
		"{}":                              nil,
		"{[1,3],[5,5]}":                   {1, 2, 3, 5},
		"{[-1,0],[9223372036854775806,)}": {-1, 0, math.MaxInt64 - 1, math.MaxInt64},
		"{[7,7],[9223372036854775807,)}":  {7, math.MaxInt64},
		"{[-9223372036854775808,-9223372036854775808]}": {math.MinInt64},
	} {
		if got := idset.Of(ids).Multirange(); got != want {
			t.Errorf("%v became %s; expected %s", ids, got, want)
		}
	}
}

func TestGaps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, two := draw(t, "one"), draw(t, "two")
		slices.Sort(one)
		slices.Sort(two)
		after := rapid.Int64Range(-30, 70).Draw(t, "after")
		gaps := idset.Gaps(after, idset.Of(one), idset.Of(two))
		for id := int64(-40); id < 100; id++ {
			want := id > after && !slices.Contains(one, id) && !slices.Contains(two, id)
			if got := len(gaps.Intersect([]int64{id})) > 0; got != want {
				t.Fatalf("id %d is in the gaps %v: %t; expected %t", id, gaps, got, want)
			}
		}
	})
	if gaps := idset.Gaps(0, idset.Set{{1, math.MaxInt64}}); len(gaps) != 0 {
		t.Errorf("got %v; expected none", gaps)
	}
}

func TestSet_AddAndAdvance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s idset.Set
		have := map[int64]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "ranges") {
			first := rapid.Int64Range(1, 50).Draw(t, "first")
			r := idset.Range{First: first, Last: first + rapid.Int64Range(0, 5).Draw(t, "size")}
			overlaps := false
			for id := r.First; id <= r.Last; id++ {
				overlaps = overlaps || have[id]
			}
			s.Add(r)
			for id := r.First; id <= r.Last && !overlaps; id++ {
				have[id] = true
			}
		}
		var ids []int64
		for id := range int64(60) {
			if have[id] {
				ids = append(ids, id)
			}
		}
		if !slices.Equal(s, idset.Of(ids)) {
			t.Fatalf("got %v; expected %v", s, idset.Of(ids))
		}
		floor := rapid.Int64Range(0, 60).Draw(t, "floor")
		want := floor
		for have[want+1] {
			want++
		}
		if got := s.Advance(floor); got != want {
			t.Fatalf("floor %d advanced to %d; expected %d", floor, got, want)
		}
		if len(s) > 0 && s[0].First <= want+1 {
			t.Fatalf("%v is left behind floor %d", s, want)
		}
		if n := len(s); n > 0 && (s.Before(s[n-1].Last) != s[n-1].First-1 || s.Before(99) != 99) {
			t.Fatalf("Before is wrong for %v", s)
		}
	})
}

func TestJSONIDs(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]int64{{}, {1}, {-3, 7, math.MaxInt64}} {
		var got []int64
		if err := json.Unmarshal([]byte(idset.JSONIDs(ids)), &got); err != nil || !slices.Equal(got, ids) {
			t.Errorf("got %v, %v; expected %v", got, err, ids)
		}
	}
}
