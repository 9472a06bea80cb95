package sqlite

import (
	"cmp"
	"context"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/claimmode"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/rowjson"
)

const (
	// ?1 to ?4 are an extent, whose stamp is as the table holds it.
	deleteCustomSQL = `
DELETE FROM custom_events
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4)))`

	countCustomSQL = `
SELECT count(*) FROM custom_events
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4)))`

	regroupCustomSQL = `
UPDATE custom_events SET group_id = ?5
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4)))`

	// See burySQL.
	buryCustomSQL = `
INSERT INTO outbox_dead_letters AS d (pipeline, event_id, topic, key, payload, headers, created_at,
                                      group_id, attempts, error, event_row, sink, history)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT (pipeline, event_id, group_id) DO UPDATE
SET topic = excluded.topic, key = excluded.key, payload = excluded.payload, headers = excluded.headers,
    created_at = excluded.created_at, attempts = excluded.attempts, error = excluded.error, event_row = excluded.event_row, history = excluded.history,
    died_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), notified_at = NULL, closed_at = NULL, closed_as = NULL, closed_by = NULL, closed_reason = NULL, hook_group_id = NULL
WHERE d.closed_at IS NOT NULL`

	archiveCustomSQL = `
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id, routes_no)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (id, group_id) DO NOTHING`
)

func (c *customTable) bury(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, as burial) error {
	err := c.each(ctx, tx, batch, which, func(e *outbox.Event, payload any, row string) error {
		_, err := tx.exec(ctx, buryCustomSQL, c.b.config.Pipeline, e.ID, e.Topic, e.Key, payload, headers(e), e.CreatedAt.Format(db.TimeFormat),
			as.group.String(), as.attempts, as.error, row, as.sink, as.history)
		return err
	})
	if err != nil {
		return err
	}
	return c.b.buried(ctx, tx, which, as)
}

