package sqlite

import (
	"context"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// heldSQL is the events of each batch: the members of its ledger row and the events that carry its
// group_id, even outside the ledger row's bounds. Those of a batch that has a claim_id carry that.
const heldSQL = `
  SELECT group_id, sum(events) AS events, sum(unstamped) AS unstamped,
         min(first_id) AS first_id, max(last_id) AS last_id, min(oldest_at) AS oldest_at
  FROM (
    SELECT group_id, count(*) AS events, 0 AS unstamped, min(id) AS first_id, max(id) AS last_id, min(` + waitingSinceSQL + `) AS oldest_at
    FROM outbox_events AS e WHERE group_id IS NOT NULL AND` + unheldSQL + `
    GROUP BY group_id
    UNION ALL
    SELECT l.group_id, count(*), 0, min(e.id), max(e.id), min(max(e.created_at, coalesce(e.available_at, '')))
    FROM outbox_batches AS l CROSS JOIN json_each(l.members) AS run CROSS JOIN outbox_events AS e
    WHERE l.buffer = ?1 AND l.claim = 'stamp' AND e.group_id = l.claim_id
      AND e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]')
    GROUP BY l.group_id
    UNION ALL
    SELECT l.group_id, count(*), count(*) FILTER (WHERE e.available_at IS NULL OR e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
           min(e.id), max(e.id), min(max(e.created_at, coalesce(e.available_at, '')))
    FROM outbox_batches AS l CROSS JOIN json_each(l.members) AS run CROSS JOIN outbox_events AS e
    WHERE l.buffer = ?1 AND e.group_id IS NULL AND e.created_at <= l.newest_at
      AND e.id BETWEEN json_extract(run.value, '$[0]') AND json_extract(run.value, '$[1]')
    GROUP BY l.group_id
  ) GROUP BY group_id
`

// One statement, one snapshot. A ledger row whose bounds leave out some of its events is miscounted
// too: the bounds would not find them.
const auditSQL = `
WITH held AS MATERIALIZED (` + heldSQL + `), ledger AS MATERIALIZED (
  SELECT l.state, coalesce(h.events, 0) AS events,
         h.events IS NOT NULL AND (h.events <> l.events OR h.first_id < l.first_id OR h.last_id > l.last_id) AS miscounted,
         l.sink = '*' AND l.state = 'waiting' AND l.due_at = ` + never + ` AS kept
  FROM outbox_batches AS l LEFT JOIN held AS h USING (group_id) WHERE l.buffer = ?1
), orphans AS MATERIALIZED (
  SELECT events FROM held WHERE NOT EXISTS (SELECT 1 FROM outbox_batches WHERE group_id = held.group_id)
)
SELECT (SELECT count(*) FROM outbox_events AS e
        WHERE e.group_id IS NULL AND (e.available_at IS NULL OR e.available_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))) - (SELECT coalesce(sum(unstamped), 0) FROM held),
       (SELECT count(*) FROM outbox_events AS e WHERE e.group_id IS NULL AND e.available_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
       count(*) FILTER (WHERE state = 'leased'), coalesce(sum(events) FILTER (WHERE state = 'leased'), 0),
       count(*) FILTER (WHERE state = 'waiting'), coalesce(sum(events) FILTER (WHERE state = 'waiting'), 0),
       count(*) FILTER (WHERE state = 'delivered'), coalesce(sum(events) FILTER (WHERE state = 'delivered'), 0),
       (SELECT count(*) FROM outbox_batches AS l, json_each(l.delivered) AS d, outbox_events AS e
        WHERE l.buffer = ?1 AND l.state = 'delivered' AND e.id = d.value
          AND (e.group_id = l.group_id OR e.group_id = l.claim_id OR l.members IS NOT NULL AND e.group_id IS NULL AND e.created_at <= l.newest_at)),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?2 AND closed_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?2 AND closed_at IS NULL AND notified_at IS NULL),
       (SELECT count(*) FROM outbox_dead_letters WHERE pipeline = ?2 AND closed_at IS NOT NULL),
       (SELECT count(*) FROM orphans), (SELECT coalesce(sum(events), 0) FROM orphans),
       count(*) FILTER (WHERE events = 0 AND NOT kept), count(*) FILTER (WHERE miscounted AND NOT kept), count(*) FILTER (WHERE (events = 0 OR miscounted) AND kept)
FROM ledger`

// Audit implements buffer.Auditor. A group_id that is not a uuid counts as an orphan too.
func (b *Buffer) Audit(ctx context.Context) (a buffer.Audit, err error) {
	err = b.read(ctx, "auditing", func(tx transaction) error {
		err := tx.row(ctx, auditSQL, b.config.Table, b.config.Pipeline).Scan(
			&a.Unclaimed, &a.Delayed, &a.Leased.Batches, &a.Leased.Events, &a.Waiting.Batches, &a.Waiting.Events,
			&a.Delivered.Batches, &a.Delivered.Events, &a.DeliveredEvents, &a.Dead.Open, &a.Dead.Unnotified, &a.Dead.Closed,
			&a.Orphaned.Batches, &a.Orphaned.Events, &a.EmptyBatches, &a.Miscounted, &a.KeptDeleted)
		if err != nil || b.config.Sinks == nil {
			return err
		}
		return b.auditSinks(ctx, tx, &a)
	})
	return a, err
}

// A batch marked delivered may be leased as well; then its due_at lies in the future.
const (
	removeEmptySQL = `
WITH held AS MATERIALIZED (` + heldSQL + `)
DELETE FROM outbox_batches
WHERE buffer = ?1 AND (state = 'waiting' OR due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
  AND group_id NOT IN (SELECT group_id FROM held)`

	correctCountsSQL = `
WITH held AS MATERIALIZED (` + heldSQL + `)
UPDATE outbox_batches
SET events = h.events, first_id = h.first_id, last_id = h.last_id, oldest_at = coalesce(h.oldest_at, outbox_batches.oldest_at), lanes = NULL
FROM held AS h
WHERE h.group_id = outbox_batches.group_id AND buffer = ?1
  AND (state = 'waiting' OR due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
  AND (h.events <> outbox_batches.events OR h.first_id < outbox_batches.first_id OR h.last_id > outbox_batches.last_id)`
)

// Repair implements buffer.Auditor.
func (b *Buffer) Repair(ctx context.Context) (buffer.Repair, error) {
	a, err := b.Audit(ctx)
	if err != nil || a.Agrees() && a.KeptDeleted == 0 { // otherwise it would keep all others from writing for nothing
		return buffer.Repair{}, err
	}
	var r buffer.Repair
	err = b.write(ctx, "repairing", func(tx transaction) (err error) {
		if r.Adopted, r.Cleared, err = b.adopt(ctx, tx); err != nil {
			return err
		}
		if r.Removed, err = tx.exec(ctx, removeEmptySQL, b.config.Table); err != nil {
			return err
		}
		if err := b.adoptStamped(ctx, tx); err != nil {
			return err
		}
		if r.Corrected, err = tx.exec(ctx, correctCountsSQL, b.config.Table); err != nil {
			return err
		}
		if b.config.Sinks != nil {
			if r.Joined, err = b.joinClaims(ctx, tx); err != nil {
				return err
			}
		}
		return b.fillLanes(ctx, tx)
	})
	return r, err
}

// Events that were stamped by hand with the group_id of a batch claimed by range.
const (
	groupsStampedSQL = `
SELECT l.group_id FROM outbox_batches AS l
WHERE l.buffer = ?1 AND l.claim = 'range' AND l.members IS NOT NULL
  AND (l.state = 'waiting' OR l.due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
  AND l.group_id IN (SELECT group_id FROM outbox_events WHERE group_id IS NOT NULL)`

	membersSQL = `
SELECT members FROM outbox_batches WHERE group_id = ?1`

	stampedSQL = `
SELECT id FROM outbox_events WHERE group_id = ?1`

	unstampSQL = `
UPDATE outbox_events SET group_id = NULL WHERE group_id = ?1`

	setMembersSQL = `
UPDATE outbox_batches
SET members = ?2,
    newest_at = max(newest_at, (SELECT max(created_at) FROM outbox_events WHERE id IN (SELECT value FROM json_each(?3))))
WHERE group_id = ?1`
)

// adoptStamped makes such events members of their batch.
func (b *Buffer) adoptStamped(ctx context.Context, tx transaction) error {
	rows, err := tx.rows(ctx, groupsStampedSQL, b.config.Table)
	groups, err := db.Column[string](rows, err)
	if err != nil {
		return err
	}
	for _, group := range groups {
		var text string
		if err := tx.row(ctx, membersSQL, group).Scan(&text); err != nil {
			return err
		}
		members, _ := idset.ParseJSON(text) // unreadable ones hold nothing; see free
		rows, err := tx.rows(ctx, stampedSQL, group)
		stamped, err := db.Column[int64](rows, err)
		if err != nil {
			return err
		}
		all := append(members.IDs(), stamped...)
		slices.Sort(all)
		if _, err := tx.exec(ctx, setMembersSQL, group, idset.Of(slices.Compact(all)).JSON(), idset.JSONIDs(stamped)); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, unstampSQL, group); err != nil {
			return err
		}
	}
	return nil
}
