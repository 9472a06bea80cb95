package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const takeOverSQL = `
UPDATE outbox_batches
SET state = CASE state WHEN 'waiting' THEN 'leased' ELSE state END,
    lease_no = lease_no + 1, unfinished_leases = unfinished_leases + 1, owner = ?1,
    due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?2), claimed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE group_id = coalesce(?4, (
  SELECT group_id FROM outbox_batches
  WHERE buffer = ?3 AND claim IN ('stamp', 'range') AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
  ORDER BY due_at LIMIT 1))
RETURNING group_id, lease_no, unfinished_leases, attempts, outages, events, first_id, last_id, origins, delivered, claimed_at,
          members, newest_at, oldest_at`

const eventsOfSQL = `
SELECT id, topic, key, payload, headers, created_at
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

// TakeOver is described by buffertest.Buffer.
func (b *Buffer) TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error) {
	if b.own != nil {
		batch, err := b.ledger().takeOver(ctx, lease, func(tx transaction, batch *buffer.Lease, _ int, of holding) error {
			return idsOf(ctx, tx, batch, of)
		})
		if batch != nil {
			b.project(ctx, batch, lease)
		}
		return batch, err
	}
	return b.ledger().takeOver(ctx, lease, func(tx transaction, batch *buffer.Lease, count int, of holding) error {
		which, err := of.extent(batch, nil)
		if err != nil {
			return err
		}
		rows, err := tx.rows(ctx, eventsOfSQL, which.args()...)
		if err != nil {
			return err
		}
		if batch.Events, err = scanEvents(rows, count); err != nil {
			return err
		}
		return b.payloadIsJSON(ctx, tx, batch)
	})
}

// takeOver leases the batch that has been due longest; read gets its events, of
// which the ledger counts so many, and holds them like that.
func (l ledger) takeOver(ctx context.Context, lease time.Duration, read func(tx transaction, batch *buffer.Lease, count int, of holding) error) (*buffer.Lease, error) {
	batch := &buffer.Lease{Batch: buffer.Batch{Pipeline: l.b.config.Pipeline}, Ends: leaseEnd(time.Now(), lease)}
	err := l.b.write(ctx, "taking a batch over", func(tx transaction) error {
		var (
			count                         int
			of                            holding
			origins, delivered, claimedAt string
		)
		var next any // NULL: the one that has been due longest
		if l.b.config.Ordered && l.buffer == l.b.config.Table {
			group, err := l.b.dueInOrder(ctx, tx)
			if err != nil {
				return err
			}
			next = group
		}
		err := tx.row(ctx, takeOverSQL, l.b.config.Owner, seconds(lease), l.buffer, next).Scan(
			&batch.GroupID, &batch.LeaseNo, &batch.UnfinishedLeases, &batch.Attempts, &batch.Outages, &count,
			&batch.FirstID, &batch.LastID, &origins, &delivered, &claimedAt, &of.members, &of.newest, &of.oldest)
		if errors.Is(err, sql.ErrNoRows) {
			return errNothing
		}
		if err != nil {
			return err
		}
		if batch.ClaimedAt, err = time.Parse(timeFormat, claimedAt); err != nil {
			return err
		}
		if err := errors.Join(json.Unmarshal([]byte(origins), &batch.Origins), json.Unmarshal([]byte(delivered), &batch.Delivered)); err != nil {
			return err
		}
		return read(tx, batch, count, of)
	})
	if errors.Is(err, errNothing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	batch.ClaimedLocal = time.Now()
	return batch, nil
}

// A batch put back to wait is nobody's, whatever its lease_no.
const renewSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?1)
WHERE buffer = ?2 AND group_id = ?3 AND lease_no = ?4 AND state <> 'waiting'`

// Renew is described by buffertest.Buffer.
func (b *Buffer) Renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	return b.ledger().renew(ctx, batch, lease)
}

func (l ledger) renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	end := leaseEnd(time.Now(), lease)
	err := l.b.write(ctx, "renewing a lease", func(tx transaction) error {
		return fenced(tx.exec(ctx, renewSQL, seconds(lease), l.buffer, batch.GroupID.String(), batch.LeaseNo))
	})
	if err == nil {
		batch.Ends = end
	}
	return err
}

// fenced looks at what a statement that names group_id and lease_no touched.
func fenced(rows int64, err error) error {
	if err == nil && rows == 0 {
		return buffer.ErrLeaseLost
	}
	return err
}
