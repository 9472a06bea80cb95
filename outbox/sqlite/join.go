package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// A route adds events to a row that waits for a sink that is behind; see routing.OpenRows. The row may have been leased, renamed, or given
// another claim_id by a repair since this process wrote it, and a fill must find all of its events routed with the same registry. No other transaction writes between the two statements.
const (
	openRowSQL = `
SELECT members FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND sink = ?3 AND state = 'waiting' AND lease_no = 0 AND claim = 'range' AND (claim_id IS ?4 OR ?4 IS NULL) AND routes_no IS ?5`

	joinSQL = `
UPDATE outbox_batches
SET events = events + ?2, first_id = min(first_id, ?3), last_id = max(last_id, ?4), oldest_at = min(oldest_at, ?5), newest_at = max(newest_at, ?6), members = ?7
WHERE group_id = ?1`
)

// join adds a delivery to a row, whose claim_id is claimID if the delivery shares any event. joined is false if nothing can be added to the row any more.
func (b *Buffer) join(ctx context.Context, tx transaction, d *routing.Delivery, group, claimID uuid.UUID, in holding) (joined bool, err error) {
	var (
		claim any
		text  string
	)
	if claimID != uuid.Nil {
		claim = claimID.String()
	}
	err = tx.row(ctx, openRowSQL, b.config.Table, group.String(), d.Sink, claim, in.routesNo).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	members, err := idset.ParseJSON(text)
	if err != nil { // somebody wrote it by hand
		return false, nil //nolint:nilerr // the delivery gets a row of its own
	}
	_, err = tx.exec(ctx, joinSQL, group.String(), len(d.IDs), d.IDs[0], d.IDs[len(d.IDs)-1], d.OldestAt.Format(db.TimeFormat), in.newest,
		idset.Union(members, idset.Of(d.IDs)).JSON())
	return err == nil, err
}
