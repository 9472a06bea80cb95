package sqlite

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// One letter an event, those behind event ?9; see pickReplaySQL.
const pickOwnReplaySQL = `
SELECT rowid, event_id, event_row, min(group_id) FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND event_row IS NOT NULL AND event_id > ?9 AND ` + matchSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_events WHERE id = d.event_id)
GROUP BY event_id ORDER BY event_id LIMIT ?8`

// ownLetter is a letter of a table of the user's own.
type ownLetter struct {
	rowid, id int64
	row       string
}

// replayOwn is Replay where the table is the user's own. A row that the table's
// constraints leave no place for stays where it is, and the next one is tried. What a
// deferred foreign key refuses is known at the commit only: then as many are tried as
// half of that, until it stands alone.
func (b *Buffer) replayOwn(ctx context.Context, args []any, limit int) (replayed int, err error) {
	after := int64(math.MinInt64)
	for size, halved := limit, false; size > 0; {
		n, last, err := b.replayBehind(ctx, args, size, after)
		switch {
		case code(err) != sqlite3.SQLITE_CONSTRAINT && err != nil:
			return replayed, err
		case err != nil && size > 1:
			size, halved = size/2, true
			continue
		case err == nil:
			if replayed += n; n == 0 || !halved {
				return replayed, nil
			}
			size *= 2
		}
		after, size = last, min(size, limit-replayed)
	}
	return replayed, nil
}

// replayBehind puts up to limit events behind one back, as one batch. last is the last
// that was tried.
func (b *Buffer) replayBehind(ctx context.Context, args []any, limit int, after int64) (replayed int, last int64, err error) {
	last = after
	err = b.write(ctx, "replaying dead letters", func(tx transaction) error {
		if _, err := b.mode(ctx, tx); err != nil {
			return err
		}
		group := buffer.NewGroupID()
		var rowids, ids []int64
		for len(ids) < limit {
			letters, err := scanOwnLetters(tx.rows(ctx, pickOwnReplaySQL, append(slices.Clone(args), limit-len(ids), last)...))
			if err != nil {
				return err
			}
			if len(letters) == 0 {
				break
			}
			for _, l := range letters {
				last = l.id
				in, err := b.putOwnIn(ctx, tx, l, tx.shape.stamp(group))
				if err != nil {
					return err
				}
				if in {
					rowids, ids = append(rowids, l.rowid), append(ids, l.id)
				}
			}
		}
		if len(ids) == 0 {
			return nil
		}
		letters, err := idsText(rowids)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, closeLettersSQL, letters); err != nil {
			return err
		}
		return tx.row(ctx, replayLedgerSQL, group.String(), ids[0], ids[len(ids)-1], nil, group.String(), b.config.Table, claimStamp,
			b.config.Owner, nil).Scan(&replayed)
	})
	if err != nil {
		return 0, last, err
	}
	return replayed, last, nil
}

// putOwnIn puts a letter's row back into the table, under a stamp. in: there was a place
// for it.
func (b *Buffer) putOwnIn(ctx context.Context, tx transaction, l ownLetter, stamp any) (in bool, err error) {
	row, err := decodeRow(l.row)
	if err != nil {
		return false, err
	}
	var (
		columns []string
		values  []any
	)
	for _, column := range tx.shape.columns {
		value, had := row[column]
		switch {
		case strings.EqualFold(column, b.config.Own.ID):
			value = l.id
		case strings.EqualFold(column, "group_id"):
			value = stamp
		case !had: // it was added since
			continue
		}
		columns, values = append(columns, quote(column)), append(values, value)
	}
	statement := "INSERT INTO " + quote(b.config.Table) + " (" + strings.Join(columns, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(values)-1) + ") ON CONFLICT DO NOTHING"
	result, err := tx.tx.ExecContext(ctx, statement, values...)
	switch {
	case code(err) == sqlite3.SQLITE_CONSTRAINT: // NOT NULL, CHECK, a foreign key, a trigger's RAISE
		return false, nil
	case err != nil:
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows > 0, err
}

// scanOwnLetters reads and closes rows.
func scanOwnLetters(rows *sql.Rows, err error) (letters []ownLetter, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			l     ownLetter
			group string
		)
		if err := rows.Scan(&l.rowid, &l.id, &l.row, &group); err != nil {
			return nil, err
		}
		letters = append(letters, l)
	}
	return letters, rows.Err()
}
