package sqlite

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const lookLettersSQL = `
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM outbox_dead_letters
          WHERE pipeline = ?2 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL LIMIT ?3)),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM outbox_batches WHERE buffer = ?1`

// Letters whose ledger row is gone: a restore of one table, a hand. They are told
// under a new group_id.
const (
	strayLettersSQL = `
SELECT EXISTS (
  SELECT 1 FROM outbox_dead_letters
  WHERE pipeline = ?1 AND hook_group_id IS NOT NULL AND notified_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = outbox_dead_letters.hook_group_id))`

	freeLettersSQL = `
UPDATE outbox_dead_letters SET hook_group_id = NULL
WHERE pipeline = ?1 AND hook_group_id IS NOT NULL AND notified_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = outbox_dead_letters.hook_group_id)`
)

// CountBacklog is described by buffertest.Hook.
func (h *Hook) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	if limit > 0 && h.cursor.sweepDue() {
		if err := h.sweep(ctx); err != nil {
			return buffer.Backlog{}, err
		}
	}
	var l buffer.Backlog
	err := h.b.db.QueryRowContext(ctx, lookLettersSQL, h.ledger().buffer, h.b.config.Pipeline, limit).
		Scan(&l.Unclaimed, &l.Due, &l.Waiting, &l.Delivered)
	return l, h.b.explain(ctx, "looking at untold dead letters", err)
}

// sweep frees letters whose ledger row is gone.
func (h *Hook) sweep(ctx context.Context) error {
	var strays bool
	err := h.b.db.QueryRowContext(ctx, strayLettersSQL, h.b.config.Pipeline).Scan(&strays)
	if err == nil && strays { // only then is it worth waiting for the write lock
		err = h.b.transact(ctx, func(tx transaction) error {
			_, err := tx.exec(ctx, freeLettersSQL, h.b.config.Pipeline)
			return err
		})
	}
	if err != nil {
		return h.b.explain(ctx, "sweeping dead letters", err)
	}
	h.cursor.sweep()
	return nil
}

const lettersStatusSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(max(events - json_array_length(delivered), 0)), 0) AS claimed,
         min(oldest_at) FILTER (WHERE events > json_array_length(delivered)) AS oldest_at
  FROM outbox_batches WHERE buffer = ?1
), fresh AS (
  SELECT count(*) AS events, min(died_at) AS oldest_at FROM outbox_dead_letters
  WHERE pipeline = ?2 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL
)
SELECT ledger.claimed + fresh.events,
       coalesce((julianday('now') - julianday(
         min(coalesce(ledger.oldest_at, fresh.oldest_at), coalesce(fresh.oldest_at, ledger.oldest_at)))) * 86400, 0.0),
       leased, waiting, delivered
FROM ledger, fresh`

// Status is described by buffertest.Hook. The oldest letter's age is the time
// since it died.
func (h *Hook) Status(ctx context.Context) (buffer.Status, error) {
	var (
		s      buffer.Status
		oldest float64
	)
	err := h.b.db.QueryRowContext(ctx, lettersStatusSQL, h.ledger().buffer, h.b.config.Pipeline).
		Scan(&s.Pending, &oldest, &s.Leased, &s.Waiting, &s.Delivered)
	if err != nil {
		return buffer.Status{}, h.b.explain(ctx, "looking at the status of dead letters", err)
	}
	s.OldestPending = max(0, time.Duration(oldest*float64(time.Second)))
	return s, nil
}
