package sqlite

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/internal/projection"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/rowjson"
)

// A row that is marked stays in the table, without its stamp: from then on it is as any other that is no event. custom_marks are the assignments.
//
// Only a row that is as it was when it was stamped is marked: every sink has read it after that. A row that the application has changed since may have been
// read before. It only loses its stamp, and is sent again if it is an event. custom_version is the version of a row of custom_events: a hash of its values but
// the stamp. A row without a stored version was stamped by an older relay, or by hand.
//
// A row may change, be read and sent so, and change back. So a read that finds another version stores a text, which no version equals.
const (
	// ?5 is the buffer.
	isStampedVersionSQL = `coalesce((SELECT v.version FROM outbox_versions AS v WHERE v.buffer = ?5 AND v.event_id = custom_events.custom_id) = custom_version, TRUE)`

	markCustomSQL = `
UPDATE custom_events SET custom_marks, group_id = NULL
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4))) AND ` + isStampedVersionSQL

	passCustomSQL = `
UPDATE custom_events SET group_id = NULL
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4))) AND NOT ` + isStampedVersionSQL

	noteVersionsSQL = `
INSERT OR REPLACE INTO outbox_versions (buffer, event_id, version)
SELECT ?1, custom_id, custom_version FROM custom_events WHERE custom_id IN (SELECT value FROM json_each(?2))`

	noteStampedSQL = `
INSERT OR REPLACE INTO outbox_versions (buffer, event_id, version)
SELECT ?1, custom_id, custom_version FROM custom_events WHERE group_id = ?2`

	changedSQL = `
SELECT custom_id FROM custom_events
WHERE group_id IS ?1 AND custom_id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR custom_id IN (SELECT value FROM json_each(?4))) AND NOT ` + isStampedVersionSQL

	noteChangedSQL = `
UPDATE outbox_versions SET version = 'changed' WHERE buffer = ?1 AND event_id IN (SELECT value FROM json_each(?2))`

	// Those of rows that keep their stamp stay.
	forgetVersionsSQL = `
DELETE FROM outbox_versions
WHERE buffer = ?1 AND event_id IN (SELECT value FROM json_each(?2))
  AND (?3 OR NOT EXISTS (SELECT 1 FROM custom_events AS e WHERE e.custom_id = event_id AND e.group_id IS NOT NULL))`

	// The first of these that is an event in spite of its mark.
	stillEventSQL = `
SELECT coalesce((SELECT e.id FROM json_each(?1) AS j CROSS JOIN outbox_events AS e WHERE e.id = j.value AND e.group_id IS NULL LIMIT 1), 0),
       EXISTS (SELECT 1 FROM json_each(?1) AS j CROSS JOIN outbox_events AS e WHERE e.id = j.value AND e.group_id IS NULL)`

	// Rows that a batch has cannot go back.
	claimedSQL = `
SELECT id FROM outbox_events WHERE id IN (SELECT value FROM json_each(?1)) AND group_id IS NOT NULL`

	pickReplayMarkedSQL = `
SELECT rowid, event_id, event_row, min(group_id), octet_length(event_row), '' FROM outbox_dead_letters AS d
WHERE closed_at IS NULL AND event_row IS NOT NULL AND event_id > ?10 AND ` + matchSQL + notReplayedSQL + `
  AND NOT EXISTS (SELECT 1 FROM outbox_events AS e WHERE e.id = d.event_id AND e.group_id IS NOT NULL)
GROUP BY event_id ORDER BY event_id LIMIT ?9`
)

// marks reports whether the rows of a custom table stay and are marked.
func (b *Buffer) marks() bool { return b.config.Custom.Mark != nil }

// assignments are those of the mark.
func (c *customTable) assignments() string {
	var set []string
	for _, column := range slices.Sorted(maps.Keys(c.b.config.Custom.Mark)) {
		set = append(set, db.Quote(column)+" = (\n"+c.b.config.Custom.Mark[column]+"\n)")
	}
	return strings.Join(set, ", ")
}

