package sqlite

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/internal/idset"
	"github.com/outboxrelay/relay/outbox/sqlite/internal/db"
)

var _ buffer.Retention = (*Buffer)(nil)

const (
	oldArchivedSQL = `
SELECT rowid, archived_at FROM outbox_archive
WHERE archived_at >= ?1 AND archived_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?2)
ORDER BY archived_at LIMIT ?3`

	deleteArchivedSQL = `
DELETE FROM outbox_archive WHERE rowid IN (SELECT value FROM json_each(?1))`

	// A page of the primary key. No index has closed_at: a walk over all dead letters now and then costs less.
	closedPageSQL = `
SELECT event_id, group_id FROM outbox_dead_letters
WHERE pipeline = ?1 AND (event_id, group_id) > (?2, ?3)
ORDER BY event_id, group_id LIMIT ?4`

	// One with an unfinished batch of the hook stays, because the hook must be notified.
	deleteClosedSQL = `
DELETE FROM outbox_dead_letters
WHERE (event_id, group_id) > (?9, ?10) AND (event_id, group_id) <= (?11, ?12)
  AND closed_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?13) AND (notified_at IS NOT NULL OR hook_group_id IS NULL) AND ` + matchSQL

	// Rows get growing numbers. Their size is that of the newest ones, which is known without reading them.
	archiveSizeSQL = `
SELECT coalesce((SELECT max(rowid) FROM outbox_archive) - (SELECT min(rowid) FROM outbox_archive) + 1, 0),
       coalesce((SELECT avg(octet_length(payload) + octet_length(topic) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0))
                 FROM (SELECT payload, topic, headers, key FROM outbox_archive ORDER BY rowid DESC LIMIT 200)), 0),
       (SELECT min(archived_at) FROM outbox_archive), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`

	// archivedRowBytes are what a row takes besides its texts: the columns of fixed length, and its entries in both indexes.
	archivedRowBytes = 200
)

// DeleteArchived implements buffer.Retention.
func (b *Buffer) DeleteArchived(ctx context.Context, keep time.Duration, from time.Time, limit int) (done buffer.DeletedArchived, err error) {
	if b.config.Archive == "" {
		return done, buffer.ErrNoArchive
	}
	err = b.write(ctx, "deleting old events of the archive", func(tx transaction) error {
		done = buffer.DeletedArchived{Next: from}
		type old struct {
			row int64
			at  string
		}
		since := ""
		if !from.IsZero() {
			since = from.UTC().Format(db.TimeFormat)
		}
		rows, err := tx.rows(ctx, oldArchivedSQL, since, "-"+db.Seconds(keep), limit)
		found, err := db.All(rows, err, func(rows *sql.Rows, o *old) error { return rows.Scan(&o.row, &o.at) })
		if err != nil || len(found) == 0 {
			return err
		}
		numbers := make([]int64, len(found))
		for i, o := range found {
			numbers[i] = o.row
		}
		if done.Events, err = tx.exec(ctx, deleteArchivedSQL, idset.JSONIDs(numbers)); err != nil {
			return err
		}
		done.More = len(found) == limit
		done.Next, err = db.ParseTime(found[len(found)-1].at)
		return err
	})
	return done, err
}

// DeleteClosed implements buffer.Retention.
func (b *Buffer) DeleteClosed(ctx context.Context, f buffer.DeadFilter, keep time.Duration, after *buffer.DeadKey, limit int) (done buffer.DeletedClosed, err error) {
	err = b.write(ctx, "deleting closed dead letters", func(tx transaction) error {
		done = buffer.DeletedClosed{}
		eventID, groupID := int64(math.MinInt64), ""
		if after != nil {
			eventID, groupID = after.EventID, after.GroupID.String()
		}
		rows, err := tx.rows(ctx, closedPageSQL, b.config.Pipeline, eventID, groupID, limit)
		page, err := db.All(rows, err, func(rows *sql.Rows, k *buffer.DeadKey) error { return rows.Scan(&k.EventID, &k.GroupID) })
		if err != nil || len(page) == 0 {
			return err
		}
		last := page[len(page)-1]
		if len(page) == limit {
			done.Next = &last
		}
		done.DeadLetters, err = tx.exec(ctx, deleteClosedSQL, append(b.match(f), eventID, groupID, last.EventID, last.GroupID.String(), "-"+db.Seconds(keep))...)
		return err
	})
	return done, err
}

// ArchiveSize implements buffer.Retention.
func (b *Buffer) ArchiveSize(ctx context.Context) (s buffer.ArchiveSize, err error) {
	if b.config.Archive == "" {
		return s, buffer.ErrNoArchive
	}
	err = b.read(ctx, "reading the size of the archive", func(tx transaction) error {
		var (
			texts  float64
			oldest sql.NullString
			now    string
		)
		s = buffer.ArchiveSize{Table: db.Quote(b.config.Archive)}
		if err := tx.row(ctx, archiveSizeSQL).Scan(&s.Events, &texts, &oldest, &now); err != nil {
			return err
		}
		s.Bytes = s.Events * (int64(texts) + archivedRowBytes)
		var err error
		if oldest.Valid {
			if s.Oldest, err = db.ParseTime(oldest.String); err != nil {
				return err
			}
		}
		s.Now, err = db.ParseTime(now)
		return err
	})
	return s, err
}
