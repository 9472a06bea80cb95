package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

// matchSQL is a buffer.DeadFilter; match returns its arguments. ?5 and ?6 are the latest and the earliest death, as JSON: a modifier of now, and a time. lower knows ASCII letters only.
const matchSQL = `pipeline = ?1
  AND (?2 IS NULL OR event_id IN (SELECT value FROM json_each(?2)))
  AND (?3 = '' OR topic = ?3)
  AND (?4 = '' OR instr(lower(error), lower(?4)) > 0)
  AND (?5 ->> 0 IS NULL OR died_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5 ->> 0))
  AND (?5 ->> 1 IS NULL OR died_at < ?5 ->> 1)
  AND (?6 ->> 0 IS NULL OR died_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?6 ->> 0))
  AND (?6 ->> 1 IS NULL OR died_at >= ?6 ->> 1)
  AND (?7 = 0 OR notified_at IS NOT NULL OR ?7 = 2 AND sink NOT IN (
    SELECT name.value FROM outbox_buffers AS b JOIN outbox_sinks AS s ON s.buffer = b.buffer, json_each(json_insert(s.formerly, '$[#]', s.sink)) AS name
    WHERE b.pipeline = ?1 AND s.hook AND s.dropped_at IS NULL))
  AND (?8 = '' OR sink = ?8 OR sink IN (
    SELECT was.value FROM outbox_buffers AS b JOIN outbox_sinks AS s ON s.buffer = b.buffer, json_each(s.formerly) AS was
    WHERE b.pipeline = ?1 AND s.sink = ?8))`

func (b *Buffer) match(f buffer.DeadFilter) []any {
	bound := func(ago time.Duration, at time.Time) string {
		modifier, text := "null", "null"
		if ago != 0 {
			modifier = `"-` + db.Seconds(ago) + `"`
		}
		if !at.IsZero() {
			text = `"` + at.UTC().Format(db.TimeFormat) + `"`
		}
		return "[" + modifier + ", " + text + "]"
	}
	notified := 0
	switch {
	case f.Notified:
		notified = 1
	case f.SinkNotified: // of those without a hook of their own, no hook is to be notified
		notified = 2
	}
	return []any{b.config.Pipeline, idsArg(f.IDs), f.Topic, f.Error, bound(f.OlderThan, f.Before), bound(f.NewerThan, f.From), notified, f.Sink}
}

