package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const pickSQL = `
SELECT id, topic, key, payload, headers, created_at
FROM outbox_events WHERE id > ?1 AND group_id IS NULL
ORDER BY id LIMIT ?2`

// The runs of free ids are gone through one after the other, each along the primary
// key: what live batches hold is not walked over.
const pickFreeSQL = `
SELECT e.id, e.topic, e.key, e.payload, e.headers, e.created_at
FROM json_each(?1) AS free CROSS JOIN outbox_events AS e
WHERE e.id BETWEEN json_extract(free.value, '$[0]') AND json_extract(free.value, '$[1]') AND e.group_id IS NULL
LIMIT ?2`

// No other transaction writes between the pick and the stamp, so the unclaimed
// rows from the first id picked to the last are the ones picked. (One UPDATE
// with RETURNING is slower by a third: it keeps all rows twice.)
const stampSQL = `
UPDATE outbox_events SET group_id = ?1
WHERE id BETWEEN ?2 AND ?3 AND group_id IS NULL`

const openLedgerSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, members, newest_at)
VALUES (?1, ?2, ?3, 'leased', 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4), ?5, 1,
        0, 0, ?6, ?7, ?8, ?9, ?10, ?11)
RETURNING claimed_at`

const payloadIsJSONSQL = `
SELECT upper(type) = 'TEXT' FROM pragma_table_info(?1) WHERE name = 'payload'`

// Claim is described by buffertest.Buffer.
func (b *Buffer) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	switch {
	case b.own != nil:
		return b.claimOwn(ctx, limit, lease)
	case b.config.Ordered:
		return b.claimInOrder(ctx, limit, lease)
	case b.config.Claim == buffer.ClaimOptimistic:
		return b.claimOptimistic(ctx, limit, lease)
	}
	batch, err := b.claimNext(ctx, limit, lease)
	if errors.Is(err, errOptimistic) {
		return b.claimOptimistic(ctx, limit, lease)
	}
	return batch, err
}

var (
	// errNothing ends a transaction that found nothing to do.
	errNothing = errors.New("nothing there")
	// errOptimistic and errNotOptimistic end one of the wrong kind: `auto` follows what
	// is stored, which may change at any time.
	errOptimistic    = errors.New("the buffer is claimed optimistically")
	errNotOptimistic = errors.New("the buffer is not claimed optimistically any more")
)

// claimNext makes a batch of the next events, by stamp or by range.
func (b *Buffer) claimNext(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch := b.batch(lease)
	committing := false
	err := b.write(ctx, "claiming a batch", func(tx transaction) error {
		mode, err := b.mode(ctx, tx)
		if err != nil {
			return err
		}
		if mode == claimOptimistic {
			return errOptimistic
		}
		from := b.cursor.from()
		if batch.Events, err = b.pickNext(ctx, tx, mode, from, limit); err != nil {
			return err
		}
		if len(batch.Events) == 0 {
			b.cursor.nothingBeyond(from)
			return errNothing
		}
		if mode == claimRange {
			err = b.open(ctx, tx, batch, lease, runsOf(batch.IDs()))
		} else if err = b.open(ctx, tx, batch, lease, nil); err == nil {
			_, err = tx.exec(ctx, stampSQL, batch.GroupID.String(), batch.FirstID, batch.LastID)
		}
		if err != nil {
			return err
		}
		b.cursor.claimed(from, batch.LastID, 0)
		committing = true
		return nil
	})
	return b.claimed(batch, err, committing)
}

func (b *Buffer) pickNext(ctx context.Context, tx transaction, mode string, from int64, limit int) ([]outbox.Event, error) {
	statement, args := pickSQL, []any{from, limit}
	if mode == claimRange {
		free, err := b.free(ctx, tx, from)
		if err != nil {
			return nil, err
		}
		statement, args = pickFreeSQL, []any{free, limit}
	}
	rows, err := tx.rows(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return scanEvents(rows, limit)
}

// batch begins a new one.
func (b *Buffer) batch(lease time.Duration) *buffer.Lease {
	return &buffer.Lease{
		Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: b.config.Pipeline}, LeaseNo: 1, UnfinishedLeases: 1, Ends: leaseEnd(time.Now(), lease),
	}
}

// claimed is what a claim returns after its transaction. When that failed while it was
// committing, nobody knows whether it happened.
func (b *Buffer) claimed(batch *buffer.Lease, err error, committing bool) (*buffer.Lease, error) {
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

// open makes the events picked a batch: members of it by range or, when members is nil,
// by a stamp that they have or are still to get.
func (b *Buffer) open(ctx context.Context, tx transaction, batch *buffer.Lease, lease time.Duration, members runs) error {
	batch.FirstID, batch.LastID = batch.Events[0].ID, batch.Events[len(batch.Events)-1].ID
	oldest := batch.Events[0].CreatedAt
	newest := oldest
	for i := range batch.Events {
		at := batch.Events[i].CreatedAt
		if at.Before(oldest) {
			oldest = at
		}
		if at.After(newest) {
			newest = at
		}
	}
	args := []any{
		batch.GroupID.String(), b.config.Table, claimStamp, seconds(lease), b.config.Owner,
		len(batch.Events), batch.FirstID, batch.LastID, oldest.Format(timeFormat), nil, nil,
	}
	if members != nil {
		text, err := members.text()
		if err != nil {
			return err
		}
		args[2], args[9], args[10] = claimRange, text, newest.Format(timeFormat)
	}
	var claimedAt string
	err := tx.row(ctx, openLedgerSQL, args...).Scan(&claimedAt)
	if err != nil {
		return err
	}
	if batch.ClaimedAt, err = time.Parse(timeFormat, claimedAt); err != nil {
		return err
	}
	return b.payloadIsJSON(ctx, tx, batch)
}

// payloadIsJSON asks the table; a projection says so itself.
func (b *Buffer) payloadIsJSON(ctx context.Context, tx transaction, batch *buffer.Lease) error {
	if b.own != nil {
		return nil
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