func (c *customTable) remove(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, archived bool, routesNo *int64) (deleted int64, err error) {
	if archived && c.b.config.Archive != "" {
		err := c.each(ctx, tx, batch, which, func(e *outbox.Event, payload any, _ string) error {
			_, err := tx.exec(ctx, archiveCustomSQL, e.ID, e.Topic, e.Key, payload, headers(e), e.CreatedAt.Format(db.TimeFormat), batch.GroupID.String(), routesNo)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if c.b.marks() {
		return c.mark(ctx, tx, batch, which)
	}
	return tx.exec(ctx, deleteCustomSQL, tx.shape.stamped(which).args()[:4]...)
}

func (c *customTable) regroup(ctx context.Context, tx transaction, batch *buffer.Lease, which extent, o *buffer.Outcome) error {
	which = tx.shape.stamped(which)
	var events int
	if err := tx.row(ctx, countCustomSQL, which.args()[:4]...).Scan(&events); err != nil {
		return err
	}
	err := c.b.stamped(events)(tx.exec(ctx, regroupCustomSQL, append(which.args()[:4], tx.shape.stampOf(o.GroupID))...))
	if err != nil || !c.b.marks() {
		return err
	}
	ids := o.IDs
	if ids == nil {
		ids = batch.IDs()
	}
	return c.noteVersions(ctx, tx, idset.JSONIDs(ids)) // they are read again
}

// each calls act for every event of the batch that still exists, with what was sent of it and its row. For an
// event that was never projected the row is the payload.
func (c *customTable) each(ctx context.Context, tx transaction, batch *buffer.Lease, which extent,
	act func(e *outbox.Event, payload any, row string) error,
) error {
	rows, err := tx.customRows(ctx, tx.shape.stamped(which), func(int) error { return nil })
	if err != nil {
		return err
	}
	events := batch.AllEvents()
	for _, row := range rows {
		e := outbox.Event{ID: row.id, CreatedAt: batch.ClaimedAt}
		if i, found := slices.BinarySearchFunc(events, row.id, func(e outbox.Event, id int64) int { return cmp.Compare(e.ID, id) }); found {
			e = events[i]
		}
		var payload any = e.Payload
		switch {
		case e.Payload == nil:
			e.Topic, payload = c.b.config.Table, row.text
		case batch.PayloadIsJSON:
			payload = string(e.Payload)
		}
		if err := act(&e, payload, row.text); err != nil {
			return err
		}
	}
	return nil
}

// One dead letter an event, those after event ?10; see pickReplaySQL.
const pickReplayCustomSQL = `
SELECT rowid, event_id, event_row, min(group_id), octet_length(event_row), '' FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND event_row IS NOT NULL AND event_id > ?10 AND ` + matchSQL + notReplayedSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_events WHERE id = d.event_id)
GROUP BY event_id ORDER BY event_id LIMIT ?9`

// replay skips rows that the table's constraints refuse. A deferred foreign key refuses only at the
// commit: then half as many are tried, until the row stands alone.
func (c *customTable) replay(ctx context.Context, args []any, by closing, limit int) (replayed int, err error) {
	after := int64(math.MinInt64)
	for size, halved := limit, false; size > 0; {
		n, last, err := c.replayAfter(ctx, args, by, size, after)
		switch {
		case db.Code(err) != sqlite3.SQLITE_CONSTRAINT && err != nil:
			return replayed, err
		case err != nil && size > 1:
			size, halved = size/2, true
			continue
		case err != nil:
			by.refuse(buffer.Refusal{ID: last}, db.Message(err))
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

// replayAfter puts up to limit events with up to buffer.MaxBytes after one back, as one batch. last is the last that was tried.
func (c *customTable) replayAfter(ctx context.Context, args []any, by closing, limit int, after int64) (replayed int, last int64, err error) {
	last = after
	if c.b.config.Sinks != nil {
		return c.b.replayRouted(ctx, args, by, limit, after)
	}
	err = c.b.write(ctx, "replaying dead letters", func(tx transaction) error {
		if _, _, err := c.b.negotiate(ctx, tx); err != nil {
			return err
		}
		group, pick := buffer.NewGroupID(), pickReplayCustomSQL
		if c.b.marks() {
			pick = pickReplayMarkedSQL
		}
		var rowids, ids []int64
		for size, full := 0, false; len(ids) < limit && !full; {
			dead, err := readLetters(tx.rows(ctx, pick, append(slices.Clone(args), limit-len(ids), last)...))
			if err != nil {
				return err
			}
			if len(dead) == 0 {
				break
			}
			for _, d := range dead {
				if full = size+d.bytes > buffer.MaxBytes && len(ids) > 0; full {
					break
				}
				last = d.id
				accepted, err := c.putBack(ctx, tx, d, group, by)
				if err != nil {
					return err
				}
				if accepted {
					rowids, ids, size = append(rowids, d.rowid), append(ids, d.id), size+d.bytes
				}
			}
		}
		if len(ids) == 0 {
			return nil
		}
		which := extent{stamp: group.String(), first: ids[0], last: ids[len(ids)-1]}
		replayed, err = c.b.openReplayed(ctx, tx, group, claimmode.Stamp, which, rowids, by)
		return err
	})
	return replayed, last, err
}

// holds compares the rows, whose group_ids may differ.
func (c *customTable) holds(ctx context.Context, tx transaction, d letter, claimID string) (bool, error) {
	rows, err := tx.customRows(ctx, tx.shape.stamped(extent{stamp: claimID, first: d.id, last: d.id}), func(int) error { return nil })
	if err != nil || len(rows) == 0 {
		return false, err
	}
	var decoded [2]map[string]any
	for i, text := range []string{rows[0].text, d.row} {
		if decoded[i], err = rowjson.Decode(text); err != nil {
			return false, err
		}
		maps.DeleteFunc(decoded[i], func(column string, _ any) bool { return strings.EqualFold(column, "group_id") })
	}
	return reflect.DeepEqual(decoded[0], decoded[1]), nil
}

// putBack inserts a dead letter's row under a stamp, or takes the mark off if it is still there. accepted: the table's constraints allow it.
func (c *customTable) putBack(ctx context.Context, tx transaction, d letter, group uuid.UUID, by closing) (accepted bool, err error) {
	row, err := rowjson.Decode(d.row)
	if err != nil {
		return false, err
	}
	if c.b.marks() {
		defer func() {
			if accepted && err == nil {
				err = c.noteVersions(ctx, tx, idset.JSONIDs([]int64{d.id}))
			}
		}()
		if accepted, gone, err := c.unmark(ctx, tx, d, row, group, by); !gone || err != nil {
			return accepted, err
		}
	}
	var (
		columns []string
		values  []any
	)
	for _, column := range tx.shape.columns {
		value, found := row[column]
		switch {
		case strings.EqualFold(column, c.b.config.Custom.ID):
			value = d.id
		case strings.EqualFold(column, "group_id"):
			value = tx.shape.stampOf(group)
		case !found: // it was added since
			continue
		}
		columns, values = append(columns, db.Quote(column)), append(values, value)
	}
	statement := "INSERT INTO " + db.Quote(c.b.config.Table) + " (" + strings.Join(columns, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(values)-1) + ") ON CONFLICT DO NOTHING"
	result, err := tx.tx.ExecContext(ctx, statement, values...)
	switch {
	case db.Code(err) == sqlite3.SQLITE_CONSTRAINT: // NOT NULL, CHECK, a foreign key, a trigger's RAISE
		by.refuse(buffer.Refusal{ID: d.id}, db.Message(err))
		return false, nil
	case err != nil:
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows > 0, err
}

func headers(e *outbox.Event) any {
	if e.Headers == nil {
		return nil
	}
	return string(e.Headers)
}
