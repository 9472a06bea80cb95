package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

const lookSQL = `
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM json_each(?2) AS free CROSS JOIN outbox_events AS e
          WHERE e.id BETWEEN json_extract(free.value, '$[0]') AND json_extract(free.value, '$[1]') AND e.group_id IS NULL
          LIMIT ?3)),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM outbox_batches WHERE buffer = ?1`

// Orphaned are events that carry a group_id of ours without a ledger row: a
// restore of one table, a hand.
const orphansSQL = `
SELECT EXISTS (
  SELECT 1 FROM outbox_events AS e
  WHERE group_id GLOB '????????-????-????-????-????????????' AND replace(group_id, '-', '') NOT GLOB '*[^0-9a-f]*'
    AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = e.group_id))`

// They are put back under that group_id, which may have reached the sink before,
// whatever the mode is: a ledger row says for itself how its events are found.
// lease_no begins at the clock, in millionths of a second, so that it is higher
// than any that was lost, even a moment ago.
const adoptSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error)
SELECT group_id, ?1, 'stamp', 'waiting', CAST(unixepoch('now', 'subsec') * 1000000 AS INTEGER), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?2, 0,
       0, 0, count(*), min(id), max(id), coalesce(min(created_at), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), 'found without a ledger row'
FROM outbox_events AS e
WHERE group_id GLOB '????????-????-????-????-????????????' AND replace(group_id, '-', '') NOT GLOB '*[^0-9a-f]*'
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = e.group_id)
GROUP BY group_id
RETURNING events`

// adopt gives orphans a ledger row.
func (b *Buffer) adopt(ctx context.Context, tx transaction) (adopted buffer.Count, err error) {
	rows, err := tx.rows(ctx, adoptSQL, b.config.Table, b.config.Owner)
	if err != nil {
		return adopted, err
	}
	defer rows.Close()
	for rows.Next() {
		var events int64
		if err := rows.Scan(&events); err != nil {
			return adopted, err
		}
		adopted.Batches++
		adopted.Events += events
	}
	return adopted, rows.Err()
}

// sweep begins at the beginning, and gives orphans a ledger row.
func (b *Buffer) sweep(ctx context.Context) error {
	var orphans bool
	err := b.begin(ctx, &sql.TxOptions{ReadOnly: true}, func(tx transaction) error {
		return tx.row(ctx, orphansSQL).Scan(&orphans)
	})
	if err == nil && orphans { // only then is it worth waiting for the write lock
		err = b.transact(ctx, func(tx transaction) error {
			if _, err := b.adopt(ctx, tx); err != nil {
				return err
			}
			return b.fillLanes(ctx, tx)
		})
	}
	if err != nil {
		return b.explain(ctx, "sweeping", err)
	}
	b.cursor.sweep()
	return nil
}

// CountBacklog is described by buffertest.Buffer. At the start, and every few minutes, it
// looks from the beginning.
func (b *Buffer) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	if limit > 0 && b.cursor.sweepDue() {
		if err := b.sweep(ctx); err != nil {
			return buffer.Backlog{}, err
		}
	}
	var l buffer.Backlog
	from := b.cursor.from()
	err := b.read(ctx, "looking at the backlog", func(tx transaction) error {
		free, err := b.free(ctx, tx, from)
		if err != nil {
			return err
		}
		return tx.row(ctx, lookSQL, b.config.Table, free, limit).Scan(&l.Unclaimed, &l.Due, &l.Waiting, &l.Delivered)
	})
	if err != nil {
		return buffer.Backlog{}, err
	}
	if b.config.Ordered && l.Due > 0 {
		if l.Due, err = b.countDue(ctx, l.Due); err != nil {
			return buffer.Backlog{}, b.explain(ctx, "looking at the backlog", err)
		}
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
         coalesce(sum(max(events - json_array_length(delivered), 0)), 0) AS claimed,
         min(oldest_at) FILTER (WHERE events > json_array_length(delivered)) AS oldest_at
  FROM outbox_batches WHERE buffer = ?1
), fresh AS (
  SELECT count(*) AS events, max(id) AS last_id, min(created_at) AS oldest_at FROM (
    SELECT e.id, e.created_at FROM json_each(?2) AS free CROSS JOIN outbox_events AS e
    WHERE e.id BETWEEN json_extract(free.value, '$[0]') AND json_extract(free.value, '$[1]') AND e.group_id IS NULL
    LIMIT ?3)
)
SELECT ledger.claimed + fresh.events
         + CASE WHEN fresh.events < ?3 THEN 0 ELSE (SELECT max(id) FROM outbox_events) - fresh.last_id END,
       coalesce((julianday('now') - julianday(
         min(coalesce(ledger.oldest_at, fresh.oldest_at), coalesce(fresh.oldest_at, ledger.oldest_at)))) * 86400, 0.0),
       leased, waiting, delivered,
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?4 AND closed_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?4 AND closed_at IS NULL AND notified_at IS NULL)
FROM ledger, fresh`

// Status is described by buffertest.Buffer.
func (b *Buffer) Status(ctx context.Context) (buffer.Status, error) {
	var (
		s      buffer.Status
		oldest float64
	)
	err := b.read(ctx, "looking at the status", func(tx transaction) error {
		free, err := b.free(ctx, tx, b.cursor.from())
		if err != nil {
			return err
		}
		return tx.row(ctx, statusSQL, b.config.Table, free, buffer.PendingExact, b.config.Pipeline).
			Scan(&s.Pending, &oldest, &s.Leased, &s.Waiting, &s.Delivered, &s.Dead, &s.Unnotified)
	})
	if err != nil {
		return buffer.Status{}, err
	}
	s.OldestPending = max(0, time.Duration(oldest*float64(time.Second)))
	return s, nil
}
