package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// few is how many events a message names. A sink that refused no more may be right, if there are no others.
const few = 5

// eventSet is a set of events of which few are named. The zero value is empty.
type eventSet struct{ named []namedEvent }

type namedEvent struct {
	id   int64
	name any // as logs name it
}

// add adds the events of a batch.
func (s *eventSet) add(l *buffer.Lease) {
	for _, id := range l.IDs() {
		if s.many() {
			return
		}
		if !slices.ContainsFunc(s.named, func(e namedEvent) bool { return e.id == id }) {
			s.named = append(s.named, namedEvent{id, l.LogID(id)})
		}
	}
}

// many reports whether the set has more events than a message names.
func (s *eventSet) many() bool { return len(s.named) > few }

// String is "event 7", or "events 7, 8 and 12".
func (s *eventSet) String() string {
	names := make([]string, 0, few)
	for _, e := range slices.SortedFunc(slices.Values(s.named), func(a, b namedEvent) int { return cmp.Compare(a.id, b.id) }) {
		names = append(names, fmt.Sprint(e.name))
	}
	last := len(names) - 1
	if last < 1 {
		return "event " + strings.Join(names, "")
	}
	return "events " + strings.Join(names[:last], ", ") + " and " + names[last]
}
