package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
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
INSERT INTO outbox_batches (group_id, buffer, claim, state, lease_no, due_at, owner, starts,
                            attempts, outages, events, first_id, last_id, oldest_at, error)
SELECT ?1, buffer, 'stamp', 'waiting', 0, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), ?2, 0,
       0, 0, count(*), min(id), max(id), min(created_at), 'replayed'
FROM outbox_buffers, outbox_events
WHERE buffer = ?3 AND claim IN ('stamp', 'stamp key') AND group_id = ?1 AND id BETWEEN ?4 AND ?5
GROUP BY buffer, claim
RETURNING events`

// Replay is described by buffertest.Buffer.
func (b *Buffer) Replay(ctx context.Context, f outbox.DeadFilter, limit int) (replayed int, err error) {
	args, err := b.match(f)
	if err != nil {
		return 0, err
	}
	err = b.write(ctx, "replaying dead letters", func(tx transaction) error {
		rowids, first, last, err := pickReplay(tx.rows(ctx, pickReplaySQL, append(args, limit)...))
		if err != nil || len(rowids) == 0 {
			return err
		}
		letters, err := idsText(rowids)
		if err != nil {
			return err
		}
		group := outbox.NewGroupID().String()
		if _, err := tx.exec(ctx, putInSQL, group, letters); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, closeLettersSQL, letters); err != nil {
			return err
		}
		err = tx.row(ctx, replayLedgerSQL, group, b.config.Owner, b.config.Table, first, last).Scan(&replayed)
		if errors.Is(err, sql.ErrNoRows) {
			if err = b.claimMode(ctx, tx); err == nil {
				err = fmt.Errorf("%d letters were put back, and no batch was made of them", len(rowids))
			}
		}
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

// pickReplay reads and closes rows: letters by rowid, and the first and last of
// their event ids.
func pickReplay(rows *sql.Rows, err error) (rowids []int64, first, last int64, _ error) {
	if err != nil {
		return nil, 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			rowid int64
			group string
		)
		if err := rows.Scan(&rowid, &last, &group); err != nil {
			return nil, 0, 0, err
		}
		if rowids == nil {
			first = last
		}
		rowids = append(rowids, rowid)
	}
	return rowids, first, last, rows.Err()
}

const discardSQL = `
UPDATE outbox_dead_letters SET closed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE rowid IN (
  SELECT rowid FROM outbox_dead_letters
  WHERE closed_at IS NULL AND ` + matchSQL + `
  ORDER BY event_id, group_id LIMIT ?8)`

// Discard is described by buffertest.Buffer.
func (b *Buffer) Discard(ctx context.Context, f outbox.DeadFilter, limit int) (discarded int, err error) {
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
