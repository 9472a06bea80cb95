package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// An event that is dead at one sink may still wait for another. Then its replay joins the claim that holds it: as a claim of its
// own, the other sink would delete the event before this one has it. No settle runs meanwhile, because the replay's transaction may write from
// its first statement on.

const (
	// A dead letter of a sink goes to the sink that has its name, or had it. One that no sink took is routed again, and so is one of the single
	// sink that the buffer had before, unless a sink has taken its place. That of a dropped sink stays open.
	pickRoutedSQL = `
SELECT rowid, event_id, coalesce(event_row, ''), group_id,
       coalesce(octet_length(event_row), octet_length(payload) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0)), coalesce((
         SELECT s.sink FROM outbox_sinks AS s
         WHERE s.buffer = ?11 AND s.dropped_at IS NULL AND (s.sink = d.sink OR d.sink IN (SELECT value FROM json_each(s.formerly)))
         ORDER BY s.sink <> d.sink LIMIT 1), '*') AS target
FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND event_id > ?10 AND (?12 = FALSE OR event_row IS NOT NULL) AND ` + matchSQL + notReplayedSQL + `
  AND (d.sink IN ('*', 'default') OR EXISTS (
    SELECT 1 FROM outbox_sinks AS s
    WHERE s.buffer = ?11 AND s.dropped_at IS NULL AND (s.sink = d.sink OR d.sink IN (SELECT value FROM json_each(s.formerly)))))
ORDER BY event_id, target, group_id LIMIT ?9`

	existingSQL = `
SELECT id FROM outbox_events WHERE id IN (SELECT value FROM json_each(?1))`

	// The claims that hold any of the events.
	holdersSQL = `
SELECT claim_id, claim, sink, members, newest_at FROM outbox_batches
WHERE buffer = ?1 AND claim_id IS NOT NULL AND first_id <= ?3 AND last_id >= ?2`

	// ?8 are the ids as a JSON array.
	openJoinedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, members, newest_at, sink, claim_id)
SELECT ?1, ?2, ?3, 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?4, 0,
       0, 0, count(*), min(id), max(id), coalesce(min(created_at), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), 'replayed', ?5, ?6, ?7, ?9
