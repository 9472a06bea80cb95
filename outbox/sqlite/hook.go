package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Hook is a pipeline's dead letters as the buffer of its dead-letter hook.
//
// It works as the buffer itself does: a claim stamps hook_group_id on letters,
// whose batch is in the ledger under a name of its own.
type Hook struct {
	b      *Buffer
	cursor cursor // says only when to sweep
}

// Hook returns the dead letters of b's pipeline as the buffer of its hook; see
// buffertest.Hook. It shares b's connections.
func (b *Buffer) Hook() *Hook { return &Hook{b: b} }

// lettersSuffix makes the name that the ledger has for a buffer's dead letters.
const lettersSuffix = " dead letters"

func (h *Hook) ledger() ledger { return ledger{h.b, h.b.config.Table + lettersSuffix} }

// Check is described by buffertest.Buffer.
func (h *Hook) Check(ctx context.Context) error { return h.b.Check(ctx) }

// Of letters of one event a batch takes the one that min finds; the other columns
// are from its row.
const pickLettersSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, min(group_id), attempts, error, died_at, notified_at, closed_at
FROM outbox_dead_letters
WHERE pipeline = ?1 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL
GROUP BY event_id ORDER BY event_id LIMIT ?2`

const stampLettersSQL = `
UPDATE outbox_dead_letters SET hook_group_id = ?1
WHERE rowid IN (SELECT value FROM json_each(?2))`

const openLettersLedgerSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at)
VALUES (?1, ?2, 'stamp', 'leased', 1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?3), ?4, 1,
        0, 0, ?5, ?6, ?7, ?8)
RETURNING claimed_at`

// Claim is described by buffertest.Hook. Letters' payloads are text or bytes, so
// nothing vouches for their being JSON.
func (h *Hook) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch := &buffer.Lease{
		Batch: buffer.Batch{GroupID: buffer.NewGroupID(), Pipeline: h.b.config.Pipeline}, LeaseNo: 1, UnfinishedLeases: 1, Ends: leaseEnd(time.Now(), lease),
	}
	err := h.b.write(ctx, "claiming dead letters", func(tx transaction) error {
		rows, err := tx.rows(ctx, pickLettersSQL, h.b.config.Pipeline, limit)
		if err != nil {
			return err
		}
		events, rowids, err := scanLetters(rows, limit)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return errNothing
		}
		batch.Events, batch.FirstID, batch.LastID = events, events[0].ID, events[len(events)-1].ID
		letters, err := idsText(rowids)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, stampLettersSQL, batch.GroupID.String(), letters); err != nil {
			return err
		}
		oldest := events[0].DeadLetter.DiedAt
		for i := range events {
			if at := events[i].DeadLetter.DiedAt; at.Before(oldest) {
				oldest = at
			}
		}
		var claimedAt string
		err = tx.row(ctx, openLettersLedgerSQL, batch.GroupID.String(), h.ledger().buffer, seconds(lease), h.b.config.Owner,
			len(events), batch.FirstID, batch.LastID, oldest.Format(timeFormat)).Scan(&claimedAt)
		if err != nil {
			return err
		}
		batch.ClaimedAt, err = time.Parse(timeFormat, claimedAt)
		return err
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

const lettersOfSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, group_id, attempts, error, died_at, notified_at, closed_at
FROM outbox_dead_letters WHERE pipeline = ?2 AND hook_group_id = ?1 AND notified_at IS NULL
ORDER BY event_id`

// TakeOver is described by buffertest.Hook.
func (h *Hook) TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error) {
	return h.ledger().takeOver(ctx, lease, func(tx transaction, batch *buffer.Lease, count int, _ holding) error {
		rows, err := tx.rows(ctx, lettersOfSQL, batch.GroupID.String(), h.b.config.Pipeline)
		if err != nil {
			return err
		}
		batch.Events, _, err = scanLetters(rows, count)
		return err
	})
}

// Renew is described by buffertest.Hook.
func (h *Hook) Renew(ctx context.Context, batch *buffer.Lease, lease time.Duration) error {
	return h.ledger().renew(ctx, batch, lease)
}

// ?3 is the event ids meant as a JSON array, or NULL for all of the batch.
const (
	tellSQL = `
UPDATE outbox_dead_letters SET notified_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE pipeline = ?2 AND hook_group_id = ?1 AND notified_at IS NULL
  AND (?3 IS NULL OR event_id IN (SELECT value FROM json_each(?3)))`

	moveLettersSQL = `
UPDATE outbox_dead_letters SET hook_group_id = ?4
WHERE pipeline = ?2 AND hook_group_id = ?1 AND notified_at IS NULL
  AND (?3 IS NULL OR event_id IN (SELECT value FROM json_each(?3)))`

	openLettersPartSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address)
SELECT ?1, ?2, 'stamp', 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?3), ?4, 0,
       ?5, ?6, count(*), min(event_id), max(event_id), min(died_at), ?7, ?8, ?9
FROM outbox_dead_letters WHERE pipeline = ?10 AND hook_group_id = ?1 AND notified_at IS NULL
HAVING count(*) > 0`
)

// Settle is described by buffertest.Hook.
func (h *Hook) Settle(ctx context.Context, batch *buffer.Lease, outcomes []buffer.Outcome) error {
	l := h.ledger()
	return l.settle(ctx, batch, outcomes, func(tx transaction, _ holding, o buffer.Outcome) error {
		ids, err := idsText(o.IDs)
		if err != nil {
			return err
		}
		of := []any{batch.GroupID.String(), h.b.config.Pipeline, ids}
		switch o.Verdict {
		case buffer.Delivered:
			_, err := tx.exec(ctx, tellSQL, of...)
			return err
		case buffer.Retry:
			if _, err := tx.exec(ctx, moveLettersSQL, append(of, o.GroupID.String())...); err != nil {
				return err
			}
			origins, err := originsText(batch)
			if err != nil {
				return err
			}
			_, err = tx.exec(ctx, openLettersPartSQL, o.GroupID.String(), l.buffer, seconds(o.After), h.b.config.Owner,
				o.Attempts, o.Outages, origins, o.Error, o.Address, h.b.config.Pipeline)
			return err
		}
		return fmt.Errorf("settling batch %s of dead letters: %v is no outcome of theirs", batch.GroupID, o.Verdict)
	})
}

// MarkDelivered is described by buffertest.Hook.
func (h *Hook) MarkDelivered(ctx context.Context, batch *buffer.Lease, delivered []int64) error {
	return h.ledger().mark(ctx, batch, delivered)
}

// DeferredAddresses is described by buffertest.Hook.
func (h *Hook) DeferredAddresses(ctx context.Context) ([]string, error) { return h.ledger().away(ctx) }

// RetryNow is described by buffertest.Hook.
func (h *Hook) RetryNow(ctx context.Context, address string, limit int) (int, error) {
	return h.ledger().wake(ctx, address, limit)
}
