package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// matchSQL is an buffer.DeadFilter; match has its arguments. lower knows ASCII
// letters only.
const matchSQL = `pipeline = ?1
  AND (?2 IS NULL OR event_id IN (SELECT value FROM json_each(?2)))
  AND (?3 = '' OR topic = ?3)
  AND (?4 = '' OR instr(lower(error), lower(?4)) > 0)
  AND (?5 IS NULL OR died_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5))
  AND (?6 IS NULL OR died_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?6))
  AND (?7 = FALSE OR notified_at IS NOT NULL)`

func (b *Buffer) match(f buffer.DeadFilter) ([]any, error) {
	ids, err := idsText(f.IDs)
	if err != nil {
		return nil, err
	}
	ago := func(d time.Duration) any {
		if d == 0 {
			return nil
		}
		return "-" + seconds(d)
	}
	return []any{b.config.Pipeline, ids, f.Topic, f.Error, ago(f.OlderThan), ago(f.NewerThan), f.Notified}, nil
}

// Two statements: only what asks for open letters alone finds them without a
// walk over the closed ones.
const (
	deadOpenSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, group_id, attempts, error, died_at, notified_at, closed_at
FROM outbox_dead_letters
WHERE closed_at IS NULL AND (event_id, group_id) > (?8, ?9) AND ` + matchSQL + `
ORDER BY event_id, group_id LIMIT ?10`

	deadSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, group_id, attempts, error, died_at, notified_at, closed_at
FROM outbox_dead_letters
WHERE (event_id, group_id) > (?8, ?9) AND ` + matchSQL + `
ORDER BY event_id, group_id LIMIT ?10`

	countDeadSQL = `
SELECT count(*) FILTER (WHERE closed_at IS NULL),
       count(*) FILTER (WHERE closed_at IS NULL AND notified_at IS NULL),
       count(*) FILTER (WHERE closed_at IS NOT NULL)
FROM outbox_dead_letters
WHERE ` + matchSQL
)

// ListDead is described by buffertest.Buffer. Upper and lower case of an error are
// alike in ASCII letters only.
func (b *Buffer) ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]outbox.Event, error) {
	args, err := b.match(f)
	if err != nil {
		return nil, err
	}
	statement := deadOpenSQL
	if f.Closed {
		statement = deadSQL
	}
	if after == nil {
		args = append(args, math.MinInt64, "", limit)
	} else {
		args = append(args, after.EventID, after.GroupID.String(), limit)
	}
	rows, err := b.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, b.explain(ctx, "listing dead letters", err)
	}
	events, _, err := scanLetters(rows, limit)
	return events, b.explain(ctx, "listing dead letters", err)
}

// CountDead is described by buffertest.Buffer.
func (b *Buffer) CountDead(ctx context.Context, f buffer.DeadFilter) (c buffer.DeadCount, err error) {
	args, err := b.match(f)
	if err != nil {
		return c, err
	}
	err = b.db.QueryRowContext(ctx, countDeadSQL, args...).Scan(&c.Open, &c.Unnotified, &c.Closed)
	return c, b.explain(ctx, "counting dead letters", err)
}

// scanLetters reads and closes rows, at most limit of them. rowids are what the
// table itself knows the letters by.
func scanLetters(rows *sql.Rows, limit int) (events []outbox.Event, rowids []int64, err error) {
	defer rows.Close()
	events = make([]outbox.Event, 0, min(limit, 1024))
	for rows.Next() {
		var (
			rowid           int64
			e               outbox.Event
			d               outbox.DeadLetter
			created, died   sql.NullString
			told, closed    sql.NullString
			payload, header []byte
		)
		if err := rows.Scan(&rowid, &e.ID, &e.Topic, &e.Key, &payload, &header, &created,
			&d.Pipeline, &d.GroupID, &d.Attempts, &d.Error, &died, &told, &closed); err != nil {
			return nil, nil, err
		}
		for _, t := range []struct {
			text sql.NullString
			at   *time.Time
		}{{created, &e.CreatedAt}, {died, &d.DiedAt}, {told, &d.NotifiedAt}, {closed, &d.ClosedAt}} {
			if !t.text.Valid {
				continue
			}
			if *t.at, err = time.Parse(timeFormat, t.text.String); err != nil {
				return nil, nil, fmt.Errorf("a time of the dead letter of event %d: %w", e.ID, err)
			}
		}
		e.Payload, e.Headers, e.DeadLetter = payload, header, &d
		if e.Payload == nil {
			e.Payload = []byte{}
		}
		events, rowids = append(events, e), append(rowids, rowid)
	}
	return events, rowids, rows.Err()
}