const (
	// presentNameSQL is the name of a dead letter's sink now. A dead letter keeps the name under which it died.
	// Sinks that are not dropped come first, then the one with that very name; min() sorts nothing.
	presentNameSQL = `coalesce((
  SELECT substr(min((s.dropped_at IS NOT NULL) || (s.sink <> outbox_dead_letters.sink) || s.sink), 3)
  FROM outbox_sinks AS s JOIN outbox_buffers AS b ON b.buffer = s.buffer
  WHERE b.pipeline = ?1 AND (s.sink = outbox_dead_letters.sink OR outbox_dead_letters.sink IN (SELECT value FROM json_each(s.formerly)))), outbox_dead_letters.sink)`

	// The statement for open dead letters uses their index and does not walk over the closed ones.
	listOpenSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, group_id, attempts, error, died_at, notified_at, closed_at, closed_as, closed_by, closed_reason, ` + presentNameSQL + `, event_row, history
FROM outbox_dead_letters
WHERE closed_at IS NULL AND (event_id, group_id) > (?9, ?10) AND ` + matchSQL + `
ORDER BY event_id, group_id LIMIT ?11`

	listAllSQL = `
SELECT rowid, event_id, topic, key, payload, headers, created_at,
       pipeline, group_id, attempts, error, died_at, notified_at, closed_at, closed_as, closed_by, closed_reason, ` + presentNameSQL + `, event_row, history
FROM outbox_dead_letters
WHERE (event_id, group_id) > (?9, ?10) AND ` + matchSQL + `
ORDER BY event_id, group_id LIMIT ?11`

	// No index has died_at: the newest are kept while all that match are read, as a count does. Payloads are not read.
	listNewestSQL = `
SELECT rowid, event_id, substr(topic, 1, 4096), substr(key, 1, 4096), x'', NULL, created_at,
       pipeline, group_id, attempts, substr(error, 1, 4096), died_at, notified_at, closed_at, closed_as, closed_by, closed_reason, ` + presentNameSQL + `, NULL, NULL
FROM outbox_dead_letters
WHERE rowid IN (
  SELECT rowid FROM outbox_dead_letters WHERE (?9 OR closed_at IS NULL) AND ` + matchSQL + `
  ORDER BY died_at DESC, event_id DESC, group_id DESC LIMIT ?10)
ORDER BY died_at DESC, event_id DESC, group_id DESC`

	countDeadSQL = `
SELECT count(*) FILTER (WHERE closed_at IS NULL),
       count(*) FILTER (WHERE closed_at IS NULL AND notified_at IS NULL),
       count(*) FILTER (WHERE closed_at IS NOT NULL)
FROM outbox_dead_letters
WHERE ` + matchSQL
)

// ListDead implements buffer.DeadLetters. Upper and lower case of an error are alike in ASCII letters
// only.
func (b *Buffer) ListDead(ctx context.Context, f buffer.DeadFilter, after *buffer.DeadKey, limit int) ([]buffer.DeadEvent, error) {
	statement := listOpenSQL
	if f.Closed {
		statement = listAllSQL
	}
	args := b.match(f)
	if after == nil {
		args = append(args, math.MinInt64, "", limit)
	} else {
		args = append(args, after.EventID, after.GroupID.String(), limit)
	}
	rows, err := b.db.QueryContext(ctx, statement, args...)
	events, _, _, err := scanDeadLetters(rows, err, limit)
	return events, b.explain(ctx, "listing dead letters", err)
}

// ListNewestDead implements buffer.DeadLetters.
func (b *Buffer) ListNewestDead(ctx context.Context, f buffer.DeadFilter, limit int) ([]buffer.DeadEvent, error) {
	rows, err := b.db.QueryContext(ctx, listNewestSQL, append(b.match(f), f.Closed, limit)...)
	events, _, _, err := scanDeadLettersUpTo(rows, err, limit, math.MaxInt)
	for i := range events {
		events[i].Payload = nil
	}
	return events, b.explain(ctx, "listing dead letters", err)
}

// CountDead implements buffer.DeadLetters.
func (b *Buffer) CountDead(ctx context.Context, f buffer.DeadFilter) (c buffer.DeadCount, err error) {
	err = b.db.QueryRowContext(ctx, countDeadSQL, b.match(f)...).Scan(&c.Open, &c.Unnotified, &c.Closed)
	return c, b.explain(ctx, "counting dead letters", err)
}

// As a count, it reads all that match.
const byTimeSQL = `
SELECT coalesce(unixepoch(died_at), 0) / ?10 * ?10, count(*), min(died_at), max(died_at)
FROM outbox_dead_letters
WHERE (?9 OR closed_at IS NULL) AND ` + matchSQL + `
GROUP BY 1 ORDER BY 1 DESC LIMIT ?11`

// CountDeadByTime implements buffer.DeadTimes.
func (b *Buffer) CountDeadByTime(ctx context.Context, f buffer.DeadFilter, period time.Duration, limit int) ([]buffer.DeadPeriod, error) {
	rows, err := b.db.QueryContext(ctx, byTimeSQL, append(b.match(f), f.Closed, int64(period/time.Second), limit)...)
	all, err := db.All(rows, err, func(rows *sql.Rows, p *buffer.DeadPeriod) error {
		var (
			begin       int64
			first, last string
		)
		if err := rows.Scan(&begin, &p.Count, &first, &last); err != nil {
			return err
		}
		p.Begin = time.Unix(begin, 0).UTC()
		var errFirst, errLast error
		p.First, errFirst = db.ParseTime(first)
		p.Last, errLast = db.ParseTime(last)
		return errors.Join(errFirst, errLast)
	})
	return all, b.explain(ctx, "counting dead letters by time", err)
}

// Those that pickRoutedSQL leaves out.
const countDroppedSQL = `
SELECT l.sink, EXISTS (SELECT 1 FROM outbox_sinks AS s WHERE s.buffer = ?9 AND s.sink = l.sink), count(*)
FROM (
  SELECT ` + presentNameSQL + ` AS sink FROM outbox_dead_letters
  WHERE closed_at IS NULL AND ` + matchSQL + ` AND sink NOT IN ('*', 'default') AND NOT EXISTS (
    SELECT 1 FROM outbox_sinks AS s WHERE s.buffer = ?9 AND s.dropped_at IS NULL
      AND (s.sink = outbox_dead_letters.sink OR outbox_dead_letters.sink IN (SELECT value FROM json_each(s.formerly))))
) AS l GROUP BY l.sink ORDER BY l.sink`

// CountDropped implements buffer.DeadLetters.
func (b *Buffer) CountDropped(ctx context.Context, f buffer.DeadFilter) ([]buffer.DroppedLetters, error) {
	if b.config.Sinks == nil {
		return nil, nil
	}
	rows, err := b.db.QueryContext(ctx, countDroppedSQL, append(b.match(f), b.config.Table)...)
	all, err := db.All(rows, err, func(rows *sql.Rows, d *buffer.DroppedLetters) error {
		return rows.Scan(&d.Sink, &d.Registered, &d.Letters)
	})
	return all, b.explain(ctx, "counting dead letters of dropped sinks", err)
}

// singleSink is the sink of a dead letter of a pipeline with a single one.
const singleSink = "default"

// scanDeadLetters reads and closes rows, of which there are at most limit. rowids identify the dead letters
// in the table. cut reports that more would be too large.
func scanDeadLetters(rows *sql.Rows, err error, limit int) (events []buffer.DeadEvent, rowids []int64, cut bool, _ error) {
	return scanDeadLettersUpTo(rows, err, limit, buffer.MaxBytes)
}

func scanDeadLettersUpTo(rows *sql.Rows, err error, limit, maxBytes int) (events []buffer.DeadEvent, rowids []int64, cut bool, _ error) {
	if err != nil {
		return nil, nil, false, err
	}
	defer rows.Close()
	size := 0
	events = make([]buffer.DeadEvent, 0, min(limit, 1024))
	for rows.Next() {
		var (
			rowid int64
			d     buffer.DeadEvent

			created, died, notified, closed, closedAs, closedBy, closedReason, history sql.NullString
		)
		if err := rows.Scan(&rowid, &d.ID, &d.Topic, &d.Key, &d.Payload, (*[]byte)(&d.Headers), &created,
			&d.Pipeline, &d.GroupID, &d.Attempts, &d.Error, &died, &notified, &closed, &closedAs, &closedBy, &closedReason, &d.Sink, &d.Row, &history); err != nil {
			return nil, nil, false, err
		}
		if d.Sink == singleSink {
			d.Sink = ""
		}
		if size += buffer.EventBytes(&d.Event) + len(d.Row); size > maxBytes && len(events) > 0 {
			return events, rowids, true, nil
		}
		for _, t := range []struct {
			text sql.NullString
			at   *time.Time
		}{{created, &d.CreatedAt}, {died, &d.DiedAt}, {notified, &d.NotifiedAt}, {closed, &d.ClosedAt}} {
			if !t.text.Valid {
				continue
			}
			if *t.at, err = db.ParseTime(t.text.String); err != nil {
				return nil, nil, false, fmt.Errorf("a time of the dead letter of event %d: %w", d.ID, err)
			}
		}
		d.ClosedAs, d.ClosedBy, d.ClosedReason, d.History = closedAs.String, closedBy.String, closedReason.String, buffer.ParseHistory(history.String)
		if d.Payload == nil {
			d.Payload = []byte{}
		}
		events, rowids = append(events, d), append(rowids, rowid)
	}
	return events, rowids, false, rows.Err()
}

const discardSQL = `
UPDATE outbox_dead_letters SET closed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), closed_as = 'discarded', closed_by = nullif(?10, ''), closed_reason = nullif(?11, '')
WHERE rowid IN (
  SELECT rowid FROM outbox_dead_letters
  WHERE closed_at IS NULL AND ` + matchSQL + `
  ORDER BY event_id, group_id LIMIT ?9)`

// Discard implements buffer.DeadLetters.
func (b *Buffer) Discard(ctx context.Context, f buffer.DeadFilter, limit int) (discarded int, err error) {
	err = b.write(ctx, "discarding dead letters", func(tx transaction) error {
		rows, err := tx.exec(ctx, discardSQL, append(b.match(f), limit, f.ClosedBy, f.ClosedReason)...)
		discarded = int(rows)
		return err
	})
	return discarded, err
}
