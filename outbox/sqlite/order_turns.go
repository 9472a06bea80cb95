package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

const (
	// Kept events, which no sink takes, are due at the end of time.
	unroutedLanesSQL = `
SELECT seq, first_id, lanes FROM outbox_batches
WHERE buffer = ?1 AND sink = '*' AND due_at < ` + never + ` AND seq IS NOT NULL
ORDER BY seq, first_id`

	turnsSQL = `
SELECT group_id, seq, first_id, lanes, state = 'delivered', state = 'waiting', due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), due_at, ` + suspectSQL + `,
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
	dueAt              string
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
		if err := rows.Scan(&t.group, &t.seq, &t.first, &lanes, &t.delivered, &t.waiting, &t.due, &t.dueAt, &t.suspect, &t.unsent, &t.events); err != nil {
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

// nextTurn returns the batch that has been due longest of those that wait for no other, after it has left it the free lanes; errNothing if there is
// none. A bad batch, which is due again and again, does not keep the others from being tried.
func (l ledger) nextTurn(ctx context.Context, tx transaction, due buffer.Due) (group string, err error) {
	var next *turn
	err = l.turns(ctx, tx, func(t *turn) (found, goOn bool) {
		if found = t.ready && t.due && t.suspect == (due == buffer.DueSuspect) && (t.unsent || due != buffer.DueUnsent); found && (next == nil || t.dueAt < next.dueAt) {
			next = t
		}
		return found, true
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
	anyUnsent := backlog.Unsent > 0 // beyond the first batches, which may all be retries
	backlog.Due, backlog.Suspects, backlog.Unsent, backlog.Waiting = 0, 0, 0, 0
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
			if t.unsent {
				backlog.Unsent++
			}
		}
		return backlog.Unsent > 0 || !anyUnsent, true
	})
}
