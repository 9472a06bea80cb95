package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/halves"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// liveColumnsSQL are what scanLive scans.
const liveColumnsSQL = `
SELECT group_id, sink, buffer <> ?1, state, lease_no, (julianday(due_at) - julianday('now')) * 86400,
       owner, attempts, outages, unfinished_leases, ` + anySuspectSQL + `, origins <> '[]', events, json_array_length(delivered), first_id,
       (julianday('now') - julianday(claimed_at)) * 86400, coalesce(error, ''), address`

const (
	listLiveSQL = liveColumnsSQL + `, count(*) OVER ()
FROM outbox_batches WHERE buffer IN (?1, ?2)
ORDER BY claimed_at DESC, group_id LIMIT ?3`

	liveSQL = liveColumnsSQL + `, 1
FROM outbox_batches WHERE buffer IN (?1, ?2) AND group_id = ?3`
)

// scanLive scans a row of liveColumnsSQL with a count.
func scanLive(row interface{ Scan(to ...any) error }, b *buffer.LiveBatch, total *int64) error {
	var due, age sql.NullFloat64
	err := row.Scan(&b.GroupID, &b.Sink, &b.Hook, &b.State, &b.LeaseNo, &due, &b.Owner, &b.Attempts, &b.Outages, &b.UnfinishedLeases, &b.Suspect, &b.Parted,
		&b.Events, &b.Delivered, &b.FirstID, &age, &b.Error, &b.Address, total)
	b.Age, b.Due = seconds(age.Float64), math.MaxInt64
	if due.Valid && due.Float64 < math.MaxInt64/float64(time.Second) {
		b.Due = time.Duration(due.Float64 * float64(time.Second))
	}
	return err
}

// ListBatches implements buffer.LiveBatches.
func (b *Buffer) ListBatches(ctx context.Context, limit int) (batches []buffer.LiveBatch, total int64, err error) {
	err = b.read(ctx, "listing batches", func(tx transaction) error {
		rows, err := tx.rows(ctx, listLiveSQL, b.config.Table, b.config.Table+queueSuffix, limit)
		batches, err = db.All(rows, err, func(rows *sql.Rows, one *buffer.LiveBatch) error { return scanLive(rows, one, &total) })
		return err
	})
	return batches, total, err
}

// LiveBatch implements buffer.LiveBatches.
func (b *Buffer) LiveBatch(ctx context.Context, groupID uuid.UUID) (live buffer.LiveBatch, ok bool, err error) {
	err = b.read(ctx, "reading a batch", func(tx transaction) (err error) {
		live, ok, err = b.liveBatch(ctx, tx, groupID)
		return err
	})
	return live, ok, err
}

func (b *Buffer) liveBatch(ctx context.Context, tx transaction, groupID uuid.UUID) (live buffer.LiveBatch, ok bool, err error) {
	var one int64
	err = scanLive(tx.row(ctx, liveSQL, b.config.Table, b.config.Table+queueSuffix, groupID.String()), &live, &one)
	if errors.Is(err, sql.ErrNoRows) {
		return live, false, nil
	}
	return live, err == nil, err
}

const viewSQL = `
SELECT ` + takenColumnsSQL + `
FROM outbox_batches WHERE buffer = ?1 AND group_id = ?2`

// BatchEvents implements buffer.LiveBatches.
func (b *Buffer) BatchEvents(ctx context.Context, groupID uuid.UUID, limit int) (*buffer.Lease, error) {
	batch := &buffer.Lease{Batch: buffer.Batch{Pipeline: b.config.Pipeline}}
	err := b.read(ctx, "reading a batch", func(tx transaction) error {
		if err := scanTaken(tx.row(ctx, viewSQL, b.config.Table, groupID.String()), batch); err != nil {
			return err
		}
		batch.Delivered = nil // they are shown, as the others are
		var (
			count int
			in    holding
		)
		if err := tx.row(ctx, holdingSQL, b.config.Table, groupID.String(), batch.LeaseNo).Scan(append([]any{&count}, in.columns()...)...); err != nil {
			return err
		}
		return b.events.load(ctx, tx, batch, in, count)
	})
	if errors.Is(err, errNothing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if batch.NotRead == nil {
		b.events.project(ctx, batch, peekTimeout)
	}
	batch.Events, batch.Rejected = batch.Events[:min(len(batch.Events), limit)], batch.Rejected[:min(len(batch.Rejected), limit)]
	return batch, nil
}

const retryBatchSQL = `
UPDATE outbox_batches SET due_at = min(due_at, strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), owner = ?4
WHERE buffer IN (?1, ?2) AND group_id = ?3 AND state = 'waiting'`

// RetryBatch implements buffer.LiveBatches.
func (b *Buffer) RetryBatch(ctx context.Context, groupID uuid.UUID, request string) error {
	return b.write(ctx, "retrying a batch", func(tx transaction) error {
		rows, err := tx.exec(ctx, retryBatchSQL, b.config.Table, b.config.Table+queueSuffix, groupID.String(), request)
		if err == nil && rows == 0 {
			err = buffer.ErrNotWaiting
		}
		return err
	})
}

// leaseWaitingSQL leases a batch that waits. It is not sent, so its unfinished leases stay what they were.
const leaseWaitingSQL = `
UPDATE outbox_batches SET state = 'leased', lease_no = lease_no + 1, owner = ?2, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?3)
WHERE buffer = ?1 AND group_id = ?4 AND state = 'waiting'` + takenSQL

// DivideBatch implements buffer.LiveBatches.
func (b *Buffer) DivideBatch(ctx context.Context, groupID uuid.UUID, doubled bool) error {
	var (
		live    buffer.LiveBatch
		ordered bool
		refused error
	)
	batch, err := b.take(ctx, halves.Lease, func(tx transaction) (*sql.Row, error) {
		var err error
		if live, _, err = b.liveBatch(ctx, tx, groupID); err != nil { // one that is gone has no state
			return nil, err
		}
		if refused = halves.Check(&live, doubled); refused == nil {
			ordered, refused = b.orderOf(live.Sink)
		}
		if refused != nil {
			return nil, errNothing
		}
		if err := b.own(ctx, tx); err != nil {
			return nil, err
		}
		return tx.row(ctx, leaseWaitingSQL, b.config.Table, b.config.Owner, db.Seconds(halves.Lease), groupID.String()), nil
	})
	if batch == nil {
		return cmp.Or(err, refused)
	}
	err = b.load(ctx, batch, b.topicsLoader(ctx))
	if err == nil {
		err = b.Settle(ctx, batch, halves.Outcomes(&live, batch, ordered))
	}
	if err == nil || errors.Is(err, buffer.ErrLeaseLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), halves.PutBackTimeout)
	defer cancel()
	if putBack := b.Settle(ctx, batch, halves.PutBack(&live, batch)); putBack != nil { // its lease ends
		err = errors.Join(err, putBack)
	}
	return err
}

// orderOf reports whether a sink keeps order by key. The error says that it is not in the configuration.
func (b *Buffer) orderOf(sink string) (ordered bool, err error) {
	if sink == singleSink && b.config.Sinks == nil {
		return b.config.Ordered, nil
	}
	for i := range b.config.Sinks {
		if r := &b.config.Sinks[i]; (ledger{b: b, sink: r.Sink}).sinkName() == sink {
			return r.Ordered, nil
		}
	}
	return false, fmt.Errorf("its sink, %s, is not in the configuration of this relay", sink)
}
