package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// One letter an event: min takes the other columns from its own row.
const pickReplaySQL = `
SELECT rowid, event_id, min(group_id) FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND ` + matchSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_events WHERE id = d.event_id)
GROUP BY event_id ORDER BY event_id LIMIT ?8`

// The ids are old ones, and sqlite_sequence stays at the highest there ever was.
const putInSQL = `
INSERT INTO outbox_events (id, topic, key, payload, headers, created_at, group_id)
SELECT event_id, topic, key, payload, headers, created_at, ?1
FROM outbox_dead_letters WHERE rowid IN (SELECT value FROM json_each(?2))`

const closeLettersSQL = `
UPDATE outbox_dead_letters SET closed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE rowid IN (SELECT value FROM json_each(?1))`

const replayLedgerSQL = `
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, unfinished_leases,
                            attempts, outages, events, first_id, last_id, oldest_at, error, members, newest_at)
SELECT ?5, ?6, ?7, 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?8, 0,
       0, 0, count(*), min(id), max(id), coalesce(min(created_at), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), 'replayed', ?9, iif(?9 IS NULL, NULL, max(created_at))
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
HAVING count(*) > 0
RETURNING events`

// Replay is described by buffertest.Buffer.
func (b *Buffer) Replay(ctx context.Context, f buffer.DeadFilter, limit int) (replayed int, err error) {
	args, err := b.match(f)
	if err != nil {
		return 0, err
	}
	if b.own != nil {
		return b.replayOwn(ctx, args, limit)
	}
	err = b.write(ctx, "replaying dead letters", func(tx transaction) error {
		rowids, ids, err := pickReplay(tx.rows(ctx, pickReplaySQL, append(args, limit)...))
		if err != nil || len(rowids) == 0 {
			return err
		}
		letters, err := idsText(rowids)
		if err != nil {
			return err
		}
		group := buffer.NewGroupID().String()
		p, err := b.putIn(ctx, tx, group, ids)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, putInSQL, p.which.stamp, letters); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, closeLettersSQL, letters); err != nil {
			return err
		}
		err = tx.row(ctx, replayLedgerSQL, append(p.which.args()[:4], group, b.config.Table, p.claim, b.config.Owner, p.members)...).Scan(&replayed)
		if err != nil {
			return err
		}
		return b.fillLanes(ctx, tx)
	})
	if err != nil {
		return 0, err
	}
	return replayed, nil
}

// replay is how a batch of events that were put back is held.
type replay struct {
	claim   string
	which   extent
	members any
}

// putIn makes it for the mode that the buffer is claimed in, whatever this relay's is.
func (b *Buffer) putIn(ctx context.Context, tx transaction, group string, ids []int64) (replay, error) {
	mode, err := b.stored(ctx, tx)
	if err != nil {
		return replay{}, err
	}
	switch mode {
	case claimStamp, claimStampKey, claimOptimistic:
		return replay{claimStamp, extent{stamp: group, first: ids[0], last: ids[len(ids)-1]}, nil}, nil
	case claimRange:
		held := runsOf(ids)
		which, err := held.extent()
		if err != nil {
			return replay{}, err
		}
		members, err := held.text()
		return replay{claimRange, which, members}, err
	}
	_, err = b.mode(ctx, tx) // says what is wrong
	return replay{}, errors.Join(err, fmt.Errorf("%d letters cannot be put back into a buffer that is claimed by %q", len(ids), mode))
}

// pickReplay reads and closes rows: letters by rowid, and their event ids in order.
func pickReplay(rows *sql.Rows, err error) (rowids, ids []int64, _ error) {
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			rowid, id int64
			group     string
		)
		if err := rows.Scan(&rowid, &id, &group); err != nil {
			return nil, nil, err
		}
		rowids, ids = append(rowids, rowid), append(ids, id)
	}
	return rowids, ids, rows.Err()
}

const discardSQL = `
UPDATE outbox_dead_letters SET closed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE rowid IN (
  SELECT rowid FROM outbox_dead_letters
  WHERE closed_at IS NULL AND ` + matchSQL + `
  ORDER BY event_id, group_id LIMIT ?8)`

// Discard is described by buffertest.Buffer.
func (b *Buffer) Discard(ctx context.Context, f buffer.DeadFilter, limit int) (discarded int, err error) {
	args, err := b.match(f)
	if err != nil {
		return 0, err
	}
	err = b.write(ctx, "discarding dead letters", func(tx transaction) error {
		rows, err := tx.exec(ctx, discardSQL, append(args, limit)...)
		discarded = int(rows)
		return err
	})
	if err != nil {
		return 0, err
	}
	return discarded, nil
}
