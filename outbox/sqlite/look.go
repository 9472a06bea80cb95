package sqlite

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

const lookSQL = `
SELECT (SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE id > ?2 AND group_id IS NULL LIMIT ?3)),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM outbox_batches WHERE buffer = ?1`

// Look is described by buffertest.Buffer.
func (b *Buffer) Look(ctx context.Context, limit int) (outbox.Backlog, error) {
	var l outbox.Backlog
	from := b.cursor.from()
	err := b.db.QueryRowContext(ctx, b.names.Replace(lookSQL), b.config.Table, from, limit).
		Scan(&l.Unclaimed, &l.Due, &l.Waiting, &l.Delivered)
	if err != nil {
		return outbox.Backlog{}, b.explain(ctx, "looking at the backlog", err)
	}
	if limit > 0 && l.Unclaimed == 0 {
		b.cursor.nothingBeyond(from)
	}
	return l, nil
}

// The ledger says exactly what is claimed. What is not is counted beyond the
// cursor as far as ?3; for the rest the ids say about how many there are.
const statusSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(events - json_array_length(delivered)), 0) AS claimed,
         min(oldest_at) FILTER (WHERE events > json_array_length(delivered)) AS oldest_at
  FROM outbox_batches WHERE buffer = ?1
), fresh AS (
  SELECT count(*) AS events, max(id) AS last_id, min(created_at) AS oldest_at FROM (
    SELECT id, created_at FROM outbox_events WHERE id > ?2 AND group_id IS NULL
    ORDER BY id LIMIT ?3)
)
SELECT ledger.claimed + fresh.events
         + CASE WHEN fresh.events < ?3 THEN 0 ELSE (SELECT max(id) FROM outbox_events) - fresh.last_id END,
       coalesce((julianday('now') - julianday(
         min(coalesce(ledger.oldest_at, fresh.oldest_at), coalesce(fresh.oldest_at, ledger.oldest_at)))) * 86400, 0.0),
       leased, waiting, delivered,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?4 AND closed_at IS NULL)
FROM ledger, fresh`

// Status is described by buffertest.Buffer.
func (b *Buffer) Status(ctx context.Context) (outbox.Status, error) {
	var (
		s      outbox.Status
		oldest float64
	)
	err := b.db.QueryRowContext(ctx, b.names.Replace(statusSQL), b.config.Table, b.cursor.from(), outbox.PendingExact, b.config.Pipeline).
		Scan(&s.Pending, &oldest, &s.Leased, &s.Waiting, &s.Delivered, &s.Dead)
	if err != nil {
		return outbox.Status{}, b.explain(ctx, "looking at the status", err)
	}
	s.OldestPending = max(0, time.Duration(oldest*float64(time.Second)))
	return s, nil
}
