package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Events that do not say when they were inserted are as old as their claim.
const (
	pickOwnSQL = `
SELECT id, coalesce(created_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
FROM outbox_events WHERE id > ?1 AND group_id IS NULL
ORDER BY id LIMIT ?2`

	// ?6 is the oldest of the batch, by its ledger row.
	idsOfOwnSQL = `
SELECT id, coalesce(created_at, ?6)
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

	stampOwnSQL = `
UPDATE own_events SET group_id = ?1
WHERE own_id BETWEEN ?2 AND ?3 AND group_id IS NULL`
)

// claimOwn is Claim where the table is the user's own: by stamp. The projection runs
// when the claim has committed, and no writer waits for it.
func (b *Buffer) claimOwn(ctx context.Context, limit int, lease time.Duration) (*outbox.Batch, error) {
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
func pickOwn(ctx context.Context, tx transaction, batch *outbox.Batch, from int64, limit int) error {
	rows, err := tx.rows(ctx, pickOwnSQL, from, limit)
	if err != nil {
		return err
	}
	batch.Events, err = scanIDs(rows, limit)
	if n := len(batch.Events); n > 0 {
		batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[n-1].ID
	}
	return err
}

// idsOf fills in the events of a batch that was taken over.
func idsOf(ctx context.Context, tx transaction, batch *outbox.Batch, count int, of holding) error {
	which, err := of.extent(batch, nil)
	if err != nil {
		return err
	}
	rows, err := tx.rows(ctx, idsOfOwnSQL, append(which.args(), of.oldest)...)
	if err != nil {
		return err
	}
	batch.Events, err = scanIDs(rows, count)
	return err
}

// scanIDs reads and closes rows of id and created_at.
func scanIDs(rows *sql.Rows, limit int) ([]outbox.Event, error) {
	defer rows.Close()
	events := make([]outbox.Event, 0, min(limit, 1024))
	for rows.Next() {
		var (
			id int64
			at string
		)
		if err := rows.Scan(&id, &at); err != nil {
			return nil, err
		}
		e := outbox.Event{ID: id}
		e.CreatedAt, _ = time.Parse(timeFormat, at) // SQLite wrote it; a year that Go has not is none
		events = append(events, e)
	}
	return events, rows.Err()
}
