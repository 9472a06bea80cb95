package sink

import "fmt"

// DivideError asks for the batch to be divided: its parts cannot go out under
// one group_id, because what is sent under a group_id never changes. A driver
// answers so before anything was sent; it is neither an attempt nor an outage.
// Each part is to get a new group_id and to be sent again soon.
type DivideError struct {
	// Groups are the parts, at least two. Each event of the batch stands in
	// exactly one of them. Events that have no address are a part too: the
	// driver refuses them when that part is sent.
	Groups []Group
}

func (e *DivideError) Error() string {
	return fmt.Sprintf("the batch has to be divided into %d parts", len(e.Groups))
}
