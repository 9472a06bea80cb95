package sqlite

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// An event that several sinks take is in a batch of each, and all of these have the same claim_id. A settle removes its row and
// deletes those of its events that no other row of the claim holds. Its transaction may write from its first statement on, so it sees what every
// other settle of the claim has left, and no other begins before it ends.

const claimMembersSQL = `
SELECT members FROM outbox_batches WHERE claim_id = ?1 AND group_id <> ?2`

// shared is what the other batches of a claim hold.
type shared struct {
	sets []idset.Set
	all  bool // members that cannot be read may hold any event
}

// sharedWith returns what the other batches hold of the claim of a batch, whose parts have their rows; nil for a batch that shares no event.
func (b *Buffer) sharedWith(ctx context.Context, tx transaction, batch *buffer.Lease, in holding) (*shared, error) {
	if in.claimID == nil {
		return nil, nil
	}
	rows, err := tx.rows(ctx, claimMembersSQL, *in.claimID, batch.GroupID.String())
	texts, err := db.Column[string](rows, err)
	if err != nil {
		return nil, err
	}
	s := new(shared)
	for _, text := range texts {
		members, err := idset.ParseJSON(text)
		s.all = s.all || err != nil
		s.sets = append(s.sets, members)
	}
	return s, nil
}

// without returns those of the ids that no other batch of the claim holds. It is never nil.
func (s *shared) without(ids []int64) []int64 {
	if s.all {
		return []int64{}
	}
	return idset.Without(ids, s.sets...)
}
