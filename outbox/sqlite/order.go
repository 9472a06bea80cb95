package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// lane is what a live batch holds of a key: nothing in it is claimed while the batch lives. A lane is
// the key's hash; two keys in one lane wait for each other, which does no harm.
func lane(key string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(key)) // a hash never fails
	return h.Sum32()
}

const (
	waitingKeysSQL = `
SELECT id, key FROM outbox_events
WHERE id > ?1 AND group_id IS NULL AND (available_at IS NULL OR available_at <= ?3)
ORDER BY id LIMIT ?2`

	pickedSQL = `
SELECT id, topic, key, payload, headers, created_at, available_at
FROM outbox_events WHERE id IN (SELECT value FROM json_each(?1))
ORDER BY id`

	stampPickedSQL = `
UPDATE outbox_events SET group_id = ?1
WHERE id IN (SELECT value FROM json_each(?2))`
)

// claimInOrder is Claim for `order: key`.
func (b *Buffer) claimInOrder(ctx context.Context, limit int, lease time.Duration) (batch *buffer.Lease, err error) {
	err = b.window.Scan(limit, func(size int) (found bool, seen int, err error) {
		batch, err = b.claim(ctx, lease, func(tx transaction, batch *buffer.Lease, _ string, from int64) error {
			_, now := b.clock()
			if b.config.Sinks == nil {
				if err := b.fillLanes(ctx, tx); err != nil {
					return err
				}
			}
			p, err := b.pickInOrder(ctx, tx, batch, from, size, limit, now)
			seen = p.seen
			switch {
			case err != nil:
				return err
			case p.seen == 0:
				b.cursor.Exhausted(from)
				return errNothing
			case len(p.ids) == 0:
				return errNothing
			}
			if err := b.openInOrder(ctx, tx, batch, lease, now); err != nil {
				return err
			}
			b.cursor.Claimed(from, batch.LastID, p.skipped)
			return nil
		})
		return batch != nil, seen, err
	})
	return batch, err
}

// openInOrder writes the ledger row of a batch, with its lanes or its number, and stamps its events.
func (b *Buffer) openInOrder(ctx context.Context, tx transaction, batch *buffer.Lease, lease time.Duration, now string) error {
	if err := b.open(ctx, tx, batch, lease, nil, eventTimes(batch)); err != nil {
		return err
	}
	if err := b.events.stamp(ctx, tx, batch, batch.IDs(), now); err != nil {
		return err
	}
	if b.config.Sinks != nil {
		return b.numberClaim(ctx, tx, batch)
	}
	return b.fillLanes(ctx, tx)
}

// picked is the events for a batch.
type picked struct {
	ids     []int64
	seen    int
	skipped *int64 // the first event that waits for another of its key; nil: none
}

// pickInOrder fills in the first events in free lanes among size waiting ones. With several sinks all lanes are free: each sink keeps its own
// order, and one that is behind holds back no other.
func (b *Buffer) pickInOrder(ctx context.Context, tx transaction, batch *buffer.Lease, from int64, size, limit int, now string) (p picked, err error) {
	var held map[uint32]bool
	if b.config.Sinks == nil {
		if held, err = b.heldLanes(ctx, tx); err != nil {
			return p, err
		}
	}
	rows, err := tx.rows(ctx, waitingKeysSQL, from, size, now)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for len(p.ids) < limit && rows.Next() {
		var (
			id  int64
			key *string
		)
		if err := rows.Scan(&id, &key); err != nil {
			return p, err
		}
		p.seen++
		switch {
		case key == nil || !held[lane(*key)]:
			p.ids = append(p.ids, id)
		case p.skipped == nil:
			p.skipped = new(id)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(p.ids) == 0 {
		return p, err
	}
	found, err := tx.rows(ctx, pickedSQL, idset.JSONIDs(p.ids))
	err = b.fillEvents(ctx, tx, batch, len(p.ids), found, err)
	p.ids = p.ids[:len(batch.Events)] // the first ones, if they are cut
	return p, err
}

const heldLanesSQL = `
SELECT DISTINCT held.value FROM outbox_batches AS l, json_each(l.lanes) AS held
WHERE l.buffer = ?1 AND held.value IS NOT NULL`

// heldLanes returns the lanes of all live batches.
func (b *Buffer) heldLanes(ctx context.Context, tx transaction) (map[uint32]bool, error) {
	rows, err := tx.rows(ctx, heldLanesSQL, b.config.Table)
	lanes, err := db.Column[uint32](rows, err)
	held := make(map[uint32]bool, len(lanes))
	for _, l := range lanes {
		held[l] = true
	}
	return held, err
}

const (
	withoutLanesSQL = `
SELECT group_id FROM outbox_batches WHERE buffer = ?1 AND lanes IS NULL`

	keysOfSQL = `
SELECT DISTINCT key FROM outbox_batches AS l JOIN outbox_events AS e ON e.id BETWEEN l.first_id AND l.last_id AND e.group_id = l.group_id
WHERE l.group_id = ?1 AND key IS NOT NULL`

	setLanesSQL = `
UPDATE outbox_batches SET lanes = ?2 WHERE group_id = ?1`
)

// fillLanes writes the lanes of the batches that have none yet: they were made in this transaction, or by
// a relay without `order: key`.
func (b *Buffer) fillLanes(ctx context.Context, tx transaction) error {
	switch {
	case !b.config.Ordered:
		return nil
	case b.config.Sinks != nil:
		return b.numberRest(ctx, tx)
	}
	rows, err := tx.rows(ctx, withoutLanesSQL, b.config.Table)
	groups, err := db.Column[string](rows, err)
	if err != nil {
		return err
	}
	for _, group := range groups {
		rows, err := tx.rows(ctx, keysOfSQL, group)
		keys, err := db.Column[string](rows, err)
		if err != nil {
			return err
		}
		lanes := make([]uint32, len(keys))
		for i, key := range keys {
			lanes[i] = lane(key)
		}
		slices.Sort(lanes)
		text, err := json.Marshal(slices.Compact(lanes))
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, setLanesSQL, group, string(text)); err != nil {
			return err
		}
	}
	return nil
}

// The parts of one batch have the first of their origins in common. Parts that share a key are taken in the
// order of their first ids: delivery splits so that this is the order of the keys that they share. A batch
// marked delivered waits for no other, because its events are only deleted.
const dueInOrderSQL = `
SELECT group_id FROM outbox_batches AS l
WHERE buffer = ?1 AND sink = '` + singleSink + `' AND claim IN ('stamp', 'range') AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
  AND ` + suspectSQL + ` = ?2
  AND (state = 'delivered' OR NOT EXISTS (
    SELECT 1 FROM outbox_batches AS part, json_each(part.lanes) AS held
    WHERE part.buffer = ?1 AND json_extract(part.origins, '$[0]') = json_extract(l.origins, '$[0]') AND part.first_id < l.first_id
      AND held.value IN (SELECT value FROM json_each(l.lanes))))
ORDER BY due_at LIMIT 1`

// dueInOrder returns the group_id of the batch of a kind that has been due longest and waits for no other.
func (b *Buffer) dueInOrder(ctx context.Context, tx transaction, due buffer.Due) (group string, err error) {
	err = tx.row(ctx, dueInOrderSQL, b.config.Table, due == buffer.DueSuspect).Scan(&group)
	if errors.Is(err, sql.ErrNoRows) {
		return "", errNothing
	}
	return group, err
}
