package sqlite

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// holding is what the ledger says of how a batch's events are found: by range if there are members,
// otherwise by their stamp. A batch of one of several sinks has members, and if its claim is by stamp its events carry the claim_id.
type holding struct {
	members, newest *string
	oldest          string // created_at of its oldest event
	claimed         string // when its events were first claimed
	claim           string // stamp or range
	claimID         *string
	sink            string
	routesNo, seq   *int64 // several sinks only
}

// holdingColumns are read by [holding.columns].
const holdingColumns = `members, newest_at, oldest_at, claimed_at, claim, claim_id, sink, routes_no, seq`

func (h *holding) columns() []any {
	return []any{&h.members, &h.newest, &h.oldest, &h.claimed, &h.claim, &h.claimID, &h.sink, &h.routesNo, &h.seq}
}

// extent is which rows of the buffer a statement means.
type extent struct {
	stamp       any // the group_id they carry; nil: none
	first, last int64
	ids         any // JSON array; nil: all between first and last
	newest      any // created_at of none is later; nil: it may be
	members     idset.Set
}

func (e extent) args() []any { return []any{e.stamp, e.first, e.last, e.ids, e.newest} }

// extent returns the extent of some of the batch's events, or of all if ids is nil. By range, an event
// younger than the batch is not one of its: its id was handed out again. Members that
// cannot be read hold nothing; see free.
func (h holding) extent(batch *buffer.Lease, ids []int64) extent {
	if h.members == nil {
		return extent{stamp: batch.GroupID.String(), first: batch.FirstID, last: batch.LastID, ids: idsArg(ids)}
	}
	members, err := idset.ParseJSON(*h.members)
	if ids != nil {
		members = members.Intersect(ids)
	}
	if err != nil || len(members) == 0 {
		return extent{first: 1, newest: h.newest} // nothing
	}
	which := unstamped(members)
	if h.claimID != nil && h.claim == claimmode.Stamp {
		which.stamp = *h.claimID
		return which
	}
	which.newest = h.newest
	return which
}

// unstamped is the extent of members, which carry no stamp; there is at least one.
func unstamped(members idset.Set) extent {
	e := extent{first: members[0].First, last: members[len(members)-1].Last, members: members}
	if len(members) > 1 {
		e.ids = idsArg(members.IDs())
	}
	return e
}

// idsArg returns ids as a JSON array; nil becomes NULL.
func idsArg(ids []int64) any {
	if ids == nil {
		return nil
	}
	return idset.JSONIDs(ids)
}

const liveMembersSQL = `
SELECT members FROM outbox_batches
WHERE buffer = ?1 AND claim = 'range' AND last_id > ?2`

// free returns the ids beyond from that no live batch holds by range, as JSON. A batch whose members
// cannot be read holds nothing: its events are sent again rather than lost.
func (b *Buffer) free(ctx context.Context, tx transaction, from int64) (string, error) {
	live, err := b.liveSets(ctx, tx, from)
	if err != nil {
		return "", err
	}
	return idset.Gaps(from, live...).JSON(), nil
}

// liveSets returns the members of the batches by range that reach beyond from.
func (b *Buffer) liveSets(ctx context.Context, tx transaction, from int64) (live []idset.Set, err error) {
	rows, err := tx.rows(ctx, liveMembersSQL, b.config.Table, from)
	all, err := db.Column[string](rows, err)
	for _, text := range all {
		if members, err := idset.ParseJSON(text); err == nil {
			live = append(live, members)
		}
	}
	return live, err
}
