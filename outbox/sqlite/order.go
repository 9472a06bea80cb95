package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// lane is what a key holds.
func lane(key string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(key)) // a hash never fails
	return h.Sum32()
}

const waitingKeysSQL = `
SELECT id, key FROM outbox_events WHERE id > ?1 AND group_id IS NULL
ORDER BY id LIMIT ?2`

const pickedSQL = `
SELECT id, topic, key, payload, headers, created_at
FROM outbox_events WHERE id IN (SELECT value FROM json_each(?1))
ORDER BY id`

const stampPickedSQL = `
UPDATE outbox_events SET group_id = ?1
WHERE id IN (SELECT value FROM json_each(?2))`

// claimInOrder is Claim where order is kept. When none of the first events that wait
// is free, it looks further, but not each time.
func (b *Buffer) claimInOrder(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error) {
	near := nearby * limit
	batch, seen, err := b.claimWithin(ctx, limit, lease, near)
	if err != nil || batch != nil || seen < near {
		return batch, err
	}
	far, due := b.reach.begin(near, time.Now())
	if !due {
		return nil, nil
	}
	began := time.Now()
	batch, seen, err = b.claimWithin(ctx, limit, lease, far)
	if err == nil {
		b.reach.end(far, batch != nil, seen < far, time.Since(began), time.Now())
	}
	return batch, err
}

// claimWithin looks at no more than reach events that wait; seen is how many it looked
// at.
func (b *Buffer) claimWithin(ctx context.Context, limit int, lease time.Duration, reach int) (*buffer.Lease, int, error) {
	batch := b.batch(lease)
	var p picked
	committing := false
	err := b.write(ctx, "claiming a batch", func(tx transaction) error {
		if _, err := b.mode(ctx, tx); err != nil {
			return err
		}
		if err := b.fillLanes(ctx, tx); err != nil {
			return err
		}
		held, err := b.heldLanes(ctx, tx)
		if err != nil {
			return err
		}
		from := b.cursor.from()
		waiting, err := tx.rows(ctx, waitingKeysSQL, from, reach)
		if err != nil {
			return err
		}
		if p, err = pick(waiting, held, limit); err != nil {
			return err
		}
		if len(p.ids) == 0 {
			if p.seen == 0 {
				b.cursor.nothingBeyond(from)
			}
			return errNothing
		}
		ids, err := idsText(p.ids)
		if err != nil {
			return err
		}
		rows, err := tx.rows(ctx, pickedSQL, ids)
		if err != nil {
			return err
		}
		if batch.Events, err = scanEvents(rows, limit); err != nil {
			return err
		}
		batch.FirstID, batch.LastID = p.ids[0], p.ids[len(p.ids)-1]
		if err := b.open(ctx, tx, batch, lease, nil); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, stampPickedSQL, batch.GroupID.String(), ids); err != nil {
			return err
		}
		if err := b.fillLanes(ctx, tx); err != nil {
			return err
		}
		b.cursor.claimed(from, batch.LastID, p.left)
		committing = true
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		return nil, p.seen, nil
	case err != nil:
		if committing {
			b.cursor.restart()
		}
		return nil, 0, err
	}
	batch.ClaimedLocal = time.Now()
	return batch, p.seen, nil
}

// picked are the events for a batch.
type picked struct {
	ids  []int64
	seen int
	left int64 // the first one that waits for another of its key; 0: there is none
}

// pick takes the first events that are free, and closes rows.
func pick(rows *sql.Rows, held map[uint32]bool, limit int) (p picked, err error) {
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
		case p.left == 0:
			p.left = id
		}
	}
	return p, rows.Err()
}

const heldLanesSQL = `
SELECT lanes FROM outbox_batches WHERE buffer = ?1 AND lanes NOT IN ('[]', 'null')`

// heldLanes are those of all live batches.
func (b *Buffer) heldLanes(ctx context.Context, tx transaction) (map[uint32]bool, error) {
	rows, err := tx.rows(ctx, heldLanesSQL, b.config.Table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	held := map[uint32]bool{}
	for rows.Next() {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		var lanes []uint32
		if err := json.Unmarshal(text, &lanes); err != nil {
			return nil, err
		}
		for _, l := range lanes {
			held[l] = true
		}
	}
	return held, rows.Err()
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

// fillLanes gives their lanes to the batches that have none yet: they were made a
// moment ago, or by a relay without order.
func (b *Buffer) fillLanes(ctx context.Context, tx transaction) error {
	if !b.config.Ordered {
		return nil
	}
	groups, err := column[string](tx.rows(ctx, withoutLanesSQL, b.config.Table))
	if err != nil {
		return err
	}
	for _, group := range groups {
		keys, err := column[string](tx.rows(ctx, keysOfSQL, group))
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

// column reads and closes rows of one column.
func column[T any](rows *sql.Rows, err error) (all []T, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one T
		if err := rows.Scan(&one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// reach is how far claims look beyond the first events that wait. A hundred thousand
// of a key that is stuck must not hide the others for ever; nor must every claim read
// the whole backlog where a few keys have all of it.
type reach struct {
	mu   sync.Mutex
	far  int       // 0: as it begins
	next time.Time // no look that far before
}

const (
	nearby = 10 // times the limit is where each claim looks
	// A look further that was in vain is not repeated sooner than after so many times
	// what it took.
	restOf = 20
)

func (r *reach) begin(near int, now time.Time) (far int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.far = max(r.far, 2*near)
	return r.far, !now.Before(r.next)
}

// end tells what a look that far brought; all: there was no more to look at.
func (r *reach) end(far int, found, all bool, took time.Duration, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case found:
		return
	case all:
		r.far = 0
	default:
		r.far = max(r.far, 2*far)
	}
	r.next = now.Add(restOf * took)
}
