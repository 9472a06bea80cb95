package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/outcomes"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/watermark"
)

// DeadLetterQueue is the dead letters of a pipeline as the buffer of its dead-letter hook. A claim stamps
// hook_group_id on dead letters; the batch is in the ledger under a buffer name of its own.
type DeadLetterQueue struct {
	ledger
	cursor *watermark.Cursor // says only when to sweep
}

// DeadLetterQueue returns the queue of b's pipeline. It shares b's connections.
func (b *Buffer) DeadLetterQueue() buffer.Queue { return b.SinkDeadLetterQueue(singleSink) }

// SinkDeadLetterQueue implements buffer.SinkHooks.
func (b *Buffer) SinkDeadLetterQueue(sink string) buffer.Queue {
	return &DeadLetterQueue{ledger{b, b.config.Table + queueSuffix, sink}, watermark.NewCursor()}
}

var _ buffer.SinkHooks = (*Buffer)(nil)

// queueSuffix makes the buffer name of a dead-letter queue in the ledger.
const queueSuffix = " dead letters"

// Check implements buffer.Inspector.
func (q *DeadLetterQueue) Check(ctx context.Context) error { return q.b.Check(ctx) }

// Each queue claims the dead letters of one hook: ?3 is the sink whose hook it is, with the names that the sink had before, and 'default' is the
// pipeline's. The registry says which sinks have a hook, not the process: of two relays only one may know it. ?4 is the table.
const ofHookSQL = `
  AND (sink IN (
    SELECT name.value FROM outbox_sinks AS s, json_each(json_insert(s.formerly, '$[#]', s.sink)) AS name
    WHERE s.buffer = ?4 AND s.hook AND s.dropped_at IS NULL AND ?3 IN ('default', s.sink))) = (?3 <> 'default')`

const (
	// If an event has several dead letters, a batch takes the one that min finds; the other columns are
	// from its row.
	pickDeadLettersSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, min(group_id), attempts, error, died_at, notified_at, closed_at, closed_as, closed_by, closed_reason, sink, NULL, NULL
FROM outbox_dead_letters
WHERE pipeline = ?1 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL` + ofHookSQL + `
GROUP BY event_id ORDER BY event_id LIMIT ?2`

	stampDeadLettersSQL = `
UPDATE outbox_dead_letters SET hook_group_id = ?1
WHERE rowid IN (SELECT value FROM json_each(?2))`
)

// Claim implements buffer.Claimer. The column of the payloads is not JSON, so PayloadIsJSON is false.
func (q *DeadLetterQueue) Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	batch := q.newLease(lease)
	err := q.b.write(ctx, "claiming dead letters", func(tx transaction) error {
		if err := q.b.own(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.rows(ctx, pickDeadLettersSQL, q.b.config.Pipeline, limit, q.sinkName(), q.b.config.Table)
		events, rowids, cut, err := scanDeadLetters(rows, err, limit)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			return errNothing
		}
		setDeadLetters(&batch.Batch, events)
		batch.Cut = cut
		if _, err := tx.exec(ctx, stampDeadLettersSQL, batch.GroupID.String(), idset.JSONIDs(rowids)); err != nil {
			return err
		}
		return q.open(ctx, tx, batch, lease, nil, func(i int) (died, _ time.Time) { return events[i].DiedAt, events[i].DiedAt })
	})
	return leased(batch, err)
}

// The contents are left out if ?3 is false.
const deadLettersOfSQL = `
SELECT rowid, event_id, topic, CASE WHEN ?3 THEN key END, CASE WHEN ?3 THEN payload END, CASE WHEN ?3 THEN headers END, created_at,
       pipeline, group_id, attempts, error, died_at, notified_at, closed_at, closed_as, closed_by, closed_reason, sink, NULL, NULL
FROM outbox_dead_letters WHERE pipeline = ?2 AND hook_group_id = ?1 AND notified_at IS NULL
ORDER BY event_id`

// TakeOver implements buffer.Claimer.
func (q *DeadLetterQueue) TakeOver(ctx context.Context, lease time.Duration, due buffer.Due) (*buffer.Lease, error) {
	return q.takeOver(ctx, lease, due, q.loader(ctx))
}

// Read implements buffer.Claimer.
func (q *DeadLetterQueue) Read(ctx context.Context, batch *buffer.Lease) error {
	batch.NotRead = nil
	if err := q.load(ctx, batch, q.loader(ctx)); err != nil {
		batch.NotRead = err
	}
	return batch.NotRead
}

func (q *DeadLetterQueue) loader(ctx context.Context) loader {
	return func(tx transaction, batch *buffer.Lease, _ holding, count int) error {
		fill := func(contents bool) error {
			rows, err := tx.rows(ctx, deadLettersOfSQL, batch.GroupID.String(), q.b.config.Pipeline, contents)
			events, _, cut, err := scanDeadLetters(rows, err, count)
			batch.Events, batch.DeadLetters, batch.Cut = nil, nil, cut
			setDeadLetters(&batch.Batch, events)
			return err
		}
		return readUnless(batch, func() error { return fill(false) }, func() error { return fill(true) })
	}
}

func setDeadLetters(batch *buffer.Batch, all []buffer.DeadEvent) {
	for i := range all {
		batch.Events, batch.DeadLetters = append(batch.Events, all[i].Event), append(batch.DeadLetters, &all[i].DeadLetter)
	}
}

// ?3 is the event ids meant as a JSON array, or NULL for all of the batch.
const (
	markNotifiedSQL = `
UPDATE outbox_dead_letters SET notified_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE pipeline = ?2 AND hook_group_id = ?1 AND notified_at IS NULL
  AND (?3 IS NULL OR event_id IN (SELECT value FROM json_each(?3)))`

	regroupDeadLettersSQL = `
UPDATE outbox_dead_letters SET hook_group_id = ?4
WHERE pipeline = ?2 AND hook_group_id = ?1 AND notified_at IS NULL
  AND (?3 IS NULL OR event_id IN (SELECT value FROM json_each(?3)))`

	openQueuePartSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, origins, error, address, sink)
SELECT ?1, ?2, 'stamp', 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?3), ?4, ?11,
       ?5, ?6, count(*), min(event_id), max(event_id), min(died_at), ?7, ?8, ?9, ?12
FROM outbox_dead_letters WHERE pipeline = ?10 AND hook_group_id = ?1 AND notified_at IS NULL
HAVING count(*) > 0`
)

