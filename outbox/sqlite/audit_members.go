package sqlite

import (
	"context"
	"slices"
)

// Events that carry the group_id of a batch that is held by range: a hand put them there.
const (
	strayMembersSQL = `
SELECT l.group_id FROM outbox_batches AS l
WHERE l.buffer = ?1 AND l.members IS NOT NULL
  AND (l.state = 'waiting' OR l.due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
  AND l.group_id IN (SELECT group_id FROM outbox_events WHERE group_id IS NOT NULL)`

	membersSQL = `
SELECT members FROM outbox_batches WHERE group_id = ?1`

	strayIDsSQL = `
SELECT id FROM outbox_events WHERE group_id = ?1`

	freeStraysSQL = `
UPDATE outbox_events SET group_id = NULL WHERE group_id = ?1`

	setMembersSQL = `
UPDATE outbox_batches
SET members = ?2,
    newest_at = max(newest_at, (SELECT max(created_at) FROM outbox_events WHERE id IN (SELECT value FROM json_each(?3))))
WHERE group_id = ?1`
)

// correctMembers makes such events members like the others.
func (b *Buffer) correctMembers(ctx context.Context, tx transaction) error {
	groups, err := column[string](tx.rows(ctx, strayMembersSQL, b.config.Table))
	if err != nil {
		return err
	}
	for _, group := range groups {
		var text string
		if err := tx.row(ctx, membersSQL, group).Scan(&text); err != nil {
			return err
		}
		held, err := parseRuns(text)
		if err != nil {
			held = nil // what cannot be read holds nothing, see free
		}
		strays, err := column[int64](tx.rows(ctx, strayIDsSQL, group))
		if err != nil {
			return err
		}
		all := append(held.ids(), strays...)
		slices.Sort(all)
		members, err := runsOf(slices.Compact(all)).text()
		if err != nil {
			return err
		}
		added, err := idsText(strays)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, setMembersSQL, group, members, added); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, freeStraysSQL, group); err != nil {
			return err
		}
	}
	return nil
}
