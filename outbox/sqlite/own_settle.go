package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// ?1 to ?4 are an extent, whose stamp is as the table has it.
const (
	deleteOwnSQL = `
DELETE FROM own_events
WHERE group_id IS ?1 AND own_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR own_id IN (SELECT value FROM json_each(?4)))`

	moveOwnSQL = `
UPDATE own_events SET group_id = ?5
WHERE group_id IS ?1 AND own_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR own_id IN (SELECT value FROM json_each(?4)))`

	// See burySQL.
	buryOwnSQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, event_row)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = excluded.topic, key = excluded.key, payload = excluded.payload, headers = excluded.headers,
    created_at = excluded.created_at, attempts = excluded.attempts, error = excluded.error, event_row = excluded.event_row,
    died_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), notified_at = NULL, closed_at = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	archiveOwnSQL = `
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (id, group_id) DO NOTHING`
)

// own is the extent of events that carry group, as the table has that.
func (s *shape) own(which extent, group uuid.UUID) extent {
	which.stamp = s.stamp(group)
	return which
}

func (b *Buffer) settleOwn(ctx context.Context, tx transaction, batch *buffer.Lease, of holding, which extent, o buffer.Outcome) error {
	if o.Verdict == buffer.Retry {
		return b.part(ctx, tx, batch, of, which, o)
	}
	which = tx.shape.own(which, batch.GroupID)
	group := batch.GroupID.String()
	switch {
	case o.Verdict == buffer.Dead:
		err := b.each(ctx, tx, batch, which, func(e *outbox.Event, payload any, row string) error {
			_, err := tx.exec(ctx, buryOwnSQL, b.config.Pipeline, e.ID, e.Topic, e.Key, payload, headers(e), e.CreatedAt.Format(timeFormat),
				group, o.Attempts, o.Error, row)
			return err
		})
		if err != nil {
			return err
		}
	case o.Verdict != buffer.Delivered:
		return fmt.Errorf("settling batch %s: unknown verdict %v", batch.GroupID, o.Verdict)
	case b.config.Archive != "":
		err := b.each(ctx, tx, batch, which, func(e *outbox.Event, payload any, _ string) error {
			_, err := tx.exec(ctx, archiveOwnSQL, e.ID, e.Topic, e.Key, payload, headers(e), e.CreatedAt.Format(timeFormat), group)
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := tx.exec(ctx, deleteOwnSQL, which.args()[:4]...)
	return err
}

func byID(e outbox.Event, id int64) int { return cmp.Compare(e.ID, id) }

// each calls act for every event of the batch that is still there, with what was sent of
// it and its row. Of what was never projected the row is all there is.
func (b *Buffer) each(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, act func(e *outbox.Event, payload any, row string) error) error {
	rows, err := tx.rowsOf(ctx, which)
	if err != nil {
		return err
	}
	for _, row := range rows {
		e := outbox.Event{ID: row.id, CreatedAt: batch.ClaimedAt}
		if i, found := slices.BinarySearchFunc(batch.Events, row.id, byID); found {
			e = batch.Events[i]
		}
		var payload any = e.Payload
		switch {
		case e.Payload == nil:
			e.Topic, payload = b.config.Table, row.text
		case batch.PayloadIsJSON:
			payload = string(e.Payload)
		}
		if err := act(&e, payload, row.text); err != nil {
			return err
		}
	}
	return nil
}
