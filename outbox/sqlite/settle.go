package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// The fences. Each is the first statement of its transaction and names group_id
// and lease_no: an owner that lost its lease touches nothing, and stops there.
const (
	closeLedgerSQL = `
DELETE FROM outbox_batches
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'
RETURNING members, newest_at, oldest_at`

	putBackSQL = `
UPDATE outbox_batches
SET state = 'waiting', unfinished_leases = 0, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?4),
    attempts = ?5, outages = ?6, error = ?7, address = ?8
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'`

	markSQL = `
UPDATE outbox_batches
SET state = 'delivered', delivered = ?4, due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5)
WHERE buffer = ?1 AND group_id = ?2 AND lease_no = ?3 AND state <> 'waiting'`
)

// ?1 to ?5 are an extent.
const (
	deleteSQL = `
DELETE FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)`

	// A restored buffer brings an event back under a group_id that it died under
	// before. A letter that was closed since is no place for it: it is opened anew.
	burySQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error)
SELECT ?7, id, topic, key, payload, headers, created_at, ?6, ?8, ?9
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = excluded.topic, key = excluded.key, payload = excluded.payload, headers = excluded.headers,
    created_at = excluded.created_at, attempts = excluded.attempts, error = excluded.error,
    died_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), notified_at = NULL, closed_at = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	moveSQL = `
UPDATE outbox_events SET group_id = ?6
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)`

	openPartSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address,
                            members, newest_at)
SELECT ?6, ?7, ?8, 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?9), ?10, 0,
       ?11, ?12, count(*), min(id), max(id), coalesce(min(created_at), ?17), ?13, ?14, ?15,
       ?16, ?5
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
HAVING count(*) > 0`
)

// Settle is described by buffertest.Buffer. No row is ever locked for itself
// here, so a marked batch is settled as any other, and ErrLocked never comes.
func (b *Buffer) Settle(ctx context.Context, batch *buffer.Lease, outcomes []buffer.Outcome) error {
	return b.ledger().settle(ctx, batch, outcomes, func(tx transaction, of holding, o buffer.Outcome) error {
		return b.settle(ctx, tx, batch, of, o)
	})
}

// settle closes the batch's ledger row, or puts it back, and has each write one
// outcome down.
func (l ledger) settle(ctx context.Context, batch *buffer.Lease, outcomes []buffer.Outcome, each func(tx transaction, of holding, o buffer.Outcome) error) error {
	for _, o := range outcomes {
		if o.Verdict == buffer.Retry && (o.IDs == nil) != (o.GroupID == batch.GroupID) {
			return fmt.Errorf("settling batch %s: a retry of all of it keeps its group_id, one of a part needs a new one, got %s for ids %v",
				batch.GroupID, o.GroupID, o.IDs)
		}
	}
	return l.b.write(ctx, "settling a batch", func(tx transaction) error {
		if len(outcomes) == 1 && outcomes[0].Verdict == buffer.Retry && outcomes[0].IDs == nil {
			o := outcomes[0]
			return fenced(tx.exec(ctx, putBackSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo,
				seconds(o.After), o.Attempts, o.Outages, o.Error, o.Address))
		}
		var of holding
		err := tx.row(ctx, closeLedgerSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo).Scan(&of.members, &of.newest, &of.oldest)
		if errors.Is(err, sql.ErrNoRows) {
			return buffer.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		for _, o := range outcomes {
			if err := each(tx, of, o); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *Buffer) settle(ctx context.Context, tx transaction, batch *buffer.Lease, of holding, o buffer.Outcome) error {
	which, err := of.extent(batch, o.IDs)
	if err != nil {
		return err
	}
	group := batch.GroupID.String()
	if b.own != nil {
		return b.settleOwn(ctx, tx, batch, of, which, o)
	}
	switch o.Verdict {
	case buffer.Delivered:
		if b.config.Archive != "" {
			if _, err := tx.exec(ctx, archiveSQL, append(which.args(), group)...); err != nil {
				return err
			}
		}
		_, err := tx.exec(ctx, deleteSQL, which.args()...)
		return err
	case buffer.Dead:
		if _, err := tx.exec(ctx, burySQL, append(which.args(), group, b.config.Pipeline, o.Attempts, o.Error)...); err != nil {
			return err
		}
		_, err := tx.exec(ctx, deleteSQL, which.args()...)
		return err
	case buffer.Retry:
		return b.part(ctx, tx, batch, of, which, o)
	}
	return fmt.Errorf("settling batch %s: unknown verdict %v", batch.GroupID, o.Verdict)
}

// part gives some of the batch's events a batch of their own.
func (b *Buffer) part(ctx context.Context, tx transaction, batch *buffer.Lease, of holding, which extent, o buffer.Outcome) error {
	origins, err := originsText(batch)
	if err != nil {
		return err
	}
	claim, members := claimRange, any(nil)
	if which.stamp == nil {
		if members, err = which.held.text(); err != nil {
			return err
		}
	} else {
		claim = claimStamp
		if b.own != nil {
			_, err = tx.exec(ctx, moveOwnSQL, append(tx.shape.own(which, batch.GroupID).args()[:4], tx.shape.stamp(o.GroupID))...)
		} else {
			_, err = tx.exec(ctx, moveSQL, append(which.args(), o.GroupID.String())...)
		}
		if err != nil {
			return err
		}
		which.stamp, which.ids = o.GroupID.String(), nil
	}
	_, err = tx.exec(ctx, openPartSQL, append(which.args(), o.GroupID.String(), b.config.Table, claim, seconds(o.After), b.config.Owner,
		o.Attempts, o.Outages, origins, o.Error, o.Address, members, of.oldest)...)
	if err != nil {
		return err
	}
	return b.fillLanes(ctx, tx)
}

// originsText is the origins of a part of the batch as a JSON array.
func originsText(batch *buffer.Lease) (string, error) {
	text, err := json.Marshal(append(slices.Clone(batch.Origins), batch.GroupID))
	return string(text), err
}

// idsText makes a JSON array of ids; nil stays NULL.
func idsText(ids []int64) (any, error) {
	if ids == nil {
		return nil, nil
	}
	text, err := json.Marshal(ids)
	return string(text), err
}

// markedAgain is how long a marked batch waits before its delete is tried again.
const markedAgain = time.Second

// MarkDelivered is described by buffertest.Buffer.
func (b *Buffer) MarkDelivered(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	return b.ledger().mark(ctx, batch, delivered)
}

func (l ledger) mark(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	ids, err := idsText(delivered)
	if err != nil {
		return err
	}
	return l.b.write(ctx, "marking a batch delivered", func(tx transaction) error {
		return fenced(tx.exec(ctx, markSQL, l.buffer, batch.GroupID.String(), batch.LeaseNo, ids, seconds(markedAgain)))
	})
}
