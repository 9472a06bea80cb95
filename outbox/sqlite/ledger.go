package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// ledger is the rows of outbox_batches of one buffer: b's table, or its dead-letter queue.
type ledger struct {
	b      *Buffer
	buffer string
}

func (b *Buffer) ledger() ledger { return ledger{b, b.config.Table} }

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

// takeOver leases the batch that has been due longest. load fills in its events, of which the
// ledger counts so many.
func (l ledger) takeOver(ctx context.Context, lease time.Duration,
	load func(tx transaction, batch *buffer.Lease, in holding, count int) error,
) (*buffer.Lease, error) {
	batch := &buffer.Lease{Batch: buffer.Batch{Pipeline: l.b.config.Pipeline}, Ends: db.LeaseEnd(time.Now(), lease)}
	err := l.b.write(ctx, "taking over a batch", func(tx transaction) error {
		var (
			count                         int
			in                            holding
			origins, delivered, claimedAt string
			next                          any // NULL: the one that has been due longest
		)
		if l.b.config.Ordered && l.buffer == l.b.config.Table {
			group, err := l.b.dueInOrder(ctx, tx)
			if err != nil {
				return err
			}
			next = group
		}
		err := tx.row(ctx, takeOverSQL, l.b.config.Owner, db.Seconds(lease), l.buffer, next).Scan(
			&batch.GroupID, &batch.LeaseNo, &batch.UnfinishedLeases, &batch.Attempts, &batch.Outages, &count,
			&batch.FirstID, &batch.LastID, &origins, &delivered, &claimedAt, &in.members, &in.newest, &in.oldest)
		if errors.Is(err, sql.ErrNoRows) {
			return errNothing
		}
		if err != nil {
			return err
		}
		if batch.ClaimedAt, err = time.Parse(db.TimeFormat, claimedAt); err != nil {
			return err
		}
		if err := errors.Join(json.Unmarshal([]byte(origins), &batch.Origins), json.Unmarshal([]byte(delivered), &batch.Delivered)); err != nil {
			return err
		}
		return load(tx, batch, in, count)
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

// A waiting batch has no owner, whatever its lease_no.
const renewSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?1)
WHERE buffer = ?2 AND group_id = ?3 AND lease_no = ?4 AND state <> 'waiting'`

func (l ledger) renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	end := db.LeaseEnd(time.Now(), lease)
	err := l.b.write(ctx, "renewing a lease", func(tx transaction) error {
		return fenced(tx.exec(ctx, renewSQL, db.Seconds(lease), l.buffer, batch.GroupID.String(), batch.LeaseNo))
	})
	if err == nil {
		batch.Ends = end
	}
	return err
}

// fenced checks what a statement that names group_id and lease_no changed.
func fenced(rows int64, err error) error {
	if err == nil && rows == 0 {
		return buffer.ErrLeaseLost
	}
	return err
}

// The fences. Each is the first statement of its transaction and names group_id and lease_no: an owner
// that lost its lease changes nothing.
const (
	closeLedgerSQL = `
DELETE FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'
RETURNING members, newest_at, oldest_at`

	retryWholeSQL = `
UPDATE outbox_batches
SET state = 'waiting', unfinished_leases = 0, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4),
    attempts = ?5, outages = ?6, error = ?7, address = ?8
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'`

	markDeliveredSQL = `
UPDATE outbox_batches
SET state = 'delivered', delivered = ?4, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5)
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'`
)

// settle closes the batch's ledger row, or lets it wait, and calls each for every outcome.
func (l ledger) settle(ctx context.Context, batch *buffer.Lease, all []buffer.Outcome,
	each func(tx transaction, in holding, o *buffer.Outcome) error,
) error {
	set, err := outcomes.Group(batch, all)
	if err != nil {
		return err
	}
	return l.b.write(ctx, "settling a batch", func(tx transaction) error {
		if set.RetriesWhole() {
			o := set.All
			return fenced(tx.exec(ctx, retryWholeSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo,
				db.Seconds(o.After), o.Attempts, o.Outages, o.Error, o.Address))
		}
		var in holding
		err := tx.row(ctx, closeLedgerSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo).Scan(&in.members, &in.newest, &in.oldest)
		if errors.Is(err, sql.ErrNoRows) {
			return buffer.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		for i := range all {
			if err := each(tx, in, &all[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// deleteAgain is how long a batch marked delivered waits before its delete is tried again.
const deleteAgain = time.Second

func (l ledger) markDelivered(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	return l.b.write(ctx, "marking a batch delivered", func(tx transaction) error {
		return fenced(tx.exec(ctx, markDeliveredSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo, idsArg(delivered), db.Seconds(deleteAgain)))
	})
}

// originsOf returns the origins of a part of the batch as a JSON array.
func originsOf(batch *buffer.Lease) (string, error) {
	text, err := json.Marshal(append(slices.Clone(batch.Origins), batch.GroupID))
	return string(text), err
}

// scanClock reads a row that is the database's clock.
func scanClock(row *sql.Row, at *time.Time) error {
	var text string
	if err := row.Scan(&text); err != nil {
		return err
	}
	var err error
	*at, err = time.Parse(db.TimeFormat, text)
	return err
}

const (
	// Only an outage has an address.
	deferredAddressesSQL = `
SELECT DISTINCT address FROM outbox_batches
WHERE buffer = ?1 AND state = 'waiting' AND address IS NOT NULL AND outages > 0`

	// Batches that are due already count against the limit and keep their place.
	retryNowSQL = `
UPDATE outbox_batches SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE due_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND group_id IN (
  SELECT group_id FROM outbox_batches
  WHERE buffer = ?1 AND state = 'waiting' AND address = ?2 AND outages > 0
  ORDER BY due_at LIMIT ?3)`
)

func (l ledger) deferredAddresses(ctx context.Context) ([]string, error) {
	rows, err := l.b.db.QueryContext(ctx, deferredAddressesSQL, l.buffer)
	addresses, err := db.Column[string](rows, err)
	return addresses, l.b.explain(ctx, "listing deferred addresses", err)
}

func (l ledger) retryNow(ctx context.Context, address string, limit int) (due int, err error) {
	if limit == 0 {
		limit = -1 // all
	}
	err = l.b.write(ctx, "making batches due", func(tx transaction) error {
		rows, err := tx.exec(ctx, retryNowSQL, l.buffer, address, limit)
		due = int(rows)
		return err
	})
	return due, err
}
