package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
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
SELECT id, key, created_at FROM outbox_events
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

const (
	// Kept events, which no sink takes, are due at the end of time.
	unroutedLanesSQL = `
SELECT seq, first_id, lanes FROM outbox_batches
WHERE buffer = ?1 AND sink = '*' AND due_at < ` + never + ` AND seq IS NOT NULL
ORDER BY seq, first_id`

	turnsSQL = `
SELECT group_id, seq, first_id, lanes, state = 'delivered', state = 'waiting', due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ` + suspectSQL + `,
       state = 'waiting' AND lease_no = 0 AND origins = '[]' AND claim_id IS NOT NULL AND members IS NOT NULL, events
FROM outbox_batches
WHERE buffer = ?1 AND sink = ?2 AND seq IS NOT NULL
ORDER BY seq, first_id LIMIT ?3`
)

// A look ends behind so many batches or events if it has found something, or else much later: a key that is stuck leaves a small
// batch of each claim.
const (
	nearBatches, nearEvents = 200, 20_000
	farBatches, farEvents   = 10_000, 200_000
)

// turn is a batch of a sink that keeps order.
type turn struct {
	group              string
	seq, first         int64
	lanes              laneSet
	delivered, waiting bool
	due, suspect       bool
	unsent             bool
	events             int64
	// taken are those of its lanes that an earlier batch has. ready: it waits for no other.
	taken []uint32
	ready bool
}

// before reports whether the batch comes before another one.
func (t *turn) before(other *turn) bool {
	return t.seq < other.seq || t.seq == other.seq && t.first < other.first
}

func (t *turn) hold(held map[uint32]bool) {
	for _, hash := range t.lanes.hashes {
		held[hash] = true
	}
}

// turns calls look for the batches of the sink in their order until it returns false. found makes it end sooner.
func (l ledger) turns(ctx context.Context, tx transaction, look func(t *turn) (found, goOn bool)) error {
	rows, err := tx.rows(ctx, unroutedLanesSQL, l.buffer)
	unrouted, err := db.All(rows, err, func(rows *sql.Rows, t *turn) error {
		var lanes sql.NullString
		err := rows.Scan(&t.seq, &t.first, &lanes)
		t.lanes = parseLanes(lanes)
		return err
	})
	if err != nil {
		return err
	}
	if rows, err = tx.rows(ctx, turnsSQL, l.buffer, l.sinkName(), farBatches); err != nil {
		return err
	}
	defer rows.Close()
	var (
		held    = map[uint32]bool{}
		looked  bool // it has found something
		batches int
		events  int64
	)
	for rows.Next() {
		var (
			t     turn
			lanes sql.NullString
		)
		if err := rows.Scan(&t.group, &t.seq, &t.first, &lanes, &t.delivered, &t.waiting, &t.due, &t.suspect, &t.unsent, &t.events); err != nil {
			return err
		}
		if events >= farEvents || looked && (batches >= nearBatches || events >= nearEvents) {
			break
		}
		for len(unrouted) > 0 && !t.before(&unrouted[0]) {
			unrouted[0].hold(held)
			unrouted = unrouted[1:]
		}
		t.lanes = parseLanes(lanes)
		for _, hash := range t.lanes.hashes {
			if held[hash] {
				t.taken = append(t.taken, hash)
			}
		}
		t.ready = len(t.taken) == 0 || t.delivered || t.unsent && (t.lanes.none || len(t.taken) < len(t.lanes.hashes))
		t.hold(held)
		found, goOn := look(&t)
		if !goOn {
			break
		}
		looked = looked || found
		batches, events = batches+1, events+t.events
	}
	return errors.Join(rows.Err(), rows.Close())
}

