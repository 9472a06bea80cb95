package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
)

const (
	dueSQL = `
SELECT group_id, first_id, CASE state WHEN 'delivered' THEN '' ELSE coalesce(json_extract(origins, '$[0]'), '') END
FROM outbox_batches
WHERE buffer = ?1 AND claim IN ('stamp', 'range') AND due_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
ORDER BY due_at`

	// The batch itself comes last.
	siblingsSQL = `
SELECT coalesce(lanes, '[]') FROM outbox_batches
WHERE buffer = ?1 AND origins <> '[]' AND json_extract(origins, '$[0]') = ?2 AND first_id <= ?3
ORDER BY first_id`
)

// dueBatch is a candidate for a take over. root is the first of its origins, ” where
// nobody has to be waited for: what was delivered is only deleted.
type dueBatch struct {
	group   string
	firstID int64
	root    string
}

// dueInOrder returns the group_id of the batch that has been due longest and waits for
// no other. The parts of one batch may share keys. They have the first of their
// origins in common, and those that do are gone through in the order of their first
// ids: the sink's worker divides so that this is the order of the keys that they share.
func (b *Buffer) dueInOrder(ctx context.Context, tx transaction) (string, error) {
	due, err := scanDue(tx.rows(ctx, dueSQL, b.config.Table))
	if err != nil {
		return "", err
	}
	for _, one := range due {
		if one.root == "" {
			return one.group, nil
		}
		lanes, err := column[string](tx.rows(ctx, siblingsSQL, b.config.Table, one.root, one.firstID))
		if err != nil {
			return "", err
		}
		if waits, err := sharesLanes(lanes); err != nil || !waits {
			return one.group, err
		}
	}
	return "", errNothing
}

// countDue is due, unless all of those that are wait for others: the pipeline would be
// taken for one that stands still else.
func (b *Buffer) countDue(ctx context.Context, due int) (int, error) {
	err := b.transact(ctx, func(tx transaction) error {
		_, err := b.dueInOrder(ctx, tx)
		return err
	})
	if errors.Is(err, errNothing) {
		return 0, nil
	}
	return due, err
}

// sharesLanes tells whether the last of some JSON arrays has an element of the others.
func sharesLanes(texts []string) (bool, error) {
	sets := make([][]uint32, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &sets[i]); err != nil {
			return false, err
		}
	}
	last := len(sets) - 1
	for _, set := range sets[:max(0, last)] {
		for _, one := range set {
			if slices.Contains(sets[last], one) {
				return true, nil
			}
		}
	}
	return false, nil
}

// scanDue reads and closes rows.
func scanDue(rows *sql.Rows, err error) (all []dueBatch, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one dueBatch
		if err := rows.Scan(&one.group, &one.firstID, &one.root); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
