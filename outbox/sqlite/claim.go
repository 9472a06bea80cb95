package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

const pickSQL = `
SELECT id, topic, key, payload, headers, created_at
FROM outbox_events WHERE id > ?1 AND group_id IS NULL
ORDER BY id LIMIT ?2`

// No other transaction writes between the pick and the stamp, so the unclaimed
// rows from the first id picked to the last are the ones picked. (One UPDATE
// with RETURNING is slower by a third: it keeps all rows twice.)
const stampSQL = `
UPDATE outbox_events SET group_id = ?1
WHERE id BETWEEN ?2 AND ?3 AND group_id IS NULL`

const openLedgerSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, starts,
                            attempts, outages, events, first_id, last_id, oldest_at)
SELECT ?1, buffer, 'stamp', 'leased', 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?2), ?3, 1,
       0, 0, ?4, ?5, ?6, ?7
FROM outbox_buffers WHERE buffer = ?8 AND claim = ?9
RETURNING claimed_at`

const payloadIsJSONSQL = `
SELECT upper(type) = 'TEXT' FROM pragma_table_info(?1) WHERE name = 'payload'`

// Claim is described by buffertest.Buffer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*outbox.Batch, error) {
	if b.config.Ordered {
		return b.claimInOrder(ctx, limit, lease)
	}
	start := time.Now()
	batch := &outbox.Batch{GroupID: outbox.NewGroupID(), Pipeline: b.config.Pipeline, LeaseNo: 1, Starts: 1, LeaseEnd: leaseEnd(start, lease)}
	committing := false
	err := b.write(ctx, "claiming a batch", func(tx transaction) error {
		from := b.cursor.from()
		rows, err := tx.rows(ctx, pickSQL, from, limit)
		if err != nil {
			return err
		}
		if batch.Events, err = scanEvents(rows, limit); err != nil {
			return err
		}
		if len(batch.Events) == 0 {
			b.cursor.nothingBeyond(from)
			return errNothing
		}
		batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[len(batch.Events)-1].ID
		if err := b.open(ctx, tx, batch, lease); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, stampSQL, batch.GroupID.String(), batch.FirstID, batch.LastID); err != nil {
			return err
		}
		b.cursor.claimed(batch.LastID)
		committing = true
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		return nil, nil
	case err != nil:
		if committing {
			b.cursor.restart()
		}
		return nil, err
	}
	batch.ClaimedLocal = time.Now()
	return batch, nil
}

// errNothing ends a transaction that found nothing to do.
var errNothing = errors.New("nothing there")

// open makes the events picked a batch; they are still to be stamped.
func (b *Buffer) open(ctx context.Context, tx transaction, batch *outbox.Batch, lease time.Duration) error {
	oldest := batch.Events[0].CreatedAt
	for i := range batch.Events {
		if at := batch.Events[i].CreatedAt; at.Before(oldest) {
			oldest = at
		}
	}
	var claimedAt string
	err := tx.row(ctx, openLedgerSQL, batch.GroupID.String(), seconds(lease), b.config.Owner,
		len(batch.Events), batch.FirstID, batch.LastID, oldest.Format(timeFormat), b.config.Table, b.config.claimMode()).Scan(&claimedAt)
	if errors.Is(err, sql.ErrNoRows) {
		if err := b.claimMode(ctx, tx); err != nil {
			return err
		}
		return b.open(ctx, tx, batch, lease) // in a mode that has been ours since
	}
	if err != nil {
		return err
	}
	if batch.ClaimedAt, err = time.Parse(timeFormat, claimedAt); err != nil {
		return err
	}
	return tx.row(ctx, payloadIsJSONSQL, b.config.Table).Scan(&batch.PayloadIsJSON)
}

// scanEvents reads and closes rows, at most limit of them.
func scanEvents(rows *sql.Rows, limit int) ([]outbox.Event, error) {
	defer rows.Close()
	events := make([]outbox.Event, 0, min(limit, 1024))
	for rows.Next() {
		var (
			e         outbox.Event
			createdAt string
		)
		if err := rows.Scan(&e.ID, &e.Topic, &e.Key, &e.Payload, (*[]byte)(&e.Headers), &createdAt); err != nil {
			return nil, err
		}
		at, err := time.Parse(timeFormat, createdAt)
		if err != nil {
			return nil, fmt.Errorf("created_at of event %d: %w", e.ID, err)
		}
		e.CreatedAt = at
		if e.Payload == nil {
			e.Payload = []byte{}
		}
		events = append(events, e)
	}
	return events, rows.Err()
}
