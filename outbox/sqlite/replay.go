package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
)

// notReplayedSQL leaves out dead letters d of an event that has another one at the same sink, which was replayed since: earlier versions made such. Of several only one
// goes back, ever, and the others stay open. If the event dies again, that is a later dead letter. Another event may have the same id.
const notReplayedSQL = `
  AND NOT EXISTS (
    SELECT 1 FROM outbox_dead_letters AS o
    WHERE o.pipeline = ?1 AND o.event_id = d.event_id AND o.group_id <> d.group_id AND o.closed_as = 'replayed' AND o.closed_at > d.died_at
      AND o.sink = d.sink AND o.topic = d.topic AND o.created_at = d.created_at)`

const (
	// One dead letter an event: min takes the other columns from its own row.
	pickReplaySQL = `
SELECT rowid, event_id, '', min(group_id), octet_length(payload) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0), ''
FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND ` + matchSQL + notReplayedSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_events WHERE id = d.event_id)
GROUP BY event_id ORDER BY event_id LIMIT ?9`

	// The ids are old ones; sqlite_sequence stays at the highest there ever was. An older version of SQLite may have accepted
	// a time that is in no calendar; it is put back as db.ParseTime reads it.
	putBackSQL = `
INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
SELECT event_id, topic, key, payload, headers, coalesce(
         strftime('%Y-%m-%dT%H:%M:%fZ', created_at),
         strftime('%Y-%m-%dT%H:%M:%fZ', substr(created_at, 1, 10), substr(created_at, 12, 2) || ' hours', substr(created_at, 15, 2) || ' minutes', substr(created_at, 18, 6) || ' seconds')), ?1
FROM outbox_dead_letters WHERE rowid IN (SELECT value FROM json_each(?2))`

	closeReplayedSQL = `
UPDATE outbox_dead_letters SET closed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), closed_as = 'replayed', closed_by = nullif(?2, ''), closed_reason = nullif(?3, '')
WHERE rowid IN (SELECT value FROM json_each(?1))`

	// ?1 to ?4 are an extent.
	openReplayedSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, members, newest_at)
SELECT ?5, ?6, ?7, 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?8, 0,
       0, 0, count(*), min(id), max(id), coalesce(min(created_at), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), 'replayed', ?9, iif(?9 IS NULL, NULL, max(created_at))
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
HAVING count(*) > 0
RETURNING events`
)

// closing is who closes dead letters, and why. refuse is called for those that the table refuses.
type closing struct {
	name, reason string
	refuse       func(r buffer.Refusal, message string)
}

// Replay implements buffer.DeadLetters.
func (b *Buffer) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (replayed int, err error) {
	return b.upkeep.replay(ctx, b.match(f), closing{f.ClosedBy, f.ClosedReason, f.Refuse}, limit)
}

func (r *relayTable) replay(ctx context.Context, args []any, by closing, limit int) (replayed int, err error) {
	b := r.b
	if b.config.Sinks != nil {
		replayed, _, err = b.replayRouted(ctx, args, by, limit, math.MinInt64)
		return replayed, err
	}
	err = b.write(ctx, "replaying dead letters", func(tx transaction) error {
		picked, err := readLetters(tx.rows(ctx, pickReplaySQL, append(args, limit)...))
		if err != nil || len(picked) == 0 {
			return err
		}
		var rowids, ids []int64
		for _, d := range picked {
			rowids, ids = append(rowids, d.rowid), append(ids, d.id)
		}
		group := buffer.NewGroupID()
		claim, which, err := b.extentOfReplay(ctx, tx, group, ids)
		if err != nil {
			return err
		}
		put, err := tx.exec(ctx, putBackSQL, which.stamp, idset.JSONIDs(rowids))
		if err == nil && put != int64(len(rowids)) {
			err = fmt.Errorf("%d of %d events were not put back: a trigger on INSERT of table %s drops them; their dead letters stay open", int64(len(rowids))-put, len(rowids), b.config.Table)
		}
		if err != nil {
			return err
		}
		if replayed, err = b.openReplayed(ctx, tx, group, claim, which, rowids, by); err != nil {
			return err
		}
		return b.fillLanes(ctx, tx)
	})
	return replayed, err
}

// openReplayed closes the dead letters whose events were put back and makes a batch of the events. by is who closes them and why.
func (b *Buffer) openReplayed(ctx context.Context, tx transaction, group uuid.UUID, claim string, which extent, rowids []int64, by closing) (replayed int, err error) {
	if _, err := tx.exec(ctx, closeReplayedSQL, idset.JSONIDs(rowids), by.name, by.reason); err != nil {
		return 0, err
	}
	return b.openBatch(ctx, tx, group, claim, which)
}

// openBatch makes a batch of events that were put back, and returns how many they are.
func (b *Buffer) openBatch(ctx context.Context, tx transaction, group uuid.UUID, claim string, which extent) (events int, err error) {
	var members any
	if which.members != nil {
		members = which.members.JSON()
	}
	err = tx.row(ctx, openReplayedSQL, append(which.args()[:4], group.String(), b.config.Table, claim, b.config.Owner, members)...).Scan(&events)
	return events, err
}

// extentOfReplay returns how a batch of events that are put back is found, in the mode that the buffer is
// claimed in, which may differ from this relay's.
func (b *Buffer) extentOfReplay(ctx context.Context, tx transaction, group uuid.UUID, ids []int64) (claim string, which extent, err error) {
	stored, _, err := b.storedMode(ctx, tx)
	if err != nil {
		return "", which, err
	}
	switch stored {
	case claimmode.Stamp, claimmode.StampKey:
		return claimmode.Stamp, extent{stamp: group.String(), first: ids[0], last: ids[len(ids)-1]}, nil
	case claimmode.Range:
		return claimmode.Range, unstamped(idset.Of(ids)), nil
	}
	_, _, err = b.negotiate(ctx, tx) // says what is wrong
	return "", which, errors.Join(err, fmt.Errorf("%d dead letters cannot be put back into a buffer that is claimed by %q", len(ids), stored))
}

// letter is a dead letter that can be replayed.
type letter struct {
	rowid, id  int64
	row, group string // row is that of a custom table
	bytes      int    // how much goes back
	target     string // the sink that it goes to; "" for a single one
}

// readLetters reads and closes rows up to buffer.MaxBytes, and those of the first event in any case: one transaction has no more, because it
// keeps the application from writing.
func readLetters(rows *sql.Rows, err error) (all []letter, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		var d letter
		if err := rows.Scan(&d.rowid, &d.id, &d.row, &d.group, &d.bytes, &d.target); err != nil {
			return nil, err
		}
		if size += d.bytes; size > buffer.MaxBytes && len(all) > 0 && all[len(all)-1].id != d.id {
			return all, nil
		}
		all = append(all, d)
	}
	return all, rows.Err()
}
