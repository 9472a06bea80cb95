package postgres

import (
	"cmp"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// runs are ids without a gap between them that this process has claimed, beyond the
// floor. Nothing can commit late among them, so no sweep need walk over what is left of
// them, and a floor that reaches one is at its end. In order; none touches the next.
type runs []idRun

type idRun struct{ first, last int64 }

// mostRuns bounds what is remembered; a sweep looks at the others.
const mostRuns = 64

// add takes a batch's ids, if there is no gap between them.
func (r *runs) add(b *buffer.Lease) {
	if len(b.Events) == 0 {
		return
	}
	fresh := idRun{b.Events[0].ID, b.Events[len(b.Events)-1].ID}
	if fresh.last-fresh.first != int64(len(b.Events))-1 {
		return
	}
	i, known := slices.BinarySearchFunc(*r, fresh.first, func(one idRun, id int64) int { return cmp.Compare(one.first, id) })
	if known || i > 0 && (*r)[i-1].last >= fresh.first { // an id that came twice, by hand
		return
	}
	if i < len(*r) && (*r)[i].first == fresh.last+1 {
		(*r)[i].first = fresh.first
	} else {
		*r = slices.Insert(*r, i, fresh)
	}
	if i > 0 && (*r)[i-1].last == fresh.first-1 {
		(*r)[i-1].last = (*r)[i].last
		*r = slices.Delete(*r, i, i+1)
	}
	if len(*r) > mostRuns {
		*r = slices.Delete(*r, 0, 1)
	}
}

// follow is how far a floor moves, over the runs that it reaches; they are forgotten.
func (r *runs) follow(floor int64) int64 {
	passed := 0
	for ; passed < len(*r) && (*r)[passed].first <= floor+1; passed++ {
		floor = max(floor, (*r)[passed].last)
	}
	*r = slices.Delete(*r, 0, passed)
	return floor
}

// before is the id up to which there may be something between a floor and the cursor:
// none is in the run that the cursor is at the end of.
func (r *runs) before(cursor int64) int64 {
	if n := len(*r); n > 0 && (*r)[n-1].last == cursor {
		return (*r)[n-1].first - 1
	}
	return cursor
}