FROM outbox_events WHERE id IN (SELECT value FROM json_each(?8))
HAVING count(*) > 0`
)

// holder is a batch that holds events of dead letters.
type holder struct {
	claimID, claim, sink string
	members              idset.Set
	newest               *string
}

// replayRouted puts dead letters of events after one back, for a buffer with several sinks; last is the last event that was tried. If none of
// those that one transaction tries can go back, the next one tries those after them.
func (b *Buffer) replayRouted(ctx context.Context, args []any, by closing, limit int, after int64) (replayed int, last int64, err error) {
	for {
		replayed, last, err = b.replayRoutedAfter(ctx, args, by, limit, after)
		if err != nil || replayed > 0 || last == after {
			return replayed, last, err
		}
		after = last
	}
}

func (b *Buffer) replayRoutedAfter(ctx context.Context, args []any, by closing, limit int, after int64) (replayed int, last int64, err error) {
	last = after
	err = b.write(ctx, "replaying dead letters", func(tx transaction) error {
		picked, err := b.pickRouted(ctx, tx, args, limit, after)
		if err != nil || len(picked) == 0 {
			return err
		}
		if last = picked[len(picked)-1].id; last > picked[0].id {
			last-- // the next page may begin with another dead letter of the same event
		}
		var ids []int64
		for i := range picked {
			ids = append(ids, picked[i].id)
		}
		held := existingSQL
		if b.marks() {
			held = claimedSQL
		}
		rows, err := tx.rows(ctx, held, idset.JSONIDs(slices.Compact(ids)))
		existing, err := db.Column[int64](rows, err)
		if err != nil {
			return err
		}
		there := idset.Of(existing)
		var waiting, gone []letter
		for _, d := range picked {
			if len(there.Intersect([]int64{d.id})) > 0 {
				waiting = append(waiting, d)
			} else {
				gone = append(gone, d)
			}
		}
		joined, err := b.replayWaiting(ctx, tx, waiting)
		if err != nil {
			return err
		}
		back, err := b.replayGone(ctx, tx, gone, by)
		if err != nil {
			return err
		}
		closed := append(joined, back...)
		replayed = len(closed)
		if _, err = tx.exec(ctx, closeReplayedSQL, idset.JSONIDs(closed), by.name, by.reason); err != nil {
			return err
		}
		return b.fillLanes(ctx, tx)
	})
	return replayed, last, err
}

// pickRouted returns one dead letter for each event and sink.
func (b *Buffer) pickRouted(ctx context.Context, tx transaction, args []any, limit int, after int64) ([]letter, error) {
	all, err := readLetters(tx.rows(ctx, pickRoutedSQL, append(slices.Clone(args), limit, after, b.config.Table, b.config.Custom.Is())...))
	return slices.CompactFunc(all, func(a, b letter) bool { return a.id == b.id && a.target == b.target }), err
}

// replayWaiting gives the claim that holds an event a batch of the event's sink, and returns the rowids of the dead letters that this is done
// for. An event that no claim holds, or whose sink is to get it anyway, stays a dead letter until the event is gone.
func (b *Buffer) replayWaiting(ctx context.Context, tx transaction, letters []letter) (rowids []int64, err error) {
	if len(letters) == 0 {
		return nil, nil
	}
	rows, err := tx.rows(ctx, holdersSQL, b.config.Table, letters[0].id, letters[len(letters)-1].id)
	holders, err := db.All(rows, err, func(rows *sql.Rows, h *holder) error {
		var members string
		err := rows.Scan(&h.claimID, &h.claim, &h.sink, &members, &h.newest)
		h.members, _ = idset.ParseJSON(members) // such a batch is not found
		return err
	})
	if err != nil {
		return nil, err
	}
	type joining struct{ sink, claimID string }
	var (
		ids    = map[joining][]int64{}
		claims = map[joining]*holder{}
	)
	for _, d := range letters {
		var in *holder
		has := false
		for i := range holders {
			h := &holders[i]
			if len(h.members.Intersect([]int64{d.id})) == 0 {
				continue
			}
			has = has || h.sink == d.target
			if in == nil || h.newest != nil && (in.newest == nil || *h.newest > *in.newest) {
				in = h
			}
		}
		if in == nil || has || d.target == buffer.Unrouted {
			continue
		}
		switch held, err := b.events.holds(ctx, tx, d, in.claimID); {
		case err != nil:
			return nil, err
		case !held:
			continue
		}
		to := joining{d.target, in.claimID}
		if known := claims[to]; known == nil || in.newest != nil && known.newest != nil && *in.newest > *known.newest {
			claims[to] = in
		}
		ids[to], rowids = append(ids[to], d.id), append(rowids, d.rowid)
	}
	for to, of := range ids {
		h := claims[to]
		_, err := tx.exec(ctx, openJoinedSQL, buffer.NewGroupID().String(), b.config.Table, h.claim, b.config.Owner,
			idset.Of(of).JSON(), h.newest, to.sink, idset.JSONIDs(of), to.claimID)
		if err != nil {
			return nil, err
		}
	}
	return rowids, nil
}

// replayGone inserts each event once, with a claim of its own for the sinks that it is replayed to, or as one that was claimed and not routed
// yet. It returns the rowids of the dead letters that this is done for.
func (b *Buffer) replayGone(ctx context.Context, tx transaction, letters []letter, by closing) (rowids []int64, err error) {
	var (
		claim, unrouted = buffer.NewGroupID(), buffer.NewGroupID()
		bySink          = map[string][]int64{}
		stamps          = map[int64]bool{} // whether an event was put back unrouted
	)
	for _, d := range letters {
		isUnrouted := d.target == buffer.Unrouted
		as, done := stamps[d.id]
		if !done {
			stamp := claim
			if isUnrouted {
				stamp = unrouted
			}
			accepted, err := b.events.putBack(ctx, tx, d, stamp, by)
			if err != nil {
				return nil, err
			}
			if !accepted {
				continue
			}
			stamps[d.id] = isUnrouted
		} else if as != isUnrouted { // it is routed again, to all sinks
			continue
		}
		bySink[d.target], rowids = append(bySink[d.target], d.id), append(rowids, d.rowid)
	}
	for _, sink := range slices.Sorted(maps.Keys(bySink)) {
		ids := bySink[sink]
		group, members, of := buffer.NewGroupID(), any(idset.Of(ids).JSON()), any(claim.String())
		if sink == buffer.Unrouted { // found by its stamp
			group, members, of = unrouted, nil, nil
		}
		_, err := tx.exec(ctx, openJoinedSQL, group.String(), b.config.Table, claimmode.Stamp, b.config.Owner, members, nil, sink, idset.JSONIDs(ids), of)
		if err != nil {
			return nil, err
		}
	}
	return rowids, nil
}

const holdsSQL = `
SELECT EXISTS (
  SELECT 1 FROM outbox_events AS e JOIN outbox_dead_letters AS d ON d.event_id = e.id
  WHERE d.rowid = ?1 AND e.created_at = d.created_at AND e.topic = d.topic AND e.key IS d.key)`

func (r *relayTable) holds(ctx context.Context, tx transaction, d letter, _ string) (held bool, err error) {
	err = tx.row(ctx, holdsSQL, d.rowid).Scan(&held)
	return held, err
}

// putBack inserts the event of a dead letter under a stamp.
func (r *relayTable) putBack(ctx context.Context, tx transaction, d letter, stamp uuid.UUID, _ closing) (accepted bool, err error) {
	put, err := tx.exec(ctx, putBackSQL, stamp.String(), idset.JSONIDs([]int64{d.rowid}))
	if err == nil && put != 1 {
		err = fmt.Errorf("event %d was not put back: a trigger on INSERT of table %s drops it; its dead letter stays open", d.id, r.b.config.Table)
	}
	return err == nil, err
}
