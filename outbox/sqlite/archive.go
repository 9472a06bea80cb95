package sqlite

import (
	"context"
	"errors"
)

const archiveTableSQL = `
CREATE TABLE IF NOT EXISTS outbox_archive (
    id          INTEGER NOT NULL,
    topic       TEXT NOT NULL,
    key         TEXT,
    payload     BLOB NOT NULL,
    headers     TEXT,
    created_at  TEXT NOT NULL,
    group_id    TEXT NOT NULL,
    archived_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (id, group_id)
)`

const tableExistsSQL = `
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE)`

// What was archived before stays as it is: the event was delivered again, under
// the same group_id.
const archiveSQL = `
INSERT INTO outbox_archive (id, topic, key, payload, headers, created_at, group_id)
SELECT id, topic, key, payload, headers, created_at, ?6
FROM outbox_events
WHERE group_id IS ?1 AND id BETWEEN ?2 AND ?3
  AND (?4 IS NULL OR id IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR created_at <= ?5)
ON CONFLICT (id, group_id) DO NOTHING`

// makeArchive makes the archive table if there is to be one and it is not there. It may be configured
// long after the buffer was made, so it is none of the numbered migrations.
func (b *Buffer) makeArchive(ctx context.Context) (made bool, err error) {
	if b.config.Archive == "" {
		return false, nil
	}
	err = b.transact(ctx, func(tx transaction) error {
		var there bool
		if err := tx.row(ctx, tableExistsSQL, b.config.Archive).Scan(&there); err != nil {
			return err
		}
		if there {
			return errNothing
		}
		_, err := tx.exec(ctx, archiveTableSQL)
		return err
	})
	if errors.Is(err, errNothing) {
		return false, nil
	}
	return err == nil, err
}
