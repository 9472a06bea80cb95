package sink

import "fmt"

// SplitError asks for the batch to be divided: its parts cannot go out under
// one group_id, because what is sent under a group_id never changes. A driver
// answers so before anything was sent; it is neither an attempt nor an outage.
// Each part is to get a new group_id and to be sent again soon.
type SplitError struct {
	// Groups are the parts, at least two. Each event of the batch stands in
	// exactly one of them. Events that have no address are a part too: the
	// driver refuses them when that part is sent.
	Groups []Group
	// TooLarge: it has to be divided for its size.
	TooLarge bool
}

func (e *SplitError) Error() string {
	return fmt.Sprintf("the batch has to be divided into %d parts", len(e.Groups))
}

// Valid reports whether the groups are at least two and share out n events: each
// stands in exactly one of them.
func (e *SplitError) Valid(n int) bool {
	seen := make([]bool, n)
	left := n
	for _, g := range e.Groups {
		for _, i := range g.Indexes {
			if i < 0 || i >= n || seen[i] {
				return false
			}
			seen[i] = true
			left--
		}
		if len(g.Indexes) == 0 {
			return false
		}
	}
	return left == 0 && len(e.Groups) > 1
}
