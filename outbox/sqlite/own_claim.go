package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// Ids and times come in one row: a step of the driver's costs more than reading an event's
// row. Events that do not say when they were inserted are as old as their claim.
const (
	pickOwnSQL = `
SELECT coalesce(group_concat(id), ''), coalesce(group_concat(coalesce(created_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))), '')
FROM (SELECT id, created_at FROM outbox_events WHERE id > ?1 AND group_id IS NULL
      ORDER BY id LIMIT ?2)`

	// ?6 is the oldest of the batch, by its ledger row.
	idsOfOwnSQL = `
SELECT coalesce(group_concat(id), ''), coalesce(group_concat(coalesce(created_at, ?6)), '')
FROM (SELECT id, created_at FROM outbox_events
      WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
        AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
        AND (?5 IS NULL OR created_at <= ?5)
      ORDER BY id)`

	stampOwnSQL = `
UPDATE own_events SET group_id = ?1
WHERE own_id BETWEEN ?2 AND ?3 AND group_id IS NULL`
)

// claimOwn is Claim where the table is the user's own: by stamp. The projection runs
// when the claim has committed, and no writer waits for it.
func (b *Buffer) claimOwn(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch := b.batch(lease)
	committing := false
	err := b.write(ctx, "claiming a batch", func(tx transaction) error {
		if _, err := b.mode(ctx, tx); err != nil {
			return err
		}
		from := b.cursor.from()
		if err := pickOwn(ctx, tx, batch, from, limit); err != nil {
			return err
		}
		if len(batch.Events) == 0 {
			b.cursor.nothingBeyond(from)
			return errNothing
		}
		if err := b.open(ctx, tx, batch, lease, nil); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, stampOwnSQL, tx.shape.stamp(batch.GroupID), batch.FirstID, batch.LastID); err != nil {
			return err
		}
		b.cursor.claimed(from, batch.LastID, 0)
		committing = true
		return nil
	})
	if batch, err = b.claimed(batch, err, committing); batch != nil {
		b.project(ctx, batch, lease)
	}
	return batch, err
}

// pickOwn fills in the events that a claim takes, as far as the table knows them.
func pickOwn(ctx context.Context, tx transaction, batch *buffer.Lease, from int64, limit int) (err error) {
	batch.Events, err = scanIDs(tx.row(ctx, pickOwnSQL, from, limit))
	if n := len(batch.Events); n > 0 {
		batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[n-1].ID
	}
	return err
}

// idsOf fills in the events of a batch that was taken over.
func idsOf(ctx context.Context, tx transaction, batch *buffer.Lease, of holding) error {
	which, err := of.extent(batch, nil)
	if err != nil {
		return err
	}
	batch.Events, err = scanIDs(tx.row(ctx, idsOfOwnSQL, append(which.args(), of.oldest)...))
	return err
}

// scanIDs reads a row of ids and times, each with commas between.
func scanIDs(row *sql.Row) (events []outbox.Event, err error) {
	var ids, times string
	if err := row.Scan(&ids, &times); err != nil || ids == "" {
		return nil, err
	}
	events = make([]outbox.Event, 0, strings.Count(ids, ",")+1)
	for id := range strings.SplitSeq(ids, ",") {
		var e outbox.Event
		if e.ID, err = strconv.ParseInt(id, 10, 64); err != nil {
			return nil, err
		}
		at, rest, _ := strings.Cut(times, ",")
		if e.CreatedAt, err = time.Parse(timeFormat, at); err != nil { // the 30th of February
			e.CreatedAt = time.Now().UTC()
		}
		times = rest
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b outbox.Event) int { return cmp.Compare(a.ID, b.ID) }) // as they are, but nobody promises that
	return events, nil
}
