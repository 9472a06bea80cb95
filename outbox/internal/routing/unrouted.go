package routing

import (
	"cmp"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Refusal is an event that no sink gets.
type Refusal struct {
	ID int64
	// Reason is its dead letter's; "": it is only deleted.
	Reason string
}

// Unrouted are the events that no sink gets, in id order: it takes none of their topics, or they were not projected.
func Unrouted(batch *buffer.Lease, unmatched []int64, as buffer.Unmatched) (lost []Refusal) {
	next := 0
	for _, id := range unmatched {
		for batch.Events[next].ID != id {
			next++
		}
		one := Refusal{ID: id}
		if as != buffer.UnmatchedDelete {
			one.Reason = "no sink takes topic " + buffer.TopicStart(batch.Events[next].Topic)
		}
		lost = append(lost, one)
	}
	for i := range batch.Rejected {
		lost = append(lost, Refusal{batch.Rejected[i].Event.ID, batch.Rejected[i].Err.Error()})
	}
	slices.SortFunc(lost, func(a, b Refusal) int { return cmp.Compare(a.ID, b.ID) })
	return lost
}

// ByReason returns the ids of events, and those of them that become dead letters by their reason.
func ByReason(lost []Refusal) (ids []int64, dead map[string][]int64) {
	ids, dead = make([]int64, len(lost)), map[string][]int64{}
	for i, l := range lost {
		ids[i] = l.ID
		if l.Reason != "" {
			dead[l.Reason] = append(dead[l.Reason], l.ID)
		}
	}
	return ids, dead
}