// noteVersions stores the versions of rows that were stamped; ids is a JSON array.
func (c *customTable) noteVersions(ctx context.Context, tx transaction, ids string) error {
	_, err := tx.exec(ctx, noteVersionsSQL, c.b.config.Table, ids)
	return err
}

// changed returns the events of a batch whose rows are not as they were when they were stamped.
func (c *customTable) changed(ctx context.Context, tx transaction, batch *buffer.Lease) ([]int64, error) {
	group, ids := batch.GroupID, any(nil)
	if batch.ClaimID != uuid.Nil {
		group, ids = batch.ClaimID, idset.JSONIDs(batch.IDs())
	}
	rows, err := tx.rows(ctx, changedSQL, tx.shape.stampOf(group), batch.FirstID, batch.LastID, ids, c.b.config.Table)
	return db.Column[int64](rows, err)
}

// noteChanged keeps rows that were read in another version from being marked.
func (c *customTable) noteChanged(ctx context.Context, ids []int64) error {
	return c.b.write(ctx, "noting rows that have changed", func(tx transaction) error {
		_, err := tx.exec(ctx, noteChangedSQL, c.b.config.Table, idset.JSONIDs(ids))
		return err
	})
}

// mark marks events of a batch instead of deleting them, and returns how many lost their stamp. A row that is an event in spite of its mark would be sent for ever.
func (c *customTable) mark(ctx context.Context, tx transaction, batch *buffer.Lease, which extent) (done int64, err error) {
	if which.last < which.first { // nothing
		return 0, nil
	}
	ids, ok := which.ids.(string)
	switch {
	case ok:
	case which.members != nil:
		ids = idset.JSONIDs(which.members.IDs())
	default:
		ids = idset.JSONIDs(batch.IDs())
	}
	of, args := int64(strings.Count(ids, ",")+1), append(tx.shape.stamped(which).args()[:4], c.b.config.Table)
	if done, err = tx.exec(ctx, markCustomSQL, args...); err != nil {
		return 0, err
	}
	var (
		id    int64
		still bool
	)
	switch err := tx.row(ctx, stillEventSQL, ids).Scan(&id, &still); {
	case err != nil:
		return 0, err
	case still:
		return 0, &buffer.MarkedError{ID: id, Table: c.b.config.Table}
	}
	if done < of {
		passed, err := tx.exec(ctx, passCustomSQL, args...)
		if err != nil {
			return 0, err
		}
		done += passed
	}
	_, err = tx.exec(ctx, forgetVersionsSQL, c.b.config.Table, ids, done == of)
	return done, err
}

