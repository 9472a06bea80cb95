package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/routing"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// Order by key with several sinks. Claims take all keys, and each has a number, seq, larger than that of every live batch. The batches and
// parts that come of a claim keep the number. In a sink, the batches are in the order of (seq, first_id), and a lane is free for the first batch
// that has it. A batch that was claimed and not routed yet comes before the later ones of every sink.
//
// A batch that nobody has leased yet is taken over if any of its lanes is free. If others are not, it is cut: the events of those lanes go to a
// new row of the same claim and number. A batch that was sent is never cut, because its group_id is known to the sink; it waits until all
// its lanes are free. Nothing else writes between the look and the lease.

// keepsOrder reports whether one of several sinks, by its name in the configuration, keeps order by key.
func (b *Buffer) keepsOrder(sink string) bool {
	return slices.ContainsFunc(b.config.Sinks, func(r buffer.Route) bool { return r.Sink == sink && r.Ordered })
}

// routedInOrder reports whether batches of several sinks have numbers and lanes.
func (b *Buffer) routedInOrder() bool { return b.config.Ordered && b.config.Sinks != nil }

// laneSet is the lanes of a batch.
type laneSet struct {
	hashes []uint32
	none   bool // it has events without a key
}

func (s *laneSet) add(key *string) {
	if key == nil {
		s.none = true
		return
	}
	s.hashes = append(s.hashes, lane(*key))
}

// json returns the set as a JSON array, in which null stands for events without a key.
func (s *laneSet) json() string {
	slices.Sort(s.hashes)
	s.hashes = slices.Compact(s.hashes)
	all := make([]*uint32, 0, len(s.hashes)+1)
	if s.none {
		all = append(all, nil)
	}
	for i := range s.hashes {
		all = append(all, &s.hashes[i])
	}
	text, _ := json.Marshal(all) // numbers never fail
	return string(text)
}

// parseLanes reads what json writes. A batch without readable lanes waits for none and holds none.
func parseLanes(text sql.NullString) (s laneSet) {
	var all []*uint32
	if json.Unmarshal([]byte(text.String), &all) != nil {
		return s
	}
	for _, hash := range all {
		if hash == nil {
			s.none = true
		} else {
			s.hashes = append(s.hashes, *hash)
		}
	}
	return s
}

const keyedSQL = `
SELECT id, key, ` + waitingSinceSQL + ` FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ORDER BY id`

// keyed is an event of a batch.
type keyed struct {
	id        int64
	key       *string
	createdAt string
}

func (b *Buffer) keysIn(ctx context.Context, tx transaction, which extent) ([]keyed, error) {
	rows, err := tx.rows(ctx, keyedSQL, which.args()...)
	return db.All(rows, err, func(rows *sql.Rows, k *keyed) error { return rows.Scan(&k.id, &k.key, &k.createdAt) })
}

// lanesIn returns the lanes of an extent, as JSON.
func (b *Buffer) lanesIn(ctx context.Context, tx transaction, which extent) (string, error) {
	events, err := b.keysIn(ctx, tx, which)
	var lanes laneSet
	for i := range events {
		lanes.add(events[i].key)
	}
	return lanes.json(), err
}

// lanesOf returns the lanes of each delivery of a batch, as JSON.
func (b *Buffer) lanesOf(ctx context.Context, tx transaction, which extent, deliveries []routing.Delivery) ([]any, error) {
	lanes := make([]any, len(deliveries))
	if !b.routedInOrder() {
		return lanes, nil
	}
	events, err := b.keysIn(ctx, tx, which)
	if err != nil {
		return nil, err
	}
	keys := make(map[int64]*string, len(events))
	for _, e := range events {
		keys[e.id] = e.key
	}
	for i := range deliveries {
		var of laneSet
		for _, id := range deliveries[i].IDs {
			of.add(keys[id])
		}
		lanes[i] = of.json()
	}
	return lanes, nil
}

const (
	nextSeqSQL = `
SELECT coalesce(max(seq), 0) + 1 FROM outbox_batches WHERE buffer = ?1 AND seq IS NOT NULL`

	numberSQL = `
UPDATE outbox_batches SET seq = ?2, lanes = ?3 WHERE group_id = ?1`

	unnumberedSQL = `
SELECT group_id, first_id, last_id, lanes, ` + holdingColumns + ` FROM outbox_batches WHERE buffer = ?1 AND (lanes IS NULL OR seq IS NULL)`
)

// nextSeq returns the number of a claim that is made now.
func (b *Buffer) nextSeq(ctx context.Context, tx transaction) (seq int64, err error) {
	return seq, tx.row(ctx, nextSeqSQL, b.config.Table).Scan(&seq)
}

// numberClaim gives a batch that was claimed its number and its lanes.
func (b *Buffer) numberClaim(ctx context.Context, tx transaction, batch *buffer.Lease) error {
	seq, err := b.nextSeq(ctx, tx)
	if err != nil {
		return err
	}
	var lanes laneSet
	for i := range batch.Events {
		lanes.add(batch.Events[i].Key)
	}
	_, err = tx.exec(ctx, numberSQL, batch.GroupID.String(), seq, lanes.json())
	return err
}

// numbered completes what a ledger row said: what comes of it has a number.
func (b *Buffer) numbered(ctx context.Context, tx transaction, in *holding) error {
	if in.seq != nil || !b.routedInOrder() {
		return nil
	}
	seq, err := b.nextSeq(ctx, tx)
	in.seq = &seq
	return err
}

// numberRest gives the batches that have no number or lanes yet both: orphans and replayed events, which come behind all others, and those of
// before the buffer had several sinks that keep order. Batches of the single sink, which have lanes, come first.
func (b *Buffer) numberRest(ctx context.Context, tx transaction) error {
	type row struct {
		batch buffer.Lease
		in    holding
		lanes sql.NullString
	}
	rows, err := tx.rows(ctx, unnumberedSQL, b.config.Table)
	all, err := db.All(rows, err, func(rows *sql.Rows, r *row) error {
		return rows.Scan(append([]any{&r.batch.GroupID, &r.batch.FirstID, &r.batch.LastID, &r.lanes}, r.in.columns()...)...)
	})
	if err != nil || len(all) == 0 {
		return err
	}
	next, err := b.nextSeq(ctx, tx)
	if err != nil {
		return err
	}
	for i := range all {
		r := &all[i]
		seq, lanes := int64(0), r.lanes.String
		if !r.lanes.Valid {
			seq = next
			if lanes, err = b.lanesIn(ctx, tx, r.in.extent(&r.batch, nil)); err != nil {
				return err
			}
		}
		if r.in.seq != nil {
			seq = *r.in.seq
		}
		if _, err := tx.exec(ctx, numberSQL, r.batch.GroupID.String(), seq, lanes); err != nil {
			return err
		}
	}
	return nil
}
