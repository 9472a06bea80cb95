package router

import (
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/postgres/internal/ledger"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// end are the steps about events that no sink gets.
func (r *Routes) end(t *ledger.Tables, batch *buffer.Lease, lost []routing.Refusal) (steps []pg.Step) {
	id := buffer.NewGroupID()
	ids, byReason := routing.ByReason(lost)
	keys := pg.Null
	if t.UUIDs {
		keys = uuids((&routing.Delivery{IDs: ids}).Of(batch.AllEvents()))
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
		t.Buffer, group, r.base.Owner, pg.IDArray(ids), first, last, pg.Timestamp(routing.Oldest(batch.AllEvents())), members, claim, pg.Bool(batch.ClaimID != uuid.Nil), keys,
	}})
}
