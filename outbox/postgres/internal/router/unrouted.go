package router

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// refusal is an event that no sink gets.
type refusal struct {
	id int64
	// reason is its dead letter's; "": it is only deleted.
	reason string
}

// unrouted are the events that no sink gets, in id order: it takes none of their topics, or they were not projected.
func (r *Routes) unrouted(batch *buffer.Lease, unmatched []int64) (lost []refusal) {
	next := 0
	for _, id := range unmatched {
		for batch.Events[next].ID != id {
			next++
		}
		one := refusal{id: id}
		if r.base.Unmatched != buffer.UnmatchedDelete {
			one.reason = "no sink takes topic " + batch.Events[next].Topic
		}
		lost = append(lost, one)
	}
	for i := range batch.Rejected {
		lost = append(lost, refusal{batch.Rejected[i].Event.ID, batch.Rejected[i].Err.Error()})
	}
	slices.SortFunc(lost, func(a, b refusal) int { return cmp.Compare(a.id, b.id) })
	return lost
}

// end are the steps about events that no sink gets.
func (r *Routes) end(t *ledger.Tables, batch *buffer.Lease, lost []refusal) (steps []pg.Step) {
	var (
		id       = buffer.NewGroupID()
		ids      = make([]int64, len(lost))
		byReason = map[string][]int64{}
	)
	for i, l := range lost {
		ids[i] = l.id
		if l.reason != "" {
			byReason[l.reason] = append(byReason[l.reason], l.id)
		}
	}
	group, claim := id.String(), claimOf(batch).String()
	first, last, members := pg.Int(ids[0]), pg.Int(ids[len(ids)-1]), idset.Of(ids).Multirange()
	switch {
	case t.Bury != nil:
		for _, reason := range slices.Sorted(maps.Keys(byReason)) {
			steps = append(steps, t.Bury(batch, id, reason, byReason[reason])...)
		}
	case len(byReason) > 0:
		steps = append(steps, pg.Step{SQL: t.SQL(buryUnmatchedSQL), Args: []string{r.base.Pipeline, group, first, last, members, claim}})
	}
	return append(steps, pg.Step{SQL: t.SQL(markUnmatchedSQL), Args: []string{
		t.Buffer, group, r.base.Owner, pg.IDArray(ids), first, last, pg.Timestamp(oldest(batch.AllEvents())), members, claim, pg.Bool(batch.ClaimID != uuid.Nil),
	}})
}