// Settle implements buffer.Settler.
func (q *DeadLetterQueue) Settle(ctx context.Context, batch *buffer.Lease, all []buffer.Outcome) error {
	return q.settle(ctx, batch, all, func(tx transaction, in holding, _ *outcomes.Set) error {
		for i := range all {
			if err := q.settleOne(ctx, tx, batch, in, &all[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (q *DeadLetterQueue) settleOne(ctx context.Context, tx transaction, batch *buffer.Lease, in holding, o *buffer.Outcome) error {
	which := []any{batch.GroupID.String(), q.b.config.Pipeline, idsArg(o.IDs)}
	switch o.Verdict {
	case buffer.Delivered:
		_, err := tx.exec(ctx, markNotifiedSQL, which...)
		return err
	case buffer.Retry:
		if _, err := tx.exec(ctx, regroupDeadLettersSQL, append(which, o.GroupID.String())...); err != nil {
			return err
		}
		origins, err := originsOf(batch)
		if err != nil {
			return err
		}
		_, err = tx.exec(ctx, openQueuePartSQL, o.GroupID.String(), q.buffer, db.Seconds(o.After), q.b.config.Owner,
			o.Attempts, o.Outages, origins, o.Error, o.Address, q.b.config.Pipeline, o.UnfinishedLeases, in.sink)
		return err
	}
	return fmt.Errorf("settling batch %s of dead letters: verdict is %v; expected delivered or retry", batch.GroupID, o.Verdict)
}

const (
	countQueueSQL = `
SELECT (SELECT count(*) FROM (
          SELECT 1 FROM outbox_dead_letters
          WHERE pipeline = ?1 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL` + ofHookSQL + `
          LIMIT ?5)),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND NOT ` + suspectSQL + `),
       count(*) FILTER (WHERE due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now') AND ` + suspectSQL + `),
       count(*) FILTER (WHERE state = 'waiting'),
       count(*) FILTER (WHERE state = 'delivered')
FROM outbox_batches WHERE buffer = ?2 AND sink = ?3`

	// Orphaned dead letters carry a hook_group_id without a ledger row, as after a restore of one table or
	// a manual change. They are claimed again under a new group_id.
	hasOrphanedSQL = `
SELECT EXISTS (
  SELECT 1 FROM outbox_dead_letters
  WHERE pipeline = ?1 AND hook_group_id IS NOT NULL AND notified_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = outbox_dead_letters.hook_group_id))`

	releaseOrphanedSQL = `
UPDATE outbox_dead_letters SET hook_group_id = NULL
WHERE pipeline = ?1 AND hook_group_id IS NOT NULL AND notified_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = outbox_dead_letters.hook_group_id)`

	queueStatusSQL = `
WITH ledger AS (
  SELECT count(*) FILTER (WHERE state = 'leased') AS leased,
         count(*) FILTER (WHERE state = 'waiting') AS waiting,
         count(*) FILTER (WHERE state = 'delivered') AS delivered,
         coalesce(sum(max(events - json_array_length(delivered), 0)), 0) AS claimed,
         min(oldest_at) FILTER (WHERE events > json_array_length(delivered)) AS oldest_at
  FROM outbox_batches WHERE buffer = ?2 AND sink = ?3
), fresh AS (
  SELECT count(*) AS events, min(died_at) AS oldest_at FROM outbox_dead_letters
  WHERE pipeline = ?1 AND closed_at IS NULL AND notified_at IS NULL AND hook_group_id IS NULL` + ofHookSQL + `
)
SELECT ledger.claimed + fresh.events,
       coalesce((julianday('now') - julianday(
         min(coalesce(ledger.oldest_at, fresh.oldest_at), coalesce(fresh.oldest_at, ledger.oldest_at)))) * 86400, 0.0),
       leased, waiting, delivered
FROM ledger, fresh`
)

// CountBacklog implements buffer.Inspector.
func (q *DeadLetterQueue) CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error) {
	if limit > 0 && q.cursor.SweepDue() {
		if err := q.sweep(ctx); err != nil {
			return buffer.Backlog{}, err
		}
	}
	var backlog buffer.Backlog
	err := q.b.db.QueryRowContext(ctx, countQueueSQL, q.b.config.Pipeline, q.buffer, q.sinkName(), q.b.config.Table, limit).
		Scan(&backlog.Unclaimed, &backlog.Due, &backlog.Suspects, &backlog.Waiting, &backlog.Delivered)
	return backlog, q.b.explain(ctx, "counting unnotified dead letters", err)
}

// The pipeline has a single sink again. What waits for a hook of one of several comes to the pipeline's.
const (
	hasHooksSQL = `
SELECT EXISTS (SELECT 1 FROM outbox_batches WHERE buffer = ?2 AND sink <> 'default')
   AND NOT EXISTS (SELECT 1 FROM outbox_buffers WHERE buffer = ?1 AND routed)`

	takeHooksSQL = `
UPDATE outbox_batches SET sink = 'default'
WHERE buffer = ?2 AND sink <> 'default' AND NOT EXISTS (SELECT 1 FROM outbox_buffers WHERE buffer = ?1 AND routed)`
)

// takeHooks gives the pipeline's hook the batches of others.
func (q *DeadLetterQueue) takeHooks(ctx context.Context) error {
	var others bool
	err := q.b.db.QueryRowContext(ctx, hasHooksSQL, q.b.config.Table, q.buffer).Scan(&others)
	if err != nil || !others {
		return err
	}
	return q.b.begin(ctx, q.b.db, nil, func(tx transaction) error {
		_, err := tx.exec(ctx, takeHooksSQL, q.b.config.Table, q.buffer)
		return err
	})
}

// sweep releases orphaned dead letters.
func (q *DeadLetterQueue) sweep(ctx context.Context) error {
	var orphaned bool
	err := q.b.db.QueryRowContext(ctx, hasOrphanedSQL, q.b.config.Pipeline).Scan(&orphaned)
	if err == nil && q.b.config.Sinks == nil {
		err = q.takeHooks(ctx)
	}
	if err == nil && orphaned { // otherwise it is not worth waiting for the write lock
		err = q.b.begin(ctx, q.b.db, nil, func(tx transaction) error {
			_, err := tx.exec(ctx, releaseOrphanedSQL, q.b.config.Pipeline)
			return err
		})
	}
	if err != nil {
		return q.b.explain(ctx, "sweeping dead letters", err)
	}
	q.cursor.Swept()
	return nil
}

// Status implements buffer.Inspector. The oldest dead letter's age is the time since it died.
func (q *DeadLetterQueue) Status(ctx context.Context) (buffer.Status, error) {
	var (
		s      buffer.Status
		oldest float64
	)
	err := q.b.db.QueryRowContext(ctx, queueStatusSQL, q.b.config.Pipeline, q.buffer, q.sinkName(), q.b.config.Table).
		Scan(&s.Pending, &oldest, &s.Leased, &s.Waiting, &s.Delivered)
	s.OldestPending = max(0, time.Duration(oldest*float64(time.Second)))
	return s, q.b.explain(ctx, "reading the status of dead letters", err)
}
