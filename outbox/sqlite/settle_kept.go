package sqlite

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// A DELETE that a BEFORE trigger ends with RAISE(IGNORE) is no error to SQLite. The events would be claimed again, and
// sent again, for ever. So a settle compares the number of rows that it deleted with the number of ids. Fewer were
// deleted also if somebody deleted an event by hand, so only the events that are still there count.
const (
	keptSQL = `
SELECT id FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

	// The sink has these events, so they hold no key.
	recordKeptSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, delivered, members, newest_at, lanes, sink, claim_id, seq)
VALUES (?1, ?2, ?3, 'delivered', ?4, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5), ?6, 1,
        0, 0, ?7, ?8, ?9, ?10, ?11, ?12, ?13, '[]', ?14, ?15, ?16)`
)

// recordKept gives those of the ids that are still there a ledger row again, in the transaction of the settle. It
// returns how many there are.
func (b *Buffer) recordKept(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, ids []int64) (kept int, err error) {
	slices.Sort(ids)
	rows, err := tx.rows(ctx, keptSQL, in.extent(batch, ids).args()...)
	ids, err = db.Column[int64](rows, err)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	members := any(nil)
	if in.members != nil {
		members = idset.Of(ids).JSON()
	}
	_, err = tx.exec(ctx, recordKeptSQL, batch.GroupID.String(), b.config.Table, in.claim, batch.LeaseNo, db.Seconds(buffer.KeptRetry(batch.LeaseNo)), b.config.Owner,
		len(ids), ids[0], ids[len(ids)-1], in.oldest, idset.JSONIDs(ids), members, in.newest, in.sink, in.claimID, in.seq)
	return len(ids), err
}