// unmark gives a row that is still there the stamp, and takes its mark off, for a dead letter whose row is that one: an id may be used again. gone: there is no
// row with that id.
func (c *customTable) unmark(ctx context.Context, tx transaction, d letter, row map[string]any, group uuid.UUID, by closing) (accepted, gone bool, err error) {
	rows, err := tx.customRows(ctx, extent{first: d.id, last: d.id}, func(int) error { return nil })
	if err != nil {
		return false, false, err
	}
	if len(rows) == 0 { // it carries a stamp, or is gone
		existing, err := tx.rows(ctx, existingSQL, idset.JSONIDs([]int64{d.id}))
		ids, err := db.Column[int64](existing, err)
		return false, len(ids) == 0, err
	}
	now, err := rowjson.Decode(rows[0].text)
	if err != nil {
		return false, false, err
	}
	set, values := []string{"group_id = ?1"}, []any{tx.shape.stampOf(group)}
	for _, column := range tx.shape.columns {
		if isCreated := strings.EqualFold(column, c.created()); isCreated && !reflect.DeepEqual(now[column], row[column]) {
			return false, false, nil
		}
		for marked := range c.b.config.Custom.Mark {
			if strings.EqualFold(column, marked) {
				set, values = append(set, db.Quote(column)+" = ?"), append(values, row[column])
			}
		}
	}
	result, err := tx.tx.ExecContext(ctx, "UPDATE "+db.Quote(c.b.config.Table)+" SET "+strings.Join(set, ", ")+
		" WHERE "+db.Quote(c.b.config.Custom.ID)+" = ? AND group_id IS NULL", append(values, d.id)...)
	if slices.Contains(refusals, db.Code(err)) {
		by.refuse(buffer.Refusal{ID: d.id}, db.Message(err))
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	n, err := result.RowsAffected()
	return n > 0, false, err
}

// checkMark returns what is wrong with source.mark; "" if nothing is.
func (c *customTable) checkMark(ctx context.Context, tx transaction) (text string, err error) {
	const forEver = "so a marked row would be sent for ever"
	custom, table := c.b.config.Custom, db.Quote(c.b.config.Table)
	if custom.Mark == nil {
		return "", nil
	}
	if custom.Where == "" {
		return "has rows that are marked, and no source.where, " + forEver, nil
	}
	var others, marked []string
	for _, column := range slices.Sorted(maps.Keys(custom.Mark)) {
		is := func(name string) bool { return strings.EqualFold(name, column) }
		switch {
		case !slices.ContainsFunc(tx.shape.columns, is):
			return "has no column " + db.Quote(column) + " that can be set, which source.mark names", nil
		case is("group_id"), is(custom.ID):
			return "has a column " + db.Quote(column) + " that names the event; expected another one in source.mark", nil
		}
		expression := custom.Mark[column]
		if refused, err := c.refusal(ctx, "SELECT CASE WHEN 1 THEN "+expression+"\nEND, (\n"+expression+"\n) FROM "+table+" AS e LIMIT 0"); refused != "" || err != nil {
			return "has a source.mark." + column + " that is not right: " + refused, err
		}
		marked = append(marked, "(\n"+expression+"\n) AS "+db.Quote(column))
	}
	if refused, err := c.refusal(ctx, "EXPLAIN UPDATE "+table+" SET "+c.assignments()+", group_id = NULL"); refused != "" || err != nil {
		return "has a source.mark that is not right: " + refused, err
	}
	for _, column := range tx.shape.columns {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(custom.Mark)), func(name string) bool { return strings.EqualFold(name, column) }) {
			others = append(others, "e."+db.Quote(column))
		}
	}
	// Without the marked columns a condition on them cannot be parsed. A name in double quotes would be a text then.
	quoted, where := strings.Contains(custom.Where, `"`), "(\n"+custom.Where+"\n)"
	refused, err := c.refusal(ctx, "SELECT 1 FROM (SELECT "+strings.Join(others, ", ")+" FROM "+table+" AS e) AS e WHERE "+where+" LIMIT 0")
	if err != nil {
		return "", err
	}
	if refused == "" && !quoted {
		return "has a source.where that does not depend on a column of source.mark, " + forEver, nil
	}
	for i, rows := range []string{
		"SELECT " + strings.Join(marked, ", "), // of any row; it cannot be parsed if it depends on others
		"SELECT " + strings.Join(append(others, marked...), ", ") + " FROM (SELECT * FROM " + table + " AS e WHERE " + where + " LIMIT 100) AS e",
	} {
		var found int
		err := c.reads.QueryRowContext(ctx, "SELECT count(*) FROM ("+rows+") AS e WHERE "+where).Scan(&found)
		if err == nil && found > 0 && (i > 0 || !quoted) {
			return "has a source.where that is still true for a row that source.mark has marked, " + forEver, nil
		}
	}
	return "", nil
}

// refusal returns what SQLite has against a statement; "": nothing. Nothing can be written there.
func (c *customTable) refusal(ctx context.Context, statement string) (text string, err error) {
	_, err = c.reads.ExecContext(ctx, statement)
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", err
	}
	return projection.OneLine(err).Error(), nil
}
