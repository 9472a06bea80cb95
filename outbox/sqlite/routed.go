package sqlite

import (
	"encoding/json"
	"slices"
)

// routedWith is the routes_no with which events are routed to a sink: from the first one on, not from the second one on, and so on.
type routedWith []int64

func parseRouted(text string) (r routedWith, err error) { return r, json.Unmarshal([]byte(text), &r) }

func (r routedWith) json() string {
	if r == nil {
		return "[]"
	}
	text, _ := json.Marshal(r) // numbers never fail
	return string(text)
}

// has reports whether events are routed to the sink with a number.
func (r routedWith) has(no int64) bool {
	after := 0
	for _, at := range r {
		if at <= no {
			after++
		}
	}
	return after%2 == 1
}

// since returns r with the numbers from one on, or without them.
func (r routedWith) since(no int64, routed bool) routedWith {
	before := slices.DeleteFunc(slices.Clone(r), func(at int64) bool { return at >= no })
	if (len(before)%2 == 1) != routed {
		before = append(before, no)
	}
	return before
}

// and returns the numbers of both.
func (r routedWith) and(other routedWith) (both routedWith) {
	all := slices.Sorted(slices.Values(slices.Concat(r, other)))
	for _, at := range slices.Compact(all) {
		both = both.since(at, r.has(at) || other.has(at))
	}
	return both
}