// nextTurn returns the first batch that is due and waits for no other, after it has left it the free lanes; errNothing if there is none.
func (l ledger) nextTurn(ctx context.Context, tx transaction, due buffer.Due) (group string, err error) {
	var next *turn
	err = l.turns(ctx, tx, func(t *turn) (found, goOn bool) {
		if t.ready && t.due && t.suspect == (due == buffer.DueSuspect) {
			next = t
		}
		return false, next == nil
	})
	switch {
	case err != nil:
		return "", err
	case next == nil:
		return "", errNothing
	case next.unsent && len(next.taken) > 0:
		err = l.b.cut(ctx, tx, next)
	}
	return next.group, err
}

const (
	uncutSQL = `
SELECT ` + holdingColumns + ` FROM outbox_batches WHERE group_id = ?1`

	cutRestSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, events,
                            first_id, last_id, oldest_at, claimed_at, error, members, newest_at, sink, claim_id, routes_no, seq, lanes)
SELECT ?2, buffer, claim, state, lease_no, due_at, owner, unfinished_leases, attempts, outages, ?3,
       ?4, ?5, ?6, claimed_at, error, ?7, newest_at, sink, claim_id, routes_no, seq, ?8
FROM outbox_batches WHERE group_id = ?1`

	cutSQL = `
UPDATE outbox_batches
SET events = ?2, first_id = coalesce(?3, first_id), last_id = coalesce(?4, last_id), oldest_at = coalesce(?5, oldest_at), members = ?6, lanes = ?7
WHERE group_id = ?1`
)

// half is some of the events of a batch that is cut.
type half struct {
	ids    []int64
	oldest string
	lanes  laneSet
}

func (h *half) add(e *keyed) {
	if len(h.ids) == 0 || e.createdAt < h.oldest {
		h.oldest = e.createdAt
	}
	h.ids = append(h.ids, e.id)
	h.lanes.add(e.key)
}

// args are events, first_id, last_id, oldest_at, members and lanes.
func (h *half) args() []any {
	members, lanes := idset.Of(h.ids).JSON(), h.lanes.json()
	if len(h.ids) == 0 {
		return []any{0, nil, nil, nil, "[]", lanes}
	}
	return []any{len(h.ids), h.ids[0], h.ids[len(h.ids)-1], h.oldest, members, lanes}
}

// cut moves the events of a batch whose lanes an earlier one has to a row of their own. What the application has deleted is in neither.
func (b *Buffer) cut(ctx context.Context, tx transaction, t *turn) error {
	var in holding
	if err := tx.row(ctx, uncutSQL, t.group).Scan(in.columns()...); err != nil {
		return err
	}
	events, err := b.keysIn(ctx, tx, in.extent(nil, nil)) // which says all with members
	if err != nil {
		return err
	}
	taken := map[uint32]bool{}
	for _, hash := range t.taken {
		taken[hash] = true
	}
	var free, rest half
	for i := range events {
		if e := &events[i]; e.key != nil && taken[lane(*e.key)] {
			rest.add(e)
		} else {
			free.add(e)
		}
	}
	if len(rest.ids) > 0 {
		if _, err := tx.exec(ctx, cutRestSQL, append([]any{t.group, buffer.NewGroupID().String()}, rest.args()...)...); err != nil {
			return err
		}
	}
	_, err = tx.exec(ctx, cutSQL, append([]any{t.group}, free.args()...)...)
	return err
}

// countTurns replaces the numbers of due batches by those of batches that wait for no other, and that of waiting ones by those that were sent: what
// waits for another batch does not wait for a retry.
func (l ledger) countTurns(ctx context.Context, tx transaction, backlog *buffer.Backlog) error {
	backlog.Due, backlog.Suspects, backlog.Waiting = 0, 0, 0
	return l.turns(ctx, tx, func(t *turn) (found, goOn bool) {
		if t.waiting && !t.unsent {
			backlog.Waiting++
		}
		switch {
		case !t.ready || !t.due:
			return false, true
		case t.suspect:
			backlog.Suspects++
		default:
			backlog.Due++
		}
		return true, true
	})
}
