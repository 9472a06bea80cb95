// Package idset holds sets of event ids, as a ledger row names the events of a batch that was
// claimed by range, and the texts in which PostgreSQL and SQLite keep them.
package idset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Range is the ids from First to Last, both included.
type Range struct{ First, Last int64 }

// Set is a set of ids: ranges in ascending order that neither overlap nor touch. Ids have gaps
// only where events were deleted or ids chosen by hand, so a batch is mostly one range.
type Set []Range

// MaxSize is the number of ids above which [ParseJSON] rejects a set: no batch is that large.
const MaxSize = 1 << 24

// Of returns the set of ids, which must be distinct and may be in any order.
func Of(ids []int64) Set {
	if !slices.IsSorted(ids) {
		ids = slices.Sorted(slices.Values(ids))
	}
	var s Set
	for _, id := range ids {
		if n := len(s); n > 0 && s[n-1].Last+1 == id {
			s[n-1].Last = id
			continue
		}
		s = append(s, Range{id, id})
	}
	return s
}

// Len returns the number of ids.
func (s Set) Len() (n int64) {
	for _, r := range s {
		n += r.Last - r.First + 1
	}
	return n
}

// IDs returns all ids of the set in ascending order; nil if it is empty.
func (s Set) IDs() []int64 {
	var ids []int64
	for _, r := range s {
		for n := range r.Last - r.First + 1 { // Last may be the highest id there is
			ids = append(ids, r.First+n)
		}
	}
	return ids
}

// Without returns those of the ids that are in none of the sets, in the same order. It is never nil.
func Without(ids []int64, sets ...Set) []int64 {
	rest := make([]int64, 0, len(ids))
	for _, id := range ids {
		if !slices.ContainsFunc(sets, func(s Set) bool { return s.Has(id) }) {
			rest = append(rest, id)
		}
	}
	return rest
}

// Union returns the ids that are in any of the sets.
func Union(sets ...Set) Set {
	all := slices.Concat(sets...)
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var union Set
	for _, r := range all {
		if n := len(union); n > 0 && r.First-1 <= union[n-1].Last {
			union[n-1].Last = max(union[n-1].Last, r.Last)
			continue
		}
		union = append(union, r)
	}
	return union
}

// Overlap returns the ids that are in at least two of the sets.
func Overlap(sets ...Set) Set {
	all := slices.Concat(sets...)
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var (
		twice Set
		upTo  int64
	)
	for i, r := range all {
		if i > 0 && r.First <= upTo {
			over := Range{r.First, min(r.Last, upTo)}
			switch n := len(twice); {
			case n > 0 && over.First <= twice[n-1].Last+1:
				twice[n-1].Last = max(twice[n-1].Last, over.Last)
			default:
				twice = append(twice, over)
			}
		}
		if i == 0 || r.Last > upTo {
			upTo = r.Last
		}
	}
	return twice
}

// Has reports whether the set contains id.
func (s Set) Has(id int64) bool {
	i, _ := slices.BinarySearchFunc(s, id, func(r Range, id int64) int { return cmp.Compare(r.Last, id) })
	return i < len(s) && s[i].First <= id
}

// Intersect returns the ids that are in both; ids may be in any order.
func (s Set) Intersect(ids []int64) Set {
	both := make([]int64, 0, len(ids))
	for _, id := range ids {
		if s.Has(id) {
			both = append(both, id)
		}
	}
	slices.Sort(both)
	return Of(slices.Compact(both))
}

// Gaps returns the ids greater than after that are in none of the sets.
func Gaps(after int64, sets ...Set) Set {
	taken := slices.Concat(sets...)
	slices.SortFunc(taken, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	gaps := make(Set, 0, len(taken)+1)
	for _, r := range taken {
		if after+1 < r.First {
			gaps = append(gaps, Range{after + 1, r.First - 1})
		}
		after = max(after, r.Last)
	}
	if after < math.MaxInt64 {
		gaps = append(gaps, Range{after + 1, math.MaxInt64})
	}
	return gaps
}

// Add puts a range into the set and joins it with its neighbours. A range that overlaps one of
// the set is ignored.
func (s *Set) Add(r Range) {
	i, found := slices.BinarySearchFunc(*s, r.First, func(one Range, id int64) int { return cmp.Compare(one.First, id) })
	if found || i > 0 && (*s)[i-1].Last >= r.First || i < len(*s) && (*s)[i].First <= r.Last {
		return
	}
	if i < len(*s) && (*s)[i].First == r.Last+1 {
		(*s)[i].First = r.First
	} else {
		*s = slices.Insert(*s, i, r)
	}
	if i > 0 && (*s)[i-1].Last == r.First-1 {
		(*s)[i-1].Last = (*s)[i].Last
		*s = slices.Delete(*s, i, i+1)
	}
}

// Advance returns how far floor moves over the ranges that it reaches, and removes them.
func (s *Set) Advance(floor int64) int64 {
	passed := 0
	for ; passed < len(*s) && (*s)[passed].First <= floor+1; passed++ {
		floor = max(floor, (*s)[passed].Last)
	}
	*s = slices.Delete(*s, 0, passed)
	return floor
}

// Before returns the highest id below cursor that the range ending at cursor leaves out.
func (s Set) Before(cursor int64) int64 {
	if n := len(s); n > 0 && s[n-1].Last == cursor {
		return s[n-1].First - 1
	}
	return cursor
}

// JSON returns the set as a JSON array of [first, last] pairs, as SQLite keeps it.
func (s Set) JSON() string {
	text := append(make([]byte, 0, 64), '[')
	for i, r := range s {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(text, '['), r.First, 10)
		text = strconv.AppendInt(append(text, ','), r.Last, 10)
		text = append(text, ']')
	}
	return string(append(text, ']'))
}

// ParseJSON reads what [Set.JSON] writes. A text that is not certainly a set of ids is an
// error.
func ParseJSON(text string) (Set, error) {
	var pairs [][2]int64
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return nil, fmt.Errorf("members are %.40q; expected pairs of ids: %w", text, err)
	}
	s := make(Set, 0, len(pairs))
	count := int64(0)
	for i, pair := range pairs {
		first, last := pair[0], pair[1]
		if last < first || i > 0 && first <= s[i-1].Last || uint64(last)-uint64(first) >= MaxSize { //nolint:gosec // the difference of two in order
			return nil, fmt.Errorf("members are %.40q; expected ascending pairs of ids", text)
		}
		if count += last - first + 1; count > MaxSize {
			return nil, fmt.Errorf("members are %.40q; expected at most %d ids", text, MaxSize)
		}
		s = append(s, Range{first, last})
	}
	return s, nil
}

// Multirange returns the set as PostgreSQL reads an int8multirange.
func (s Set) Multirange() string {
	text := append(make([]byte, 0, 64), '{')
	for i, r := range s {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(append(text, '['), r.First, 10)
		text = append(text, ',')
		if r.Last == math.MaxInt64 { // int8 has no bound beyond it
			text = append(text, ')')
			continue
		}
		text = append(strconv.AppendInt(text, r.Last, 10), ']')
	}
	return string(append(text, '}'))
}

// JSONIDs returns ids as a JSON array.
func JSONIDs(ids []int64) string {
	text := append(make([]byte, 0, 8*len(ids)+2), '[')
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, id, 10)
	}
	return string(append(text, ']'))
}
